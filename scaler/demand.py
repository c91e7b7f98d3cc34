"""DemandTable: the last report of each activator for each function, added up, and their sum over
the last minute.

On the event loop. The activators report, the reconciler takes, the status page looks.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from glowplug.contracts import DemandReport
from scaler.load import NO_LOAD, Load, observe
from scaler.plan import Demand

SILENT_S = 10.0  # reports come every second: one silent for so long is gone, and its requests too
MAX_STEP_S = 2.0  # when nothing came for longer, it may be this process that did not run


@dataclass(slots=True)
class _Heard:
    """The last report of one reporter."""

    report: DemandReport
    at_s: float


@dataclass(slots=True)
class _Sum:
    """One function: its reporters, and what they have together."""

    reporters: dict[str, _Heard] = field(default_factory=dict)
    in_flight: int = 0
    queued: int = 0
    arrivals: int = 0  # since the plan last looked
    load: Load = NO_LOAD

    @property
    def total(self) -> int:
        """Requests that there are."""
        return self.in_flight + self.queued


class DemandTable:
    """Implements glowplug.contracts.DemandSink.

    `record` gets every new report with the most requests that there were at once since the last
    one, over all reporters as far as known. `now` is the clock that the plan runs by, `clock` real
    time, in seconds.
    """

    def __init__(
        self,
        record: Callable[[DemandReport, int], None] | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._record = record
        self._now = now
        self._clock = clock
        self._looked_s = clock()
        self._lived_s = 0.0  # real time, without pauses of this process
        self._functions: dict[str, _Sum] = {}
        self._subscribers: list[Callable[[str], None]] = []
        self._turn_subscribers: list[Callable[[str], None]] = []

    def subscribe(self, edge: Callable[[str], None]) -> None:
        """Call `edge(function)` when a reporter's queue goes from empty to not empty."""
        self._subscribers.append(edge)

    def subscribe_turns(self, turned: Callable[[str], None]) -> None:
        """Call `turned(function)` when it has become idle, and when it is so no more."""
        self._turn_subscribers.append(turned)

    def report(self, demand: DemandReport) -> None:
        """Replaces that reporter's last report for that function, unless it is older. Never
        blocks."""
        total = self._functions.get(demand.function)
        heard = None if total is None else total.reporters.get(demand.reporter)
        was_idle = total is None or total.total == 0
        if total is None or heard is None:
            total = self._new_reporter(demand)
            queued_before = 0
        else:
            last = heard.report
            if demand.sequence < last.sequence:
                return
            queued_before = last.queued
            total.in_flight += demand.in_flight - last.in_flight
            total.queued += demand.queued - queued_before
            total.arrivals += demand.arrivals - last.arrivals
            heard.report = demand
            heard.at_s = self._now_s()
        self._observe(total)
        if self._record is not None:
            own = demand.in_flight + demand.queued
            self._record(demand, total.total - own + demand.peak)
        if demand.queued and not queued_before:
            for edge in self._subscribers:
                edge(demand.function)
        if (total.total == 0) is not was_idle:
            for turned in self._turn_subscribers:
                turned(demand.function)

    def take(self, function: str) -> Demand:
        """What plan is to know; counts the arrivals since the last call."""
        total = self._functions.get(function)
        if total is None:
            return Demand()
        self._forget_silent(total)
        arrivals, total.arrivals = total.arrivals, 0
        reports = [heard.report for heard in total.reporters.values()]
        finished = sum(report.finished for report in reports)
        return Demand(
            in_flight=total.in_flight,
            queued=total.queued,
            arrivals=arrivals,
            oldest_wait_s=max((report.oldest_wait_s for report in reports), default=0.0),
            last_active_s=max((report.last_active_s for report in reports), default=None),
            load=total.load,
            service_s=sum(report.service_s for report in reports) / finished if finished else None,
        )

    def load(self, function: str) -> Load:
        """Its demand over the last minute, by every report, also those that no plan saw."""
        total = self._functions.get(function)
        return total.load if total else NO_LOAD

    def in_flight(self, function: str) -> int:
        """Requests that replicas work on."""
        total = self._functions.get(function)
        return total.in_flight if total else 0

    def queued(self, function: str) -> int:
        """Requests that wait for a replica."""
        total = self._functions.get(function)
        return total.queued if total else 0

    def last_active_s(self, function: str) -> float | None:
        """The last arrival or completion that was reported."""
        total = self._functions.get(function)
        heard = total.reporters.values() if total else ()
        return max((each.report.last_active_s for each in heard), default=None)

    def forget(self, function: str) -> None:
        """The function is deleted."""
        self._functions.pop(function, None)

    def _new_reporter(self, demand: DemandReport) -> _Sum:
        for function, each in list(self._functions.items()):  # also those nobody takes any more
            self._forget_silent(each)
            if not each.reporters and not each.arrivals:
                del self._functions[function]
        total = self._functions.setdefault(demand.function, _Sum())
        total.reporters[demand.reporter] = _Heard(demand, self._now_s())
        total.in_flight += demand.in_flight
        total.queued += demand.queued
        # It or this scaler is new: of what it has counted, only what still waits is sure to be
        # recent.
        total.arrivals += demand.queued
        return total

    def _forget_silent(self, total: _Sum) -> None:
        since_s = self._now_s() - SILENT_S
        for reporter, heard in list(total.reporters.items()):
            if heard.at_s < since_s:
                del total.reporters[reporter]
                total.in_flight -= heard.report.in_flight
                total.queued -= heard.report.queued
                self._observe(total)

    def _observe(self, total: _Sum) -> None:
        total.load = observe(total.load, self._now(), total.total)

    def _now_s(self) -> float:
        now_s = self._clock()
        self._lived_s += min(now_s - self._looked_s, MAX_STEP_S)
        self._looked_s = now_s
        return self._lived_s
