"""Outlook: what plan() is told of a function beyond its demand: what is wanted ahead of it.

Plain values. Scheduled prewarms and forecasts both end as floors; plan() raises to them and never
lowers for them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from scaler.rates import Season

# Before the first start of a function is measured.
DEFAULT_START_S = 4.0
# What is launched ahead is launched by so much more: for the round, a failed try and a slow disk.
MARGIN_S = 4.0


class Source(Enum):
    """What asks for a floor."""

    SCHEDULE = "schedule"
    FORECAST = "forecast"


@dataclass(frozen=True, kw_only=True)
class Floor:
    """So many replicas at least, from the moment to launch them until the end. Times are those of
    plan's `now_s`."""

    from_s: float
    until_s: float
    replicas: int
    reason: str  # for people: "prewarm 'morning' 08:00 Europe/Berlin"
    source: Source = Source.SCHEDULE


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What lies ahead of one function."""

    floors: tuple[Floor, ...] = ()
    start_s: float = DEFAULT_START_S  # what a start takes, on the cautious side
    season: Season | None = None  # of its calls by hour of the week


def highest(floors: Sequence[Floor], now_s: float) -> Floor | None:
    """The floor that asks for the most now; overlapping ones do not add up."""
    if not floors:
        return None
    active = [floor for floor in floors if floor.from_s <= now_s < floor.until_s]
    return max(active, key=lambda floor: floor.replicas, default=None)


def next_edge(floors: Sequence[Floor], now_s: float) -> float:
    """When the next floor begins or ends; infinity without one."""
    edges = (edge for floor in floors for edge in (floor.from_s, floor.until_s))
    return min((edge for edge in edges if edge > now_s), default=math.inf)
