"""A grammar for what a model writes after it has reasoned: until then it writes what it wants.

The reasoning ends with a token (`</think>`), and so the grammar begins. Where the prompt has not
opened the reasoning, the output may begin with the token that does, or follow the grammar at once.
Made on the event loop, followed on the engine thread.
"""

from enum import Enum, auto

from runtime.engine.grammar import Allowed, Grammar, GrammarState
from runtime.server.reasoning import Reasoning


class AfterReasoning:
    """Implements runtime.engine.grammar.Grammar over another one."""

    def __init__(
        self, inner: Grammar, *, opened: bool, open_token: int, close_token: int, vocab_size: int
    ) -> None:
        self._inner = inner
        self._first = _Stage.REASONING if opened else _Stage.FIRST
        self._open_token = open_token
        self._close_token = close_token
        self._all = b"\xff" * -(-vocab_size // 8)

    def start(self) -> "_State":
        return _State(self._inner.start(), self._first, self)

    def next(self, stage: "_Stage", token: int) -> "_Stage":
        """Where the output is after a token."""
        if stage is _Stage.FIRST and token == self._open_token:
            return _Stage.REASONING
        if stage is _Stage.REASONING and token != self._close_token:
            return _Stage.REASONING
        return _Stage.GRAMMAR

    def anything(self) -> Allowed:
        """All tokens, but no end: the grammar is not complete before it has begun."""
        return Allowed(self._all, False)

    def or_reasoning(self, allowed: Allowed | None) -> Allowed | None:
        """What the grammar begins with, or the reasoning."""
        if allowed is None:
            return None
        tokens = bytearray(allowed.tokens)
        tokens[self._open_token // 8] |= 1 << self._open_token % 8
        return Allowed(bytes(tokens), allowed.complete)


class _Stage(Enum):
    FIRST = auto()  # no token yet
    REASONING = auto()
    GRAMMAR = auto()


class _State:
    """Implements runtime.engine.grammar.GrammarState."""

    def __init__(self, inner: GrammarState, stage: _Stage, grammar: AfterReasoning) -> None:
        self._inner = inner
        self._stage = stage
        self._grammar = grammar

    def advance(self, token: int) -> None:
        before, self._stage = self._stage, self._grammar.next(self._stage, token)
        if self._stage is _Stage.GRAMMAR and before is not _Stage.REASONING:
            self._inner.advance(token)

    def allowed(self, ahead: tuple[int, ...]) -> Allowed | None:
        stage, followed = self._stage, 0
        while stage is not _Stage.GRAMMAR and followed < len(ahead):
            before, stage = stage, self._grammar.next(stage, ahead[followed])
            if stage is _Stage.GRAMMAR and before is _Stage.FIRST:
                break  # that token was the grammar's own
            followed += 1
        if stage is _Stage.REASONING:
            return self._grammar.anything()
        allowed = self._inner.allowed(ahead[followed:])
        return self._grammar.or_reasoning(allowed) if stage is _Stage.FIRST else allowed


def after_reasoning(
    grammar: Grammar, reasoning: Reasoning, *, opened: bool, vocab_size: int
) -> Grammar | None:
    """The grammar for a model that reasons. A model whose marks are not tokens of its vocabulary
    follows it from the start; None: it cannot, the prompt has opened the reasoning."""
    if reasoning.open_token is None or reasoning.close_token is None:
        return None if opened else grammar
    return AfterReasoning(
        grammar,
        opened=opened,
        open_token=reasoning.open_token,
        close_token=reasoning.close_token,
        vocab_size=vocab_size,
    )
