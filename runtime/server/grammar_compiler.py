"""Grammars for structured output, by llguidance: compiled here, followed on the engine thread.

llguidance lexes bytes with derivatives of regular expressions and parses with Earley's algorithm;
it computes a token mask in some tens of microseconds (github.com/guidance-ai/llguidance). What a
grammar may cost in time and memory is bounded by its own limits, at compilation and at each token.

Compiling happens in worker threads, which release the interpreter's lock; all else on the event
loop, but for GrammarState, which is the engine thread's.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import Tokenizer

from glowplug.errors import InvalidRequest, Overloaded
from runtime.engine.grammar import Allowed, Grammar, GrammarError
from runtime.server.constraint import Constraint

_COMPILE_LIMIT_S = 5.0
_WORKERS = 2
_MAX_LEXER_STATES = 30_000  # up to 2 kB each
_MAX_MESSAGE_CHARS = 500
_TOO_COMPLEX = "the grammar is too complex at this place of the output"


def grammar_tokenizer(
    tokenizer: Tokenizer, *, eos_token_ids: Sequence[int], vocab_size: int
) -> LLTokenizer | None:
    """The tokenizer as llguidance wants it, or None: it does not know this kind, or the model has
    no end-of-sequence token. Takes as long as loading the tokenizer did."""
    eos = [token for token in eos_token_ids if token < vocab_size]
    if not eos:
        return None
    try:
        return LLTokenizer(tokenizer.to_str(), n_vocab=vocab_size, eos_token=eos)
    except ValueError:
        return None


class GrammarCompiler:
    """Compiles the grammars of requests to one model."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        eos_token_ids: Sequence[int],
        vocab_size: int,
        prepared: LLTokenizer | None = None,
    ) -> None:
        """Without a `prepared` tokenizer the first request makes it."""
        self._tokenizer = tokenizer
        self._eos_token_ids = eos_token_ids
        self._vocab_size = vocab_size
        self._prepared = prepared
        self._preparing: asyncio.Task[LLTokenizer | None] | None = None
        self._workers = ThreadPoolExecutor(max_workers=_WORKERS, thread_name_prefix="grammar")

    async def compile(self, constraint: Constraint) -> Grammar:
        """The grammar.

        Raises:
            InvalidRequest: it is wrong, uses what is not supported, or is too complex.
            Overloaded: others' grammars take all the workers.
        """
        param = constraint.param
        tokenizer = self._prepared or await self._prepare()
        if tokenizer is None:
            raise InvalidRequest(
                f"{param}: this model's tokenizer does not support structured output", param=param
            )
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def work() -> LLMatcher:
            loop.call_soon_threadsafe(begun.set)
            return _compile(constraint.grammar, tokenizer)

        try:
            async with asyncio.timeout(_COMPILE_LIMIT_S):
                matcher = await loop.run_in_executor(self._workers, work)
        except TimeoutError:
            if not begun.is_set():
                raise Overloaded(
                    "too many grammars are being compiled; try again", retry_after_s=1
                ) from None
            raise InvalidRequest(
                f"{param}: takes over {_COMPILE_LIMIT_S:g} s to compile; make it simpler",
                param=param,
            ) from None
        if matcher.is_error():
            problem = matcher.get_error().strip()[:_MAX_MESSAGE_CHARS]
            raise InvalidRequest(f"{param}: {problem}", param=param)
        return _CompiledGrammar(matcher)

    def close(self) -> None:
        """End the worker threads."""
        self._workers.shutdown(wait=False, cancel_futures=True)

    async def _prepare(self) -> LLTokenizer | None:
        """Make the tokenizer, once; a request that is cancelled meanwhile does not stop it."""
        if self._preparing is None:
            self._preparing = asyncio.create_task(
                asyncio.to_thread(
                    grammar_tokenizer,
                    self._tokenizer,
                    eos_token_ids=self._eos_token_ids,
                    vocab_size=self._vocab_size,
                )
            )
        self._prepared = await asyncio.shield(self._preparing)
        return self._prepared


def _compile(grammar: str, tokenizer: LLTokenizer) -> LLMatcher:
    """The matcher, which may be in an error state. The first mask costs the most: here, not in the
    engine."""
    limits = LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher


class _CompiledGrammar:
    """Implements runtime.engine.grammar.Grammar."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher  # stays at the beginning

    def start(self) -> "_MatcherState":
        return _MatcherState(self._matcher.deep_copy())


class _MatcherState:
    """Implements runtime.engine.grammar.GrammarState."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def advance(self, token: int) -> None:
        self._matcher.consume_token(token)  # a failure stays, and shows in `allowed`

    def allowed(self, ahead: tuple[int, ...]) -> Allowed | None:
        matcher = self._matcher
        walked = matcher.try_consume_tokens(list(ahead)) if ahead else 0
        try:
            if walked < len(ahead):
                return None
            allowed = Allowed(matcher.compute_bitmask(), matcher.is_accepting())
            if matcher.is_error():
                raise GrammarError(_TOO_COMPLEX)
            return allowed
        finally:
            if walked:
                matcher.rollback(walked)
