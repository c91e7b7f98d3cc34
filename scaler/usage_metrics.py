"""Metrics of what replicas cost and why they were wanted; part of the scaler's."""

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from glowplug.explanation import Cause
from scaler.decisions import DecisionLog
from scaler.state import State
from scaler.usage import Usage


class UsageMetrics(Collector):
    """Of each deployed function; every cause is there from the start, at 0."""

    def __init__(
        self,
        state: State,
        *,
        usage: Usage,
        decisions: DecisionLog,
        forecast_error: Callable[[str], float | None],
    ) -> None:
        self._state = state
        self._usage = usage
        self._decisions = decisions
        self._forecast_error = forecast_error

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client."""
        sleeping = GaugeMetricFamily(
            "glowplug_replicas_sleeping",
            "Replicas that answer, and have given their KV memory back.",
            labels=("function",),
        )
        total = CounterMetricFamily(
            "glowplug_replica_seconds",
            "Time that replicas have existed, starts and drains included.",
            labels=("function",),
        )
        wasted = CounterMetricFamily(
            "glowplug_wasted_replica_seconds",
            "Of it: while they started, or their function had no request in flight.",
            labels=("function",),
        )
        decisions = CounterMetricFamily(
            "glowplug_decisions",
            "Changes of the number of wanted replicas.",
            labels=("function", "cause"),
        )
        error = GaugeMetricFamily(
            "glowplug_forecast_error_requests",
            "Foretold minus actual requests of the past hour, where there is a forecast.",
            labels=("function",),
        )
        for name in self._state.functions:
            entries = self._state.replicas.of(name)
            asleep = sum(entry.ready and entry.replica.asleep for entry in entries)
            sleeping.add_metric((name,), asleep)
            total_s, wasted_s = self._usage.of(name)
            total.add_metric((name,), total_s)
            wasted.add_metric((name,), wasted_s)
            changes = self._decisions.changes(name)
            for cause in Cause:
                decisions.add_metric((name, cause.value), changes.get(cause, 0))
            if (off := self._forecast_error(name)) is not None:
                error.add_metric((name,), off)
        yield from (sleeping, total, wasted, decisions, error)
