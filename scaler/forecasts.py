"""Forecasts: what is foretold of every function, kept up to date, and whether it is acted on.

On the event loop; learning and testing run in a worker thread, one function at a time. The traffic
history is handed in as a `TrafficReader` (`scaler.traffic.Traffic` is one).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from glowplug.contracts import Function, Registry
from glowplug.spec import FunctionSpec
from scaler.backtest import Backtest, backtest
from scaler.forecast import Forecast, Terms, bins_of
from scaler.forecast_error import LastHour
from scaler.forecast_report import report, verdict_of
from scaler.local_time import BIN_MINUTES, BIN_S
from scaler.minutes import KEPT_MINUTES, Minute
from scaler.outlook import DEFAULT_START_S, Outlook
from scaler.rates import Season

AHEAD_S = 2 * 3600.0  # floors reach so far, and end by themselves if nothing renews them
TESTED_EVERY_S = 6 * 3600.0
SEASON_EVERY_S = 3600.0
GRACE_S = 5.0  # for the last minute of a bin to be written

_log = logging.getLogger(__name__)


class TrafficReader(Protocol):
    """A function's past."""

    async def read(self, function: str, from_minute: int, until_minute: int) -> Sequence[Minute]:
        """Its minutes in [from_minute, until_minute), in order; those without a request may be
        missing."""
        ...


@dataclass(frozen=True, kw_only=True)
class _Learned:
    """Of one function, as of the end of a bin."""

    forecast: Forecast
    backtest: Backtest
    tested_s: float
    last_hour: LastHour
    season: Season | None = None  # as it was foretold last


class Forecasts:
    """Of all functions. `run` keeps them up to date; `outlook` is what the scaler acts on."""

    def __init__(
        self,
        *,
        registry: Registry,
        reader: TrafficReader | None = None,
        start_s: Callable[[str], float] = lambda _name: DEFAULT_START_S,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`start_s` is what a start of a function takes, on the cautious side; `now` Unix time."""
        self._registry = registry
        self._reader = reader
        self._start_s = start_s
        self._now = now
        self._changed = asyncio.Event()
        registry.subscribe(lambda _function: self._changed.set())
        self._learned: dict[str, _Learned] = {}
        self._outlooks: dict[str, Outlook] = {}
        self._rewritten: set[str] = set()  # functions whose past is another since it was learned

    def outlook(self, function: str) -> Outlook | None:
        """What to raise the function to in the next two hours, and its season, in Unix time; None
        where its forecast is not acted on."""
        return self._outlooks.get(function)

    def error(self, function: str) -> float | None:
        """Foretold minus actual requests of the past hour, where it is kept up to date."""
        learned = self._learned.get(function)
        return learned.last_hour.error if learned else None

    def past_changed(self, function: str) -> None:
        """Its history was written anew: what was learned of it no longer holds."""
        self._rewritten.add(function)
        self._changed.set()

    async def run(self) -> None:
        """Update all after each five minutes and each change of a function, until cancelled."""
        while True:
            self._changed.clear()
            try:
                await self.update_all()
            except Exception:
                _log.exception("forecasts are not up to date; they are tried again")
            now_s = self._now()
            with suppress(TimeoutError):
                async with asyncio.timeout((now_s // BIN_S + 1) * BIN_S + GRACE_S - now_s):
                    await self._changed.wait()

    async def update_all(self) -> None:
        """Learn what has come since the last call, and forget functions that are gone. A function
        that fails is logged and has no floors."""
        functions = await self._registry.list()
        for name in self._learned.keys() - {function.spec.name for function in functions}:
            del self._learned[name]
        rewritten, self._rewritten = self._rewritten, set()
        outlooks: dict[str, Outlook] = {}
        for function in functions:
            name, spec = function.spec.name, function.spec
            if self._reader is None or spec.predictive in ("off", "forecast"):
                self._learned.pop(name, None)
                continue
            before = None if name in rewritten else self._learned.get(name)
            try:
                learned, outlook = await self._update(spec, self._reader, before)
            except Exception:
                _log.exception("%s: its forecast failed; it is scaled without one", name)
                self._learned.pop(name, None)
            else:
                self._learned[name] = learned
                if outlook is not None:
                    outlooks[name] = outlook
        self._outlooks = outlooks

    async def report(self, function: Function, hours: int) -> Mapping[str, Any]:
        """What `glowplug forecast` and GET /v1/functions/NAME/forecast show, `hours` ahead: made
        anew from the whole history."""
        spec, now_s = function.spec, self._now()
        tested = forecast = None
        if self._reader is not None and spec.predictive != "off":
            learned = await self._learn(spec, self._reader, now_s)
            tested, forecast = learned.backtest, learned.forecast
        return await asyncio.to_thread(
            report,
            spec,
            verdict_of(spec, tested, forecast),
            forecast=forecast,
            backtest=tested,
            hours=hours,
            now_s=now_s,
        )

    async def _update(
        self, spec: FunctionSpec, reader: TrafficReader, before: _Learned | None
    ) -> tuple[_Learned, Outlook | None]:
        now_s, terms = self._now(), Terms.of(spec, start_s=self._start_s(spec.name))
        if (
            before is None
            or not before.forecast.known_until_s
            or not before.forecast.fits(terms)
            or now_s - before.tested_s >= TESTED_EVERY_S
        ):
            learned = await self._learn(spec, reader, now_s)
        else:
            learned = before
            learned.forecast.terms = terms
            from_bin, until_bin = int(before.forecast.known_until_s // BIN_S), int(now_s // BIN_S)
            if until_bin > from_bin:
                minutes = await reader.read(
                    spec.name, from_bin * BIN_MINUTES, until_bin * BIN_MINUTES
                )
                for each in bins_of(minutes, from_bin=from_bin, until_bin=until_bin):
                    learned.last_hour.learn(learned.forecast, *each)
        if not learned.forecast.ready:
            return learned, None
        acts = verdict_of(spec, learned.backtest, learned.forecast).acts
        outlook = await asyncio.to_thread(
            foretold, learned.forecast, learned.season, acts=acts, now_s=now_s
        )
        return replace(learned, season=outlook.season), outlook

    async def _learn(self, spec: FunctionSpec, reader: TrafficReader, now_s: float) -> _Learned:
        terms = Terms.of(spec, start_s=self._start_s(spec.name))
        until_minute = int(now_s // BIN_S) * BIN_MINUTES
        minutes = await reader.read(spec.name, until_minute - KEPT_MINUTES, until_minute)
        tested, forecast = await asyncio.to_thread(
            backtest, minutes, terms, until_minute=until_minute
        )
        return _Learned(
            forecast=forecast,
            backtest=tested,
            tested_s=now_s,
            last_hour=LastHour(tested.past, forecast),
        )


def foretold(
    forecast: Forecast,
    season: Season | None,
    *,
    acts: bool,
    now_s: float,
    season_every_s: float = SEASON_EVERY_S,
) -> Outlook:
    """What a forecast that is ready tells plan(), in Unix time; `season` is the last one.

    The season only tells the learned idle time when calls begin. What is to be started ahead of
    them has to pay: there are floors only where the forecast `acts`.
    """
    if season is None or now_s - season.start_s >= season_every_s:
        season = forecast.week(now_s)
    floors = forecast.floors(now_s, ahead_s=AHEAD_S) if acts else ()
    return Outlook(floors=floors, season=season)
