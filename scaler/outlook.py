"""Outlook: what plan() is told of a function beyond its demand: what is wanted ahead of it.

Plain values. Scheduled prewarms and forecasts both end as floors; plan() raises to them and never
lowers for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Floor:
    """So many replicas at least, from the moment to launch them until the end. Times are those of
    plan's `now_s`."""

    from_s: float
    until_s: float
    replicas: int
    reason: str  # for people: "prewarm 'morning' 08:00 Europe/Berlin"


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What lies ahead of one function."""

    floors: tuple[Floor, ...] = ()


def highest(floors: Sequence[Floor], now_s: float) -> Floor | None:
    """The floor that asks for the most now; overlapping ones do not add up."""
    active = [floor for floor in floors if floor.from_s <= now_s < floor.until_s]
    return max(active, key=lambda floor: floor.replicas, default=None)
