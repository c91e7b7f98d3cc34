"""Seasons: when in the week a function is called, learned from its minutes of traffic.

A rate for every five minutes of the week in the function's time zone. Few weeks of a thin function
say little of one bin, so each level of detail is shrunk towards the one above it by a few
pseudo-counts, as in a tree of Gamma-Poisson models:

    all → hour of the day on working days and weekends → hour of the week
        → five minutes of the day on working days and weekends → five minutes of the week

Counted are minutes with a request, not requests: one burst is no season. Newer weeks count more.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from scaler.rates import Season

STEP_MINUTES = 5
STEPS = 7 * 24 * 60 // STEP_MINUTES
_DAY_STEPS = 24 * 60 // STEP_MINUTES
_HOUR_STEPS = 60 // STEP_MINUTES
_WEEK_MINUTES = 7 * 24 * 60

# Chosen on seeds of the simulator (bench/scaling.py) that are not among the reported ones.
_PRIORS = (3.0, 3.0, 3.0, 2.0)  # pseudo-counts of a level, in calls expected by the level above
_WEEKLY_FADE = 0.8
_LEAST_DAYS, _LEAST_DAYS_FOR_WEEK = 1.0, 10.0

Level = tuple[int, ...]  # for every step of the week, the index of its group


def learn_season(
    minutes: Iterable[int], *, from_minute: int, until_minute: int, timezone: str
) -> Season | None:
    """The season in epoch seconds from `until_minute` on; None for under a day of history.

    `minutes` are those with a request, since 1970 UTC, in [from_minute, until_minute). The season
    is laid out from the week that begins with `until_minute` in the function's zone, so its hours
    are right until the zone's next change of its clocks; learn it anew every few hours.
    """
    days = (until_minute - from_minute) / 1440
    if days < _LEAST_DAYS:
        return None
    zone = ZoneInfo(timezone)
    came, seen = _count(minutes, from_minute, until_minute, zone)
    if sum(came) == 0:
        return None
    levels = _LEVELS if days >= _LEAST_DAYS_FOR_WEEK else _DAILY_LEVELS
    mean = sum(came) / sum(seen)
    factors = [1.0] * STEPS
    for level, prior in zip(levels, _PRIORS, strict=False):
        factors = _refine(factors, level, prior, came=came, expected=[mean * s for s in seen])
    return _laid_out([mean / 60 * factor for factor in factors], until_minute, zone)


def _count(
    minutes: Iterable[int], from_minute: int, until_minute: int, zone: ZoneInfo
) -> tuple[list[float], list[float]]:
    """Weighted minutes with a request, and weighted minutes, for every step of the week."""
    came, seen = [0.0] * STEPS, [0.0] * STEPS

    def weight(minute: int) -> float:
        return float(_WEEKLY_FADE ** ((until_minute - minute) // _WEEK_MINUTES))

    first, last = from_minute // STEP_MINUTES, -(-until_minute // STEP_MINUTES)
    step, hour = 0, -1
    for bin_ in range(first, last):  # zones are whole multiples of 15 minutes from UTC
        minute = bin_ * STEP_MINUTES
        if minute // 15 != hour:
            hour, step = minute // 15, _step(minute, zone)
        at = (step + (minute % 15) // STEP_MINUTES) % STEPS
        inside = min(until_minute, minute + STEP_MINUTES) - max(from_minute, minute)
        seen[at] += weight(minute) * inside
    for minute in minutes:
        if from_minute <= minute < until_minute:
            came[_step(minute, zone)] += weight(minute)
    return came, seen


def _step(minute: int, zone: ZoneInfo) -> int:
    """Of the local week, for a minute since 1970 UTC."""
    local = datetime.fromtimestamp(60 * minute, zone)
    return (local.weekday() * 1440 + local.hour * 60 + local.minute) // STEP_MINUTES


def _refine(
    factors: Sequence[float],
    level: Level,
    prior: float,
    *,
    came: Sequence[float],
    expected: Sequence[float],
) -> list[float]:
    """Multiply every group of a level by what came in it against what was expected."""
    groups = max(level) + 1
    group_came, group_expected = [0.0] * groups, [0.0] * groups
    for step, group in enumerate(level):
        group_came[group] += came[step]
        group_expected[group] += factors[step] * expected[step]
    ratios = [(prior + c) / (prior + e) for c, e in zip(group_came, group_expected, strict=True)]
    return [factor * ratios[group] for factor, group in zip(factors, level, strict=True)]


def _laid_out(rates: Sequence[float], until_minute: int, zone: ZoneInfo) -> Season:
    start = datetime.fromtimestamp(60 * until_minute, zone).replace(second=0, microsecond=0)
    start -= timedelta(minutes=start.minute % STEP_MINUTES)
    first = (start.weekday() * 1440 + start.hour * 60 + start.minute) // STEP_MINUTES
    turned = [*rates[first:], *rates[:first]]
    sums = [0.0]
    for rate in turned:
        sums.append(sums[-1] + rate)
    return Season(start_s=start.timestamp(), step_s=60.0 * STEP_MINUTES, rates=turned, sums=sums)


def _level(of: "Iterable[int]") -> Level:
    return tuple(of)


def _day(step: int) -> int:
    """0 on working days, 1 on weekends."""
    return int(step // _DAY_STEPS >= 5)


_LEVELS = (
    _level(24 * _day(s) + s % _DAY_STEPS // _HOUR_STEPS for s in range(STEPS)),
    _level(s // _HOUR_STEPS for s in range(STEPS)),
    _level(_DAY_STEPS * _day(s) + s % _DAY_STEPS for s in range(STEPS)),
    _level(range(STEPS)),
)
_DAILY_LEVELS = (
    _level(s % _DAY_STEPS // _HOUR_STEPS for s in range(STEPS)),
    _level(s % _DAY_STEPS for s in range(STEPS)),
)
