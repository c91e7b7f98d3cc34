"""Foresight: the outlooks that scaler/forecasts.py would make of what has come so far.

As there, a function's forecast learns each five minutes, and is acted on where its `predictive`
says so: in `auto` where its backtest pays. To save time it is tested once a day and not four times,
its season renewed every six hours and not every one, its floors every quarter of an hour and not
every five minutes.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from glowplug.spec import FunctionSpec
from scaler.backtest import backtest
from scaler.forecast import Forecast, Terms, bins_of
from scaler.forecast_report import verdict_of
from scaler.forecasts import foretold
from scaler.local_time import BIN_MINUTES, BIN_S
from scaler.minutes import Minute
from scaler.outlook import Outlook
from scaler.simulate.replay import FunctionTraffic
from scaler.simulate.traffic import minutes_of

FLOORS_EVERY_S, SEASON_EVERY_S, TESTED_EVERY_S = 900.0, 6 * 3600.0, 86_400.0


@dataclass(slots=True)
class _Known:
    """Of one function."""

    minutes: Sequence[Minute]
    terms: Terms
    forecast: Forecast
    outlook: Outlook
    acts: bool = False
    tested_s: float = float("-inf")
    holds_until_s: float = float("-inf")


class Foresight:
    """Call it for the outlook of a function now, and how many seconds it holds. Times are Unix
    time, and must not go back."""

    def __init__(
        self,
        traffic: Sequence[FunctionTraffic],
        spec: FunctionSpec,
        *,
        start_s: float,
        from_s: float,
    ) -> None:
        """`spec` of all functions, but for their time zones. It foretells from `from_s` on."""
        self._spec = spec
        self._from_s = from_s
        self._known = []
        for each in traffic:
            terms = Terms.of(spec, start_s=start_s, timezone=each.timezone)
            self._known.append(
                _Known(
                    minutes=minutes_of(zip(each.arrivals_s, each.service_s, strict=True)),
                    terms=terms,
                    forecast=Forecast(terms),
                    outlook=Outlook(start_s=start_s),
                )
            )

    def __call__(self, function: int, now_s: float) -> tuple[Outlook, float]:
        known = self._known[function]
        if now_s < self._from_s:
            return known.outlook, self._from_s - now_s
        if now_s >= known.holds_until_s:
            moment_s = now_s // FLOORS_EVERY_S * FLOORS_EVERY_S
            self._renew(known, moment_s)
            known.holds_until_s = moment_s + FLOORS_EVERY_S
            if not known.acts:
                known.holds_until_s = moment_s + SEASON_EVERY_S
        return known.outlook, known.holds_until_s - now_s

    def _renew(self, known: _Known, now_s: float) -> None:
        until_bin = int(now_s // BIN_S)
        if now_s - known.tested_s >= TESTED_EVERY_S or not known.forecast.bins:
            past = known.minutes[: _first(known.minutes, until_bin)]
            until_minute = until_bin * BIN_MINUTES
            tested, known.forecast = backtest(past, known.terms, until_minute=until_minute)
            known.acts = verdict_of(self._spec, tested, known.forecast).acts
            known.tested_s = now_s
        else:
            from_bin = int(known.forecast.known_until_s // BIN_S)
            came = known.minutes[_first(known.minutes, from_bin) : _first(known.minutes, until_bin)]
            for each in bins_of(came, from_bin=from_bin, until_bin=until_bin):
                known.forecast.learn(*each)
        outlook = known.outlook
        if self._spec.predictive in ("off", "forecast") or not known.forecast.ready:
            return
        new = foretold(
            known.forecast,
            outlook.season,
            acts=known.acts,
            now_s=now_s,
            season_every_s=SEASON_EVERY_S,
        )
        known.outlook = replace(outlook, floors=new.floors, season=new.season)


def _first(minutes: Sequence[Minute], utc_bin: int) -> int:
    """The index of the first minute of a bin or after it."""
    return bisect_left(minutes, utc_bin * BIN_MINUTES, key=attrgetter("minute"))
