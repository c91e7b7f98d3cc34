"""How many tokens the draft model is asked for, sequence by sequence. Pure: no torch, no clock.

A draft pays where it is likely right and its time (a share of a step of the draft model, and a row
of the target's) is less than the time that the token takes otherwise. Both are learned from what
happens: how often drafts were right, for each sequence and in all, and what steps of the draft
model take. Where drafting does not pay the draft model stands still: it falls behind, and catches
up when it is wanted again. So that it is noticed when it would pay (again), a try is made now and
then, paid for from a credit of 1% of the time of all steps.
"""

from dataclasses import dataclass
from typing import NamedTuple

from runtime.engine.speculation import StepCost, worthwhile

CATCH_UP_ROWS = 64  # tokens that the draft model reads in one step beside the target's
TRY_SHARE = 0.01  # of the time, for tries that are not expected to pay
_TRIED_DRAFTS = 2
_HOPEFUL = 0.95  # where even this rate would not pay, nothing is tried
_FIRST_RATE, _FIRST_WEIGHT = 0.7, 2.0  # of the whole engine, before anything is known
_ENGINE_MEMORY, _SEQUENCE_MEMORY = 0.95, 0.9  # what a further draft leaves of what is known
_ENGINE_WEIGHT = 4.0  # drafts' worth, that a sequence starts with
_FADING = 0.998  # and what a step without drafts leaves
_EARLY_END = 0.5  # of `remaining` is made, on average: many answers end by themselves


@dataclass
class Record:
    """How a sequence's (or all) drafts have done; older ones count for less."""

    right: float = 0.0
    tried: float = 0.0

    def add(self, *, proposed: int, accepted: int, memory: float) -> None:
        """A verified proposal; the drafts after the first wrong one say nothing."""
        for n in range(min(proposed, accepted + 1)):
            self.right = self.right * memory + (n < accepted)
            self.tried = self.tried * memory + 1

    def fade(self) -> None:
        """A step went by without drafts."""
        self.right *= _FADING
        self.tried *= _FADING


@dataclass
class Drafted:
    """What the draft model has read of a sequence that holds blocks."""

    read: int  # tokens whose keys and values it has
    ahead: int = 0  # drafts after those that it has read too
    published: int = 0  # full blocks that are known to hold its keys


class Ask(NamedTuple):
    """A sequence that could be drafted for."""

    record: Record
    lag: int  # tokens that the draft model has not read, the last one included: at least one
    room: int  # drafts at most
    remaining: int  # tokens that may still be made


class Share(NamedTuple):
    """What the draft model does for a sequence in this step."""

    read: int  # of the lag
    drafts: int  # none while it has not caught up


NOTHING = Share(0, 0)


class DraftPolicy:
    """See the module's text."""

    def __init__(self) -> None:
        self.cost = StepCost()  # of the draft model's steps
        self._all = Record(_FIRST_RATE * _FIRST_WEIGHT, _FIRST_WEIGHT)
        self._credit_ms = 0.0

    def rate(self, record: Record) -> float:
        """How likely the next draft of a sequence is right."""
        engine = self._all.right / self._all.tried
        return (record.right + _ENGINE_WEIGHT * engine) / (record.tried + _ENGINE_WEIGHT)

    def observe(self, record: Record, *, proposed: int, accepted: int) -> None:
        """What became of a sequence's drafts."""
        record.add(proposed=proposed, accepted=accepted, memory=_SEQUENCE_MEMORY)
        self._all.add(proposed=proposed, accepted=accepted, memory=_ENGINE_MEMORY)

    def plan(self, asks: list[Ask], *, decoding: int, cost: StepCost) -> list[Share]:
        """The draft model's work before a step of `decoding` sequences that takes `cost`."""
        earned_ms = self._credit_ms + TRY_SHARE * cost.at(decoding)
        self._credit_ms = min(earned_ms, self._price(CATCH_UP_ROWS, cost))
        counts = self._counts(asks, decoding=decoding, cost=cost)
        if not any(counts):
            for ask in asks:
                ask.record.fade()
            return self._try(asks, decoding=decoding, cost=cost)
        rows, shares = CATCH_UP_ROWS, []
        for ask, count in zip(asks, counts, strict=True):
            read = min(ask.lag, rows) if count else 0
            shares.append(Share(read, count if read == ask.lag else 0))
            rows -= read
        return shares

    def _counts(self, asks: list[Ask], *, decoding: int, cost: StepCost) -> list[int]:
        """Drafts for each; fewer sequences share a step of the draft model, the dearer it is."""
        sharing = list(range(len(asks)))
        counts = [0] * len(asks)
        while sharing:
            guess_ms = self.cost.at(len(sharing)) / len(sharing)
            for n in sharing:
                counts[n] = self._count(asks[n], guess_ms, decoding=decoding, cost=cost)
            paying = [n for n in sharing if counts[n]]
            if len(paying) == len(sharing):
                break
            sharing = paying
        return counts

    def _count(self, ask: Ask, guess_ms: float, *, decoding: int, cost: StepCost) -> int:
        rate = self.rate(ask.record)
        wanted = worthwhile(rate=rate, sequences=decoding, cost=cost, guess_ms=guess_ms)
        count = min(wanted, ask.room)
        if not count or ask.lag <= 2:
            return count
        gained = sum(rate**j for j in range(1, count + 1))
        step_ms = cost.at(decoding)
        drafted_ms = step_ms + decoding * count * (cost.each + guess_ms)
        saved_ms = step_ms - drafted_ms / (1 + gained)  # for each token that is still to be made
        catch_up_ms = decoding * self.cost.each * ask.lag  # all wait for it
        return count if catch_up_ms < saved_ms * _EARLY_END * ask.remaining else 0

    def _try(self, asks: list[Ask], *, decoding: int, cost: StepCost) -> list[Share]:
        """Where drafting does not pay: one sequence, when the credit covers it."""
        shares = [NOTHING] * len(asks)
        hopeful = worthwhile(rate=_HOPEFUL, sequences=decoding, cost=cost, guess_ms=self.cost.at(1))
        if not asks or not hopeful:
            return shares
        n = min(range(len(asks)), key=lambda n: asks[n].lag)
        read = min(asks[n].lag, CATCH_UP_ROWS)
        price = self._price(read, cost)
        if self._credit_ms >= price:
            self._credit_ms -= price
            drafts = min(_TRIED_DRAFTS, asks[n].room) if read == asks[n].lag else 0
            shares[n] = Share(read, drafts)
        return shares

    def _price(self, rows: int, cost: StepCost) -> float:
        return self.cost.at(rows) + _TRIED_DRAFTS * (self.cost.at(1) + cost.each)
