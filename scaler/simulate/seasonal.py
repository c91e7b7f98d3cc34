"""Synthetic weeks of traffic for many functions, with the seasons that a forecast should find.

SYNTHETIC: nobody ever made these requests. The shapes are guesses at common ones, so that policies
can be compared where the truth is known; figures from them say nothing about anybody's real load.

Each function is a non-homogeneous Poisson process of one of five shapes, in its own time zone:

- `office`: Monday to Friday from about 8 to 18 o'clock with a dip at noon, a trickle otherwise;
- `evening`: every day from about 17 to 23 o'clock, more at weekends;
- `nightly`: a batch at a fixed local time each night (half of them on weekdays only) over noise;
- `weekly`: a batch at a fixed time of one day of the week over noise;
- `thin`: a constant low rate: nothing to learn but the rate.

On top of that: unforeseeable bursts of office and evening (the rate times 4 to 10 for 5 to 20
minutes, every third day on average), slow drift (up to 20% a week, up or down), and one holiday,
the Wednesday of the last week, on which offices are nearly empty and batches run as always. The
weeks start on Monday 2026-03-02 00:00 UTC, so that the USA's clocks go forward within the first
week and Europe's on the last day of the fourth.

Pure and seeded: function number k of a seed is the same however many functions are asked for.
"""

import math
from array import array
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from random import Random
from zoneinfo import ZoneInfo

from scaler.simulate.replay import FunctionTraffic

START_S = datetime(2026, 3, 2, tzinfo=UTC).timestamp()
WEEK_S = 7 * 86_400.0
HOLIDAY = 2  # the weekday of the holiday: Wednesday

_STEP_S = 300.0  # the rate is constant so long
_ZONES = ("Europe/Berlin", "America/New_York", "Asia/Kolkata", "America/Los_Angeles", "Asia/Tokyo")
_SHAPES = ("office", "evening", "nightly", "thin", "office", "evening", "weekly", "office", "thin")

Rate = Callable[[int, float], float]  # (weekday from Monday = 0, local hour) to requests a second


def weeks(seed: int, functions: int, weeks: int = 4) -> list[FunctionTraffic]:
    """Traffic of so many functions over so many weeks from START_S on, in Unix time; the shapes
    take turns."""
    return [_traffic(Random(f"{seed}/{k}"), k, weeks) for k in range(functions)]  # noqa: S311


def _traffic(rng: Random, k: int, weeks: int) -> FunctionTraffic:
    shape = _SHAPES[k % len(_SHAPES)]
    zone = rng.choice(_ZONES)
    rate = _RATES[shape](rng)
    weekly_growth = 1 + (rng.uniform(-0.2, 0.2) if shape != "thin" else 0.0)
    bursts = _bursts(rng, weeks) if shape in ("office", "evening") else []

    end_s = START_S + weeks * WEEK_S
    holiday_s = end_s - WEEK_S + HOLIDAY * 86_400 + 43_200
    holiday = datetime.fromtimestamp(holiday_s, UTC).date() if shape == "office" else None

    def hazards() -> Iterator[float]:
        """Expected requests of each step."""
        for step in range(int(weeks * WEEK_S / _STEP_S)):
            at_s = START_S + step * _STEP_S
            local = datetime.fromtimestamp(at_s, ZoneInfo(zone))
            weekday = 6 if local.date() == holiday else local.weekday()
            value = rate(weekday, local.hour + local.minute / 60)
            value *= weekly_growth ** ((at_s - START_S) / WEEK_S)
            for from_s, until_s, factor in bursts:
                if from_s <= at_s < until_s:
                    value *= factor
            yield value * _STEP_S

    arrivals = array("d", _poisson(rng, hazards()))
    sigma = 0.6  # of the logarithm: most answers are short, some are long
    mu = math.log(1.5) + rng.random() * math.log(8.0 / 1.5) - sigma**2 / 2
    service = array("d", (min(120.0, rng.lognormvariate(mu, sigma)) for _ in arrivals))
    return FunctionTraffic(
        name=f"{shape}-{k:03d}", arrivals_s=arrivals, service_s=service, timezone=zone
    )


def _poisson(rng: Random, hazards: Iterator[float]) -> Iterator[float]:
    """Arrival times of a Poisson process with so many expected in each step (time rescaling: the
    process is one of rate 1 on the axis of the summed hazard)."""
    left = rng.expovariate(1.0)  # hazard until the next arrival
    for step, hazard in enumerate(hazards):
        used = 0.0
        while left < hazard - used:
            used += left
            yield START_S + (step + used / hazard) * _STEP_S
            left = rng.expovariate(1.0)
        left -= hazard - used


def _bursts(rng: Random, weeks: int) -> list[tuple[float, float, float]]:
    """(from, until, factor) of the unforeseeable bursts."""
    bursts = []
    at_s = START_S
    while (at_s := at_s + rng.expovariate(1 / (3 * 86_400))) < START_S + weeks * WEEK_S:
        bursts.append((at_s, at_s + rng.uniform(300, 1200), rng.uniform(4, 10)))
    return bursts


def _log_uniform(rng: Random, low: float, high: float) -> float:
    return low * math.exp(math.log(high / low) * rng.random())


def _bump(hour: float, center: float, width: float) -> float:
    return math.exp(-(((hour - center) / width) ** 2) / 2)


def _office(rng: Random) -> Rate:
    per_day = _log_uniform(rng, 10, 2000)
    start = rng.uniform(-1, 1)

    def rate(weekday: int, hour: float) -> float:
        shape = _bump(hour, 10 + start, 1.3) + 0.8 * _bump(hour, 15 + start, 1.6)
        shape *= 1.0 if weekday < 5 else 0.04
        return per_day / 86_400 * (3.5 * shape + 0.01)

    return rate


def _evening(rng: Random) -> Rate:
    per_day = _log_uniform(rng, 10, 2000)
    center = rng.uniform(19, 21)

    def rate(weekday: int, hour: float) -> float:
        past_midnight = hour + 24 if hour < 6 else hour
        shape = _bump(past_midnight, center, 1.7) * (1.5 if weekday >= 5 else 0.8)
        return per_day / 86_400 * (5.6 * shape + 0.02)

    return rate


def _batch(rng: Random, days: tuple[int, ...], from_hour: float, until_hour: float) -> Rate:
    """A batch at a multiple of 5 minutes, over in 5 to 15, and a few stray requests a day."""
    size = _log_uniform(rng, 10, 300)
    steps = rng.randint(1, 3)
    at = rng.randint(int(from_hour * 12), int(until_hour * 12) - 1)
    stray_per_day = _log_uniform(rng, 0.5, 10)

    def rate(weekday: int, hour: float) -> float:
        on = weekday in days and at <= round(hour * 12) < at + steps
        return stray_per_day / 86_400 + (size / (steps * _STEP_S) if on else 0.0)

    return rate


def _nightly(rng: Random) -> Rate:
    days = rng.choice(((0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5, 6)))
    return _batch(rng, days, 0.5, 5)


def _weekly(rng: Random) -> Rate:
    return _batch(rng, (rng.randint(0, 6),), 6, 20)


def _thin(rng: Random) -> Rate:
    per_day = _log_uniform(rng, 4, 72)
    return lambda weekday, hour: per_day / 86_400


_RATES: dict[str, Callable[[Random], Rate]] = {
    "office": _office,
    "evening": _evening,
    "nightly": _nightly,
    "weekly": _weekly,
    "thin": _thin,
}
