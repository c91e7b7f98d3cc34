"""How far a forecast has been off in the last hour: a metric."""

from collections import deque
from collections.abc import Sequence

from scaler.backtest import Past
from scaler.forecast import Forecast
from scaler.local_time import BIN_S, BINS_PER_HOUR
from scaler.profiles import AHEAD


class LastHour:
    """Foretold and actual arrivals of the last twelve bins; each was foretold two bins before, as
    in a backtest, and the first ones after it from what was known then."""

    def __init__(self, past: Sequence[Past], forecast: Forecast) -> None:
        """`past` ends where the forecast's knowledge does."""
        known = ((each.foretold.expected.arrivals, each.arrivals) for each in past[-BINS_PER_HOUR:])
        self._bins: deque[tuple[float, int]] = deque(known, BINS_PER_HOUR)
        self._foretold: dict[int, float] = {}
        if forecast.ready:
            first = int(forecast.known_until_s // BIN_S)
            self._foretold = {
                utc_bin: forecast.bin(utc_bin).expected.arrivals
                for utc_bin in range(first, first + AHEAD)
            }

    def learn(self, forecast: Forecast, utc_bin: int, arrivals: int, peak: int) -> None:
        """What came in the next bin, for this and for the forecast."""
        expected = self._foretold.pop(utc_bin, None)
        if expected is not None:
            self._bins.append((expected, arrivals))
        forecast.learn(utc_bin, arrivals, peak)
        if forecast.ready:
            ahead = utc_bin + AHEAD
            self._foretold[ahead] = forecast.bin(ahead).expected.arrivals

    @property
    def error(self) -> float | None:
        """Expected minus actual arrivals; None where nothing has been foretold."""
        return sum(expected - came for expected, came in self._bins) if self._bins else None
