"""Demand: tells the scaler what there is to do, on every change and every second.

Changes are gathered until the event loop comes round, so that a burst makes one report. The reports
every second keep waiting times fresh and mend whatever a receiver has lost.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from glowplug.contracts import DemandReport, DemandSink

PERIOD_S = 1.0

log = logging.getLogger(__name__)


class Demand:
    """Reports to the sink. `read` makes a function's report, None where it has none."""

    def __init__(self, sink: DemandSink, *, read: Callable[[str], DemandReport | None]) -> None:
        self._sink = sink
        self._read = read
        self._changed: set[str] = set()

    def changed(self, function: str) -> None:
        """The function's demand is another one now."""
        if not self._changed:
            asyncio.get_running_loop().call_soon(self._flush)
        self._changed.add(function)

    async def report_forever(self, functions: Callable[[], Iterable[str]]) -> None:
        """Report all functions every second."""
        while True:
            await asyncio.sleep(PERIOD_S)
            for function in list(functions()):
                self._report(function)

    def last(self, report: DemandReport) -> None:
        """The last report of these counters: nothing is left to do, what was counted stays."""
        self._send(replace(report, in_flight=0, queued=0, oldest_wait_s=0.0))

    def _flush(self) -> None:
        changed, self._changed = self._changed, set()
        for function in changed:
            self._report(function)

    def _report(self, function: str) -> None:
        demand = self._read(function)
        if demand is not None:
            self._send(demand)

    def _send(self, demand: DemandReport) -> None:
        try:
            self._sink.report(demand)
        except Exception:  # the sink's trouble must not stop the reports, nor requests
            log.exception("a demand report for %s was not taken", demand.function)
