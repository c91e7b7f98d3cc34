"""What the engine knows of structured output: which tokens may come next.

A request may carry a Grammar; its sequence then follows it with a GrammarState. Sequences only ever
grow, so the state is a function of the output tokens and outlives a preemption. Used on the engine
thread.
"""

from typing import NamedTuple, Protocol


class GrammarError(Exception):
    """The grammar cannot say what comes next; its message is for the user."""


class Allowed(NamedTuple):
    """What may follow some output."""

    tokens: bytes  # one bit for each token id of the vocabulary, the lowest bit of a byte first
    complete: bool  # whether the output may also end here


class GrammarState(Protocol):
    """A grammar and the output of one sequence so far."""

    def advance(self, token: int) -> None:
        """The output got this token, which was allowed and does not end it."""
        ...

    def allowed(self, ahead: tuple[int, ...]) -> Allowed | None:
        """What may follow the output and then `ahead`; None: `ahead` may not follow it.

        The state stays where it is.

        Raises:
            GrammarError: the grammar is too complex here.
        """
        ...


class Grammar(Protocol):
    """A compiled grammar; any number of sequences may follow it at once."""

    def start(self) -> GrammarState:
        """The state before any output."""
        ...
