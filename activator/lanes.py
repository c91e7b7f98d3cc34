"""Lanes: one lane a function, made at its first request and closed when the function is deleted."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from activator.demand import Demand
from activator.dispatch import Lane
from activator.functions import Functions
from glowplug.contracts import DemandReport, DemandSink, Endpoints, Registry
from glowplug.errors import NotFound

log = logging.getLogger(__name__)


class Lanes:
    """Owns the lanes; passes the changes of endpoints and registry on to them."""

    def __init__(
        self, *, functions: Functions, registry: Registry, endpoints: Endpoints, sink: DemandSink
    ) -> None:
        self.on_close: Callable[[str], None] = lambda function: None
        self._functions = functions
        self._endpoints = endpoints
        self._lanes: dict[str, Lane] = {}
        self._demand = Demand(sink, read=self._report_of)
        self._tasks: set[asyncio.Task[None]] = set()
        endpoints.subscribe(self._endpoints_changed)
        registry.subscribe(self._function_changed)

    def of(self, function: str) -> Lane:
        """The lane of a function that exists."""
        lane = self._lanes.get(function)
        if lane is None:
            lane = Lane(function, endpoints=self._endpoints, changed=self._demand.changed)
            self._lanes[function] = lane
        return lane

    def demands(self) -> list[DemandReport]:
        """What there is to do for each function that has been called."""
        return [lane.demand() for lane in self._lanes.values()]

    def start(self) -> None:
        """Begin the reports every second."""
        self._spawn(self._demand.report_forever(lambda: self._lanes))

    async def stop(self) -> None:
        """End what `start` and the lanes' changes have begun; report a last time."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for lane in self._lanes.values():
            self._demand.last(lane.report())

    def _report_of(self, function: str) -> DemandReport | None:
        lane = self._lanes.get(function)
        return None if lane is None else lane.report()

    def _endpoints_changed(self, function: str) -> None:
        if function in self._lanes:
            self._lanes[function].refresh()

    def _function_changed(self, function: str) -> None:
        if function in self._lanes:
            self._spawn(self._close_if_deleted(function))

    async def _close_if_deleted(self, function: str) -> None:
        try:
            await self._functions.get(function)
        except NotFound:
            lane = self._lanes.pop(function, None)
            if lane is not None:
                lane.close()
                self._demand.last(lane.report())
            self.on_close(function)
        except Exception:
            log.exception("could not look up %s, which has changed", function)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
