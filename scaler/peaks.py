"""Peaks: how many requests at once to be ready for in each five minutes of one function's future.

The answer is a quantile of the peaks of the last four weeks at that local time: of every day, of
the same kind of day (weekday or weekend), or of the same day of the week. Which of the three is
found out by what each would have foretold: the one with the least quantile loss (Koenker and
Bassett 1978). Everything loses 30% a week.

Pure: no clock, no I/O. Not shared between threads.
"""

from array import array
from collections import deque

from scaler.local_time import BINS_PER_DAY, BINS_PER_WEEK, local_time, slot_of

KEPT_DAYS = 28
_RING = KEPT_DAYS * BINS_PER_DAY
_NONE = 65_535  # no such bin on that day
_WEIGHT = tuple(0.7 ** (day / 7) for day in range(KEPT_DAYS + 1))
_LOSS_KEPT = 0.7 ** (1 / BINS_PER_WEEK)


class Peaks:
    """The peaks of one function, up to the last bin observed."""

    def __init__(self, timezone: str, *, quantile: float, over: int, ahead: int) -> None:
        """Peaks matter once one is over `over`; until then 0 is foretold. `ahead`: bins from the
        last one that is known to the one that is foretold.

        Raises zoneinfo.ZoneInfoNotFoundError (a KeyError)."""
        self._over = over
        self._matters = False
        self.quantile = quantile
        self._ahead = ahead
        self._local = local_time(timezone)
        self._ring = array("H", [_NONE]) * _RING  # by local bin
        self._bins = 0
        self._last = 0  # the latest local bin
        self._loss = [0.0, 0.0, 0.0]  # every day, same kind of day, same day of the week
        self._foretold: deque[tuple[int, int, int]] = deque()

    def observe(self, utc_bin: int, peak: int) -> None:
        """The next bin as it was; bins without a request too."""
        if len(self._foretold) == self._ahead:
            for period, value in enumerate(self._foretold.popleft()):
                short = peak - value
                loss = short * (self.quantile if short > 0 else self.quantile - 1)
                self._loss[period] = _LOSS_KEPT * self._loss[period] + loss
        peak = min(peak, _NONE - 1)
        self._matters = self._matters or peak > self._over
        local_bin = self._local.local_bin(utc_bin)
        if self._bins and local_bin <= self._last:  # the hour that comes twice
            before = self._ring[local_bin % _RING]
            peak = peak if before == _NONE else max(peak, before)
        elif self._bins:
            for skipped in range(self._last + 1, min(local_bin, self._last + BINS_PER_DAY)):
                self._ring[skipped % _RING] = _NONE
        self._ring[local_bin % _RING] = peak
        self._last = max(self._last, local_bin)
        self._bins += 1
        self._foretold.append(self._quantiles(utc_bin + self._ahead))

    def expected(self, utc_bin: int) -> int:
        """The quantile for a bin that is not known yet."""
        every_day, same_kind, same_day = self._loss
        quantiles = self._quantiles(utc_bin)
        if self._bins < 2 * BINS_PER_WEEK or every_day <= min(same_kind, same_day):
            return quantiles[0]
        return quantiles[1] if same_kind <= same_day else quantiles[2]

    def _quantiles(self, utc_bin: int) -> tuple[int, int, int]:
        """By every day, by the same kind of day, by the same day of the week; 0 where there is
        no such day."""
        if not self._matters:
            return 0, 0, 0
        local_bin = self._local.local_bin(utc_bin)
        day = slot_of(local_bin) // BINS_PER_DAY
        first = max(1, -(-(local_bin - self._last) // BINS_PER_DAY))  # days back to what is known
        known = min(KEPT_DAYS, (self._bins + local_bin - self._last - 1) // BINS_PER_DAY)
        samples = []
        totals = [0.0, 0.0, 0.0]
        for back in range(first, known + 1):
            peak = self._ring[(local_bin - back * BINS_PER_DAY) % _RING]
            if peak == _NONE:
                continue
            weight = _WEIGHT[back]
            kind = weight if ((day - back) % 7 >= 5) == (day >= 5) else 0.0
            same = weight if back % 7 == 0 else 0.0
            samples.append((peak, weight, kind, same))
            for period, each in enumerate((weight, kind, same)):
                totals[period] += each
        samples.sort()
        return (
            _quantile(samples, 1, self.quantile * totals[0]),
            _quantile(samples, 2, self.quantile * totals[1]),
            _quantile(samples, 3, self.quantile * totals[2]),
        )


def _quantile(samples: list[tuple[int, float, float, float]], period: int, wanted: float) -> int:
    """The least peak that has `wanted` of the weight at or under it."""
    if wanted <= 0:
        return 0
    reached = 0.0
    for sample in samples:
        reached += sample[period]
        if reached >= wanted * (1 - 1e-9):
            return sample[0]
    return samples[-1][0]
