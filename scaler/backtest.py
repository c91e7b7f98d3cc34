"""Backtest: what the forecast would have done in the last week, and whether that was worth it.

Walks forward through a function's history; each five minutes are foretold from what was known two
bins before. Then the week is costed three ways, all with the same idle time:

- `nothing`: replicas come with the requests and leave after `idle_s`;
- `last`: as many replicas as the five minutes before needed (last value);
- `forecast`: never fewer than foretold.

cost = seconds that replicas are up and not needed + worth_s × cold starts. Costed by the minute,
from the highest peak in it, so `idle_s` under a minute counts as a minute. Pure: no clock, no I/O.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from scaler.forecast import Bin, Forecast, Terms, bins_of
from scaler.local_time import BIN_MINUTES, BIN_S, BINS_PER_DAY, BINS_PER_WEEK
from scaler.minutes import KEPT_MINUTES, Minute
from scaler.profiles import AHEAD

MINUTE_S = 60.0
LEAST_GAIN = 0.02  # share of the cost; less may be luck


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one way of scaling costs in the span that was tested."""

    unused_s: float  # of all replicas together: up, starting included, and not needed
    cold_starts: int
    worth_s: float

    @property
    def total_s(self) -> float:
        """In seconds of an unused replica."""
        return self.unused_s + self.worth_s * self.cold_starts


@dataclass(frozen=True, kw_only=True)
class Past:
    """Five minutes that were foretold, and how they were."""

    foretold: Bin
    arrivals: int
    peak: int


@dataclass(frozen=True, kw_only=True)
class Backtest:
    """The last week, foretold."""

    past: tuple[Past, ...]  # in order, without a gap; empty where too little is known
    nothing: Cost
    last: Cost
    forecast: Cost

    @property
    def pays(self) -> bool:
        """Whether the forecast beats doing nothing, a day at least having been foretold."""
        enough = len(self.past) >= BINS_PER_DAY
        return enough and self.forecast.total_s < (1 - LEAST_GAIN) * self.nothing.total_s


def backtest(
    minutes: Sequence[Minute], terms: Terms, *, until_minute: int, weeks: float = 1
) -> tuple[Backtest, Forecast]:
    """Learn from a function's minutes (in order) before `until_minute`, 8 weeks at most, and test
    the last of it. Also returns what was learned."""
    until_bin = until_minute // BIN_MINUTES
    minutes = [
        minute
        for minute in minutes
        if until_minute - KEPT_MINUTES <= minute.minute < until_bin * BIN_MINUTES
    ]
    forecast = Forecast(terms)
    if not minutes:
        return _costed((), minutes, terms), forecast
    from_bin = minutes[0].minute // BIN_MINUTES
    tested_from = until_bin - int(weeks * BINS_PER_WEEK)
    foretold: deque[Bin] = deque()
    past = []
    for utc_bin, arrivals, peak in bins_of(minutes, from_bin=from_bin, until_bin=until_bin):
        if foretold and foretold[0].utc_bin == utc_bin:
            past.append(Past(foretold=foretold.popleft(), arrivals=arrivals, peak=peak))
        forecast.learn(utc_bin, arrivals, peak)
        if forecast.ready and utc_bin + AHEAD >= tested_from:
            foretold.append(forecast.bin(utc_bin + AHEAD))
    return _costed(tuple(past), minutes, terms), forecast


def _costed(past: tuple[Past, ...], minutes: Sequence[Minute], terms: Terms) -> Backtest:
    if not past:
        none = Cost(unused_s=0.0, cold_starts=0, worth_s=terms.worth_s)
        return Backtest(past=(), nothing=none, last=none, forecast=none)
    first = past[0].foretold.utc_bin
    from_minute = first * BIN_MINUTES
    needs = [
        (minute.minute, min(terms.max_replicas, -(-minute.peak // terms.target)))
        for minute in minutes
        if minute.minute >= from_minute and minute.peak
    ]
    floors = [each.foretold.replicas for each in past]
    values = [min(terms.max_replicas, -(-each.peak // terms.target)) for each in past]
    return Backtest(
        past=past,
        nothing=cost(needs, [], terms, first_bin=first),
        last=cost(needs, [0, *values[:-1]], terms, first_bin=first, lead_s=0.0),
        forecast=cost(needs, floors, terms, first_bin=first, lead_s=terms.lead_s),
    )


def cost(
    needs: Sequence[tuple[int, int]],
    floors: Sequence[int],
    terms: Terms,
    *,
    first_bin: int,
    lead_s: float = 0.0,
) -> Cost:
    """Cost of needing so many replicas in these minutes, in order, with at least floors[i]
    replicas in bin first_bin + i, launched lead_s before it.

    The first replica, the second and so on are costed one by one: each is up from when it is needed
    until idle_s after, and while the floor asks for it.
    """
    unused_s, cold_starts = 0.0, 0
    most = max((replicas for _, replicas in needs), default=0)
    for rank in range(1, max(most, max(floors, default=0)) + 1):
        spans = _floor_spans(floors, rank, first_bin=first_bin, lead_s=lead_s)
        wanted = [minute * MINUTE_S for minute, replicas in needs if replicas >= rank]
        unused, cold = _rank_cost(wanted, spans, terms)
        unused_s += unused
        cold_starts += cold
    return Cost(unused_s=unused_s, cold_starts=cold_starts, worth_s=terms.worth_s)


def _floor_spans(
    floors: Sequence[int], rank: int, *, first_bin: int, lead_s: float
) -> list[tuple[float, float]]:
    """When the floor asks for a replica of that rank."""
    spans: list[tuple[float, float]] = []
    for utc_bin, replicas in enumerate(floors, first_bin):
        if replicas < rank:
            continue
        from_s, until_s = utc_bin * BIN_S - lead_s, (utc_bin + 1.0) * BIN_S
        if spans and from_s <= spans[-1][1]:
            spans[-1] = (spans[-1][0], until_s)
        else:
            spans.append((from_s, until_s))
    return spans


def _rank_cost(
    wanted: Sequence[float], spans: Sequence[tuple[float, float]], terms: Terms
) -> tuple[float, int]:
    """(unused seconds, cold starts) of one replica that is needed in the minutes that begin at
    `wanted` and asked for in `spans`."""
    keep_s = max(MINUTE_S, terms.idle_s)
    events = sorted(
        [(at_s, at_s + MINUTE_S + keep_s, True) for at_s in wanted]
        + [(from_s, until_s, False) for from_s, until_s in spans]
    )
    up_s, cold_starts, up_until = 0.0, 0, float("-inf")
    for from_s, until_s, needed in events:
        if from_s > up_until:
            cold_starts += needed
            up_s += terms.cold_start_s if needed else 0.0
            up_until = from_s
        up_s += max(0.0, until_s - up_until)
        up_until = max(up_until, until_s)
    return up_s - MINUTE_S * len(wanted), cold_starts
