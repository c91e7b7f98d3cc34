"""Who guesses: the ways to guess are asked one after the other, before each step.

A sequence takes the first guess that is worth its time: prompt lookup where it has one, else the
draft model's. On the engine's thread; imports no torch.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from runtime.engine.sequence import Sequence
from runtime.engine.speculation import MAX_DRAFTS, StepCost, worthwhile


class Candidate(NamedTuple):
    """A decoding sequence and how many drafts it has room for, at least one."""

    sequence: Sequence
    room: int


class Proposer(Protocol):
    """One way to guess."""

    method: str  # its name in the statistics

    def propose(
        self, candidates: list[Candidate], *, decoding: int, cost: StepCost
    ) -> list[Candidate]:
        """Set `drafts` where guessing gains time, in a step of `decoding` sequences that takes
        `cost`; returns the candidates that got none."""
        ...

    def observe(self, sequence: Sequence, *, proposed: int, accepted: int) -> None:
        """Of the drafts that this way gave a sequence so many were run, and so many were right."""
        ...


@dataclass(frozen=True)
class Tally:
    """Drafts by their position in the proposal: so many run, so many right."""

    proposed: tuple[int, ...] = (0,) * MAX_DRAFTS
    accepted: tuple[int, ...] = (0,) * MAX_DRAFTS


class _Counts:
    """A tally that grows."""

    def __init__(self) -> None:
        self._proposed = [0] * MAX_DRAFTS
        self._accepted = [0] * MAX_DRAFTS

    def add(self, *, proposed: int, accepted: int) -> None:
        for n in range(proposed):
            self._proposed[n] += 1
            self._accepted[n] += n < accepted

    def tally(self) -> Tally:
        return Tally(tuple(self._proposed), tuple(self._accepted))


class LookupProposer:
    """Prompt lookup; each sequence has an index of its own (speculation.PromptLookup)."""

    method = "lookup"

    def propose(
        self, candidates: list[Candidate], *, decoding: int, cost: StepCost
    ) -> list[Candidate]:
        """See Proposer."""
        left = []
        for candidate in candidates:
            lookup = candidate.sequence.lookup
            guess = lookup.propose(candidate.room)
            if guess:
                count = worthwhile(rate=lookup.rate, sequences=decoding, cost=cost)
                candidate.sequence.drafts = guess[:count]
                if not count:
                    lookup.passed_over()
            if not candidate.sequence.drafts:
                left.append(candidate)
        return left

    def observe(self, sequence: Sequence, *, proposed: int, accepted: int) -> None:
        """See Proposer."""
        sequence.lookup.observe(proposed=proposed, accepted=accepted)


class Speculator:
    """Asks the proposers in order and keeps count of what became of their drafts."""

    def __init__(self, proposers: Iterable[Proposer], *, max_context: int) -> None:
        self._proposers = tuple(proposers)
        self._counts = {proposer.method: _Counts() for proposer in self._proposers}
        self._max_context = max_context
        self._author: dict[str, Proposer] = {}  # of the drafts of the step, by sequence

    def propose(self, decoding: list[Sequence], *, cost: StepCost) -> None:
        """Give decoding sequences drafts where they are likely right and worth their time."""
        if not self._proposers:
            return
        self._author.clear()
        candidates = []
        for sequence in decoding:
            sequence.drafts = ()
            room = min(
                sequence.request.params.max_tokens - sequence.generated,
                self._max_context - len(sequence.tokens),
                MAX_DRAFTS + 1,
            )
            if room > 1:
                candidates.append(Candidate(sequence, room - 1))
        for proposer in self._proposers:
            before = candidates
            candidates = proposer.propose(before, decoding=len(decoding), cost=cost)
            for candidate in before:
                if candidate.sequence.drafts:
                    self._author.setdefault(candidate.sequence.id, proposer)

    def verified(self, sequence: Sequence, *, proposed: int, accepted: int) -> None:
        """Of `proposed` drafts that were run the first `accepted` are right."""
        proposer = self._author[sequence.id]
        proposer.observe(sequence, proposed=proposed, accepted=accepted)
        self._counts[proposer.method].add(proposed=proposed, accepted=accepted)

    def tallies(self) -> dict[str, Tally]:
        """What became of the drafts, by method. Any thread."""
        return {method: counts.tally() for method, counts in self._counts.items()}


def in_all(tallies: Iterable[Tally]) -> Tally:
    """The sum, position by position."""
    drafts = list(tallies)
    return (
        Tally(
            tuple(sum(column) for column in zip(*(each.proposed for each in drafts), strict=True)),
            tuple(sum(column) for column in zip(*(each.accepted for each in drafts), strict=True)),
        )
        if drafts
        else Tally()
    )
