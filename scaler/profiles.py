"""Profiles: what one function's past says about each five minutes of its future.

Seven profiles are learned side by side, from one number for all times to one for each five minutes
of the week, each refining the one before it:

    all → hour of the day → of weekday or weekend → of the week
        → five minutes of the day → of weekday or weekend → of the week

A profile says for a bin how likely a request is within it: the decayed share of its slot's bins
that had one, held to what the coarser profiles say until the slot has been seen a few times.
Whether a slot is heard at all is found out slot by slot: it keeps the logarithm of the odds that it
foretells better than the coarser ones together, a sum over what it foretold and what came (the idea
of context-tree weighting; Willems, Shtarkov, Tjalkens 1995). So a nightly batch soon has its five
minutes, office hours their hours, and noise stays one number, with nothing to tune per function.

What is learned from is foretold first, two bins ahead of what was known then: a replica has to be
launched before a bin begins. All sums lose 30% a week. The *level* compares the last hours with
what was foretold for them: it follows drift, and has noticed a holiday by noon.

Pure: no clock, no I/O. Not shared between threads.
"""

import math
from array import array
from collections import deque
from dataclasses import dataclass
from functools import cache

from scaler.local_time import BINS_PER_DAY, BINS_PER_HOUR, BINS_PER_WEEK, local_time

AHEAD = 2  # bins from the last one that is known to the first that is foretold
WEEKLY_DECAY = 0.3
WEEKLY_FROM_BINS = 2 * BINS_PER_WEEK  # with less data, days are not told apart

_DAILY = (True, True, False, False, True, False, False)  # which profiles need no two weeks
_PRIOR_BINS = (1.0, 4.0, 4.0, 4.0, 1.0, 1.0, 1.0)  # how much the coarser profiles' word weighs
_FIRST_ODDS = -2.5  # logarithm; a finer slot is not believed before it has foretold something
_MOST_ODDS = 20.0
_RECENT_DECAY = 0.5 ** (1 / (2 * BINS_PER_HOUR))  # half of the level is the last two hours
_LEVEL_LIMITS = (0.1, 2.0)
_SURE_HAZARD = 2.0  # a chance of 86%
_LEVEL_PRIOR = 2.0  # busy bins that hold the level to 1
_VOLUME_LIMITS = (0.2, 2.0)
_LIKELY = 0.5  # chance from which a bin counts for the volume
_VOLUME_PRIOR = 10.0  # requests that hold the volume to 1
_MOST_CHANCE = 1 - 1e-9

# Of one bin: its places, each profile's own chance, its mixture with the coarser ones, requests.
_Foretold = tuple[tuple[int, ...], list[float], list[float], float]


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What is foretold for one bin."""

    chance: float  # that a request arrives within it: over 0, under 1
    arrivals: float  # how many

    @property
    def hazard(self) -> float:
        """-ln(1 - chance): what a Poisson process would have to expect for this chance."""
        return -math.log1p(-self.chance)


@cache
def _profiles() -> tuple[tuple[tuple[int, ...], ...], "array[float]"]:
    """(places in the tables for each slot of the week, what a place keeps from visit to visit)."""
    visits: dict[int, int] = {}
    rows = []
    for slot in range(BINS_PER_WEEK):
        day, time = divmod(slot, BINS_PER_DAY)
        hour, weekend = time // BINS_PER_HOUR, int(day >= 5)
        row, base = [], 0
        for within, size in (
            (0, 1),
            (hour, 24),
            (weekend * 24 + hour, 48),
            (day * 24 + hour, 168),
            (time, BINS_PER_DAY),
            (weekend * BINS_PER_DAY + time, 2 * BINS_PER_DAY),
            (slot, BINS_PER_WEEK),
        ):
            row.append(base + within)
            base += size
        for place in row:
            visits[place] = visits.get(place, 0) + 1
        rows.append(tuple(row))
    keeps = ((1 - WEEKLY_DECAY) ** (1 / visits[place]) for place in range(len(visits)))
    return tuple(rows), array("d", keeps)


class Profiles:
    """The profiles of one function, up to `next_bin`."""

    def __init__(self, timezone: str) -> None:
        """Raises zoneinfo.ZoneInfoNotFoundError (a KeyError)."""
        self.bins = 0  # seen so far
        self.next_bin = 0  # in UTC: the first that is not known
        self._local = local_time(timezone)
        self._rows, self._keep = _profiles()
        zeros = bytes(8 * len(self._keep))
        self._seen = array("d", zeros)  # decayed bins of each place
        self._busy = array("d", zeros)  # of these, with a request
        self._count = array("d", zeros)  # their requests
        self._odds = array("d", [_FIRST_ODDS]) * len(self._keep)
        self._foretold: deque[_Foretold] = deque()
        self._level = (0.0, 0.0)  # decayed busy bins: foretold, seen
        self._volume = (0.0, 0.0)  # decayed requests of likely bins: foretold, seen

    def observe(self, utc_bin: int, arrivals: int) -> None:
        """The next bin as it was; bins without a request too."""
        busy = 1.0 if arrivals else 0.0
        if len(self._foretold) == AHEAD:
            row, own, mixed, expected = self._foretold.popleft()
            self._compare(row, own, mixed, busy=busy)
            self._follow(mixed[-1], expected, busy=busy, arrivals=arrivals)
        else:
            row = self._rows[self._local.slot(utc_bin)]
        seen, busied, count, keep = self._seen, self._busy, self._count, self._keep
        for place in row:
            kept = keep[place]
            seen[place] = kept * seen[place] + 1.0
            busied[place] = kept * busied[place] + busy
            count[place] = kept * count[place] + arrivals
        self.bins += 1
        self.next_bin = utc_bin + 1
        self._foretold.append(self._foretell(utc_bin + AHEAD))

    def expected(self, utc_bin: int) -> Expected:
        """What is foretold for a bin that is not known yet."""
        _, _, mixed, arrivals = self._foretell(utc_bin)
        hazard = -math.log1p(-mixed[-1])
        level = _ratio(self._level, _LEVEL_PRIOR, _LEVEL_LIMITS)
        if level < 1:  # near certainty says how sure a request was, not how many there were
            hazard = min(hazard, _SURE_HAZARD)
        hazard *= math.pow(level, self._lasts(utc_bin))
        return Expected(
            chance=min(_MOST_CHANCE, -math.expm1(-hazard)),
            arrivals=arrivals * self.volume(utc_bin),
        )

    def volume(self, utc_bin: int) -> float:
        """How many times as many requests as foretold came in the last hours, as far as that says
        something about this bin: 0.2 to 2."""
        volume = _ratio(self._volume, _VOLUME_PRIOR, _VOLUME_LIMITS)
        return math.pow(volume, self._lasts(utc_bin))

    def _lasts(self, utc_bin: int) -> float:
        """How much of the level is left by then: today's holiday says little of tomorrow."""
        return math.pow(_RECENT_DECAY, max(0, utc_bin - self.next_bin))

    def _foretell(self, utc_bin: int) -> _Foretold:
        """Without the level."""
        seen, busied, count, odds = self._seen, self._busy, self._count, self._odds
        weekly = self.bins >= WEEKLY_FROM_BINS
        row = self._rows[self._local.slot(utc_bin)]
        own: list[float] = []
        mixed: list[float] = []
        chance, arrivals = 0.5, 0.0
        for place, prior, daily in zip(row, _PRIOR_BINS, _DAILY, strict=True):
            total = seen[place] + prior
            finer = (busied[place] + prior * chance) / total
            own.append(finer)
            if not mixed:
                chance, arrivals = finer, count[place] / total
            elif daily or weekly:
                weight = 1.0 / (1.0 + math.exp(-odds[place]))
                chance += weight * (finer - chance)
                arrivals += weight * ((count[place] + prior * arrivals) / total - arrivals)
            mixed.append(chance)
        return row, own, mixed, arrivals

    def _compare(
        self, row: tuple[int, ...], own: list[float], mixed: list[float], *, busy: float
    ) -> None:
        """Move the odds of the bin's slots by what was foretold for it."""
        odds, keep = self._odds, self._keep
        coarser = 0.0
        for place, finer, mixture in zip(row, own, mixed, strict=True):
            if place:  # the first profile's only place is never weighed
                gain = finer / coarser if busy else (1.0 - finer) / (1.0 - coarser)
                moved = _FIRST_ODDS + keep[place] * (odds[place] - _FIRST_ODDS) + math.log(gain)
                odds[place] = min(_MOST_ODDS, max(-_MOST_ODDS, moved))
            coarser = mixture

    def _follow(self, chance: float, expected: float, *, busy: float, arrivals: int) -> None:
        """Move the level and the volume."""
        kept = _RECENT_DECAY
        self._level = (kept * self._level[0] + chance, kept * self._level[1] + busy)
        if chance < _LIKELY:  # the few requests of an hour that has a batch say nothing
            expected, arrivals = 0.0, 0
        self._volume = (kept * self._volume[0] + expected, kept * self._volume[1] + arrivals)


def _ratio(pair: tuple[float, float], prior: float, limits: tuple[float, float]) -> float:
    foretold, seen = pair
    return min(limits[1], max(limits[0], (seen + prior) / (foretold + prior)))
