"""Forecast: how many replicas one function's past says it will need, as floors for plan().

For each five minutes ahead:

- one replica, where a request is likely enough: keeping it costs a second of a replica per second,
  and spares a cold start, worth `worth_s` of them, at the rate at which requests come. So it pays
  where rate × worth_s ≥ 1 (for a Poisson process this is the best there is). The rate is that of
  the chance of a request (`scaler.profiles`), not of the count: a batch of a hundred is one cold
  start;
- more, where the peaks at that time need more than one (`scaler.peaks`): a quantile of those of the
  last four weeks. It is lowered where fewer requests came in the last hours than foretold, not
  raised where more came: that is left to those who see them.

Floors only raise, never over max_replicas. Without a day of data there is no forecast, with under
two weeks it knows hours of the day only. `Forecast` is fed minutes in order and may be asked about
the future only. Pure: no clock, no I/O. Not shared between threads.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import accumulate
from zoneinfo import ZoneInfo

from glowplug.spec import FunctionSpec
from scaler.idle import cold_start_cost
from scaler.local_time import BIN_MINUTES, BIN_S, BINS_PER_DAY, BINS_PER_WEEK
from scaler.minutes import Minute
from scaler.outlook import MARGIN_S, Floor, Outlook, Source
from scaler.peaks import Peaks
from scaler.plan import target_per_replica
from scaler.profiles import AHEAD, Expected, Profiles
from scaler.rates import Season

MOST_AHEAD_S = 7 * 86_400.0
_ENOUGH_BINS = BINS_PER_DAY


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a forecast must know of its function beside its traffic."""

    timezone: str  # IANA
    target: int  # requests that one replica should have at once
    max_replicas: int
    idle_s: float  # how long a replica stays without a request anyway
    cold_start_s: float  # what a start takes, the slow ones
    worth_s: float = 300.0  # seconds of an idle replica that one cold start is worth

    @classmethod
    def of(cls, spec: FunctionSpec, *, start_s: float, timezone: str | None = None) -> "Terms":
        """Of a function whose starts take `start_s`, on the cautious side; in its own time zone by
        default."""
        worth_s = cold_start_cost(spec, Outlook(start_s=start_s))
        return cls(
            timezone=timezone or spec.timezone,
            target=target_per_replica(spec),
            max_replicas=spec.max_replicas,
            idle_s=worth_s if spec.idle_s is None else spec.idle_s,  # learned: as ski rental
            cold_start_s=start_s + MARGIN_S,
            worth_s=worth_s,
        )

    @property
    def lead_s(self) -> float:
        """How long before a bin a replica is launched: a start, and some time to spare, which is
        less where a cold start matters less."""
        return self.cold_start_s + min(60.0, 0.2 * self.worth_s)

    @property
    def quantile(self) -> float:
        """Of the peaks, to be ready for. One more replica, needed for a bin with probability p,
        costs the bin times 1 - p and spares worth_s times p; but a replica that was needed stays
        into the next bin anyway, so a cold start counts half."""
        return self.worth_s / (self.worth_s + 2 * BIN_S)


@dataclass(frozen=True, kw_only=True)
class Bin:
    """Five minutes ahead."""

    utc_bin: int
    expected: Expected
    peak: int  # requests at once to be ready for; 0 where one replica does
    replicas: int


class Forecast:
    """What is learned of one function, up to the last minute fed."""

    def __init__(self, terms: Terms) -> None:
        """Raises zoneinfo.ZoneInfoNotFoundError (a KeyError)."""
        self.terms = terms
        self._profiles = Profiles(terms.timezone)
        self._peaks = Peaks(terms.timezone, quantile=terms.quantile, over=terms.target, ahead=AHEAD)

    @property
    def known_until_s(self) -> float:
        """The end of the last bin that is known."""
        return float(self._profiles.next_bin * BIN_S)

    @property
    def bins(self) -> int:
        """How many are known."""
        return self._profiles.bins

    @property
    def ready(self) -> bool:
        """Whether a day is known."""
        return self._profiles.bins >= _ENOUGH_BINS

    def fits(self, terms: Terms) -> bool:
        """Whether what is learned would be the same by these terms."""
        mine = self.terms
        return (terms.timezone, terms.target, terms.quantile) == (
            mine.timezone,
            mine.target,
            mine.quantile,
        )

    def learn(self, utc_bin: int, arrivals: int, peak: int) -> None:
        """The next bin as it was. Raises ValueError for one that is not the next."""
        if self._profiles.bins and utc_bin != self._profiles.next_bin:
            raise ValueError(f"bin {utc_bin} is not the next one, {self._profiles.next_bin}")
        self._profiles.observe(utc_bin, arrivals)
        self._peaks.observe(utc_bin, peak)

    def bin(self, utc_bin: int) -> Bin:
        """What is foretold for a bin; nothing for one that is known already."""
        terms = self.terms
        if not self.ready or utc_bin < self._profiles.next_bin:
            nothing = Expected(chance=0.0, arrivals=0.0)
            return Bin(utc_bin=utc_bin, expected=nothing, peak=0, replicas=0)
        expected = self._profiles.expected(utc_bin)
        fewer = min(1.0, self._profiles.volume(utc_bin))
        peak = math.ceil(self._peaks.expected(utc_bin) * fewer)
        replicas = int(expected.hazard * terms.worth_s >= BIN_S)
        if peak > terms.target:
            replicas = math.ceil(peak / terms.target)
        return Bin(
            utc_bin=utc_bin,
            expected=expected,
            peak=peak,
            replicas=min(replicas, terms.max_replicas),
        )

    def floors(self, now_s: float, *, ahead_s: float = 3600.0) -> tuple[Floor, ...]:
        """What to raise to from now on, in Unix time: equal neighbours are one floor, and each
        begins a launch before its bins do."""
        first = max(int(now_s // BIN_S), self._profiles.next_bin)
        last = int((now_s + min(max(0.0, ahead_s), MOST_AHEAD_S) + self.terms.lead_s) // BIN_S)
        floors: list[Floor] = []
        for utc_bin in range(first, last + 1):
            replicas = self.bin(utc_bin).replicas
            until_s = float((utc_bin + 1) * BIN_S)
            if (
                floors
                and (run := floors[-1]).replicas == replicas
                and run.until_s == until_s - BIN_S
            ):
                floors[-1] = replace(run, until_s=until_s)
            elif replicas:
                floors.append(
                    Floor(
                        from_s=utc_bin * BIN_S - self.terms.lead_s,
                        until_s=until_s,
                        replicas=replicas,
                        reason="",
                        source=Source.FORECAST,
                    )
                )
        return tuple(replace(floor, reason=self._reason(floor)) for floor in floors)

    def chance(self, from_s: float, until_s: float) -> float:
        """That a request arrives between two moments of the future, 0 to 1."""
        return -math.expm1(-self.hazard(from_s, until_s))

    def hazard(self, from_s: float, until_s: float) -> float:
        """Integral of `rate` between two moments of the future."""
        until_s = min(until_s, from_s + MOST_AHEAD_S)
        total = 0.0
        while from_s < until_s:
            end_s = min(until_s, (from_s // BIN_S + 1) * BIN_S)
            total += self.rate(from_s) * (end_s - from_s)
            from_s = end_s
        return total

    def week(self, from_s: float) -> Season:
        """`rate` for the week from the bin of `from_s` on, as the idle policy takes it."""
        first = int(from_s // BIN_S)
        rates = [self.rate(utc_bin * BIN_S) for utc_bin in range(first, first + BINS_PER_WEEK)]
        sums = [0.0, *accumulate(rates)]
        return Season(start_s=float(first * BIN_S), step_s=float(BIN_S), rates=rates, sums=sums)

    def rate(self, at_s: float) -> float:
        """Requests a second that would explain how likely one is then: a batch counts as one, so
        it is the rate at which idle times end. 0 for what is known already, and under a day."""
        return self.bin(int(at_s // BIN_S)).expected.hazard / BIN_S

    def _reason(self, floor: Floor) -> str:
        zone = ZoneInfo(self.terms.timezone)
        until = datetime.fromtimestamp(floor.until_s, zone)
        return f"forecast until {until:%a %H:%M} {self.terms.timezone}"


def bins_of(
    minutes: Iterable[Minute], *, from_bin: int, until_bin: int
) -> Iterator[tuple[int, int, int]]:
    """(bin, arrivals, peak) of each bin in the range, from minutes in order; those outside it are
    left out."""
    arrivals = peak = 0
    at = from_bin
    for minute in minutes:
        utc_bin = minute.minute // BIN_MINUTES
        if utc_bin < at:
            continue
        if utc_bin >= until_bin:
            break
        while at < utc_bin:
            yield at, arrivals, peak
            arrivals = peak = 0
            at += 1
        arrivals += minute.arrivals
        peak = max(peak, minute.peak)
    while at < until_bin:
        yield at, arrivals, peak
        arrivals = peak = 0
        at += 1
