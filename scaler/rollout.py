"""How the replicas that run become the replicas that are desired: which to start, which to release.

Pure functions, called by the reconciler for one function at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scaler.plan import Counts
from scaler.state import Entry


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What decides the moves, beside the replicas."""

    revision: str  # the current one
    sealed: bool  # so it can be started
    desired: int
    busy: bool  # requests are in flight or queued
    may_start: bool  # no wait after failed starts
    failing: bool  # the last starts failed: try one at a time


@dataclass(frozen=True, kw_only=True)
class Moves:
    """Replicas to start, and replicas to release with the reason."""

    starts: int
    releases: Sequence[tuple[Entry, str]]


def count(entries: Sequence[Entry], revision: str, *, failing: bool) -> Counts:
    """The replicas of one function as plan sees them."""
    live = [entry for entry in entries if entry.live]
    current = [entry for entry in live if entry.replica.revision == revision]
    return Counts(
        starting=sum(entry.starting for entry in current),
        ready=sum(entry.ready for entry in current),
        outdated=len(live) - len(current),
        failing=failing,
    )


def moves(entries: Sequence[Entry], situation: Situation, *, why: str) -> Moves:
    """The next moves; `why` is the decision's reason, for replicas released because of it.

    Replicas of old revisions go when one of the current revision is ready. When nothing is in
    flight they go at once, so that both need not fit into memory, except before the current
    revision can start, or while its starts fail.
    """
    live = [entry for entry in entries if entry.live]
    current = [entry for entry in live if entry.replica.revision == situation.revision]
    outdated = [entry for entry in live if entry.replica.revision != situation.revision]

    releases: list[tuple[Entry, str]] = []
    if any(entry.ready for entry in current):
        releases += [(entry, f"revision {situation.revision} is ready") for entry in outdated]
    elif situation.sealed and not situation.busy and not situation.failing:
        reason = f"revision {situation.revision} is current and nothing is in flight"
        releases += [(entry, reason) for entry in outdated]
    else:
        surplus = len(outdated) - situation.desired
        releases += [(entry, why) for entry in _expendable(outdated, situation)[: max(0, surplus)]]
    surplus = len(current) - situation.desired
    releases += [(entry, why) for entry in _expendable(current, situation)[: max(0, surplus)]]

    starts = 0
    if situation.sealed and situation.may_start:
        starts = max(0, situation.desired - len(current))
        if situation.failing:
            starts = min(starts, 1 - min(1, sum(entry.starting for entry in current)))
    return Moves(starts=starts, releases=releases)


def _expendable(entries: Sequence[Entry], situation: Situation) -> list[Entry]:
    """Those to release first, first: the newest ready ones, whose caches are the least warm, then
    starting ones. The last ready one is spared till the end while requests need it."""
    newest_first = list(reversed(entries))
    ready = [entry for entry in newest_first if entry.ready]
    starting = [entry for entry in newest_first if entry.starting]
    if situation.busy:
        return ready[:-1] + starting + ready[-1:]
    return ready + starting
