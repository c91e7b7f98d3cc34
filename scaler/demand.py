"""DemandTable: the last report of the activator for each function.

On the event loop. The activator reports, the reconciler takes, the status page looks.
"""

from collections.abc import Callable
from dataclasses import dataclass

from glowplug.contracts import DemandReport
from scaler.plan import Demand


@dataclass
class _Last:
    report: DemandReport
    taken: int  # the arrivals counter when the plan last looked


class DemandTable:
    """Implements glowplug.contracts.DemandSink."""

    def __init__(self) -> None:
        self._last: dict[str, _Last] = {}
        self._subscribers: list[Callable[[str], None]] = []

    def subscribe(self, edge: Callable[[str], None]) -> None:
        """Call `edge(function)` when its queue goes from empty to not empty."""
        self._subscribers.append(edge)

    def report(self, demand: DemandReport) -> None:
        """Replaces the last report for that function. Never blocks."""
        last = self._last.get(demand.function)
        if last is None or demand.arrivals < last.report.arrivals:
            # The scaler or the activator is new: of what was counted before, only what still
            # waits is sure to be recent.
            self._last[demand.function] = _Last(demand, demand.arrivals - demand.queued)
            queued_before = 0
        else:
            queued_before = last.report.queued
            last.report = demand
        if demand.queued and not queued_before:
            for edge in self._subscribers:
                edge(demand.function)

    def take(self, function: str) -> Demand:
        """What plan is to know; counts the arrivals since the last call."""
        last = self._last.get(function)
        if last is None:
            return Demand()
        arrivals = last.report.arrivals - last.taken
        last.taken = last.report.arrivals
        return Demand(
            in_flight=last.report.in_flight,
            queued=last.report.queued,
            arrivals=arrivals,
            last_active_s=last.report.last_active_s,
        )

    def in_flight(self, function: str) -> int:
        """Requests that replicas work on."""
        last = self._last.get(function)
        return last.report.in_flight if last else 0

    def queued(self, function: str) -> int:
        """Requests that wait for a replica."""
        last = self._last.get(function)
        return last.report.queued if last else 0

    def forget(self, function: str) -> None:
        """The function is deleted."""
        self._last.pop(function, None)
