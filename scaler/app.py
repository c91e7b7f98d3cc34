"""Scaler: the parts of this package wired for one machine.

`glowplug serve` makes it, hands its `demand` and `endpoints` to the activator, and runs it on the
same event loop. Registry, fleet and sealer are handed in and stay the caller's to close.
"""

import asyncio
import time
from collections.abc import Callable, Mapping

from glowplug.contracts import DemandReport, Fleet, Registry, Sealer
from scaler.budget import Budget
from scaler.decisions import DecisionLog
from scaler.demand import DemandTable
from scaler.endpoints import ScalerEndpoints
from scaler.explain import ScalerExplanations
from scaler.forecasts import Forecasts, TrafficReader
from scaler.metrics import ScalerMetrics
from scaler.outlook import DEFAULT_START_S
from scaler.outlooks import Outlooks, start_s
from scaler.reconciler import Reconciler
from scaler.state import State
from scaler.usage import Present, Usage
from scaler.warm_pool import Pool


class Scaler:
    """One scaler; it can be started once."""

    def __init__(
        self,
        *,
        registry: Registry,
        fleet: Fleet,
        sealer: Sealer,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        tick_s: float = 1.0,
        retry_s: float = 1.0,
        soon_s: float = 0.01,
        standbys: Callable[[], Mapping[str, int]] = dict,
        record: Callable[[DemandReport, int], None] | None = None,
        traffic: TrafficReader | None = None,
        decisions: DecisionLog | None = None,
        pool: Pool | None = None,
        budget: Budget | None = None,
        weights_bytes: Callable[[str], int] = lambda _snapshot: 0,
    ) -> None:
        """`now` must be the clock of the demand reports, `wall` is Unix time. `retry_s` is the
        first wait after a failed call to the registry, the fleet or the sealer; `soon_s` how long
        it may take to learn that a function has become idle or busy. `standbys` is how
        many the fleet has ready by class of accelerator, for the metrics. `record` takes what
        DemandTable's does: the traffic history. `traffic` is what forecasts are made from; None:
        there are none. `decisions` is where those are told; by default in memory. `pool`,
        `budget` and `weights_bytes` are the reconciler's."""
        self._state = state = State()
        decisions = decisions or DecisionLog(wall=wall)
        self.forecasts = Forecasts(
            registry=registry, reader=traffic, start_s=self.start_s, now=wall
        )
        self._forecasting: asyncio.Task[None] | None = None
        usage = _usage_of(state, self, now)
        self.metrics = ScalerMetrics(
            state,
            standbys=standbys,
            usage=usage,
            decisions=decisions,
            forecast_error=self.forecasts.error,
        )
        self.demand = DemandTable(_and_touch(usage, record), now=now)
        outlooks = Outlooks(now=now, wall=wall, forecast=self.forecasts.outlook)
        self.endpoints = ScalerEndpoints(state, self.demand, now=now, prewarms=outlooks.runs)
        self.reconciler = Reconciler(
            registry=registry,
            fleet=fleet,
            sealer=sealer,
            state=state,
            demand=self.demand,
            endpoints=self.endpoints,
            metrics=self.metrics,
            decisions=decisions,
            outlooks=outlooks,
            now=now,
            tick_s=tick_s,
            retry_s=retry_s,
            soon_s=soon_s,
            pool=pool,
            budget=budget,
            weights_bytes=weights_bytes,
        )
        self.explanations = ScalerExplanations(
            state,
            demand=self.demand,
            decisions=decisions,
            prewarms=outlooks.runs,
            shared=lambda: self.reconciler.shared,
            now=now,
            wall=wall,
        )

    def start_s(self, function: str) -> float:
        """What a start of this function takes, on the cautious side."""
        tracked = self._state.functions.get(function)
        return DEFAULT_START_S if tracked is None else start_s(tracked)

    async def start(self) -> None:
        """Begin; returns once the functions and the running replicas are known."""
        await self.reconciler.start()
        self._forecasting = asyncio.create_task(self.forecasts.run(), name="forecasts")

    async def stop(self, *, drain_s: float | None = None) -> None:
        """End. Replicas go on, unless `drain_s` is given: then all are told to drain and end."""
        if self._forecasting is not None:
            self._forecasting.cancel()
            await asyncio.wait([self._forecasting])
        await self.reconciler.stop(drain_s=drain_s)


def _usage_of(state: State, scaler: Scaler, now: Callable[[], float]) -> Usage:
    """It is told of every change of replicas, and by `_and_touch` of those of requests."""
    usage = Usage(
        present=lambda name: Present(
            *state.replicas.loading(name), in_flight=scaler.demand.in_flight(name)
        ),
        deployed=lambda name: name in state.functions,
        now=now,
    )
    state.replicas.on_change = usage.touch
    return usage


def _and_touch(
    usage: Usage, record: Callable[[DemandReport, int], None] | None
) -> Callable[[DemandReport, int], None]:
    def recorded(report: DemandReport, peak: int) -> None:
        if record is not None:
            record(report, peak)
        usage.touch(report.function)

    return recorded
