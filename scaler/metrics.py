"""The scaler's metrics: how many replicas there should be and are, and how starts went.

Gauges are read from the state when the metrics are; starts are observed by the launcher. On the
event loop. Series of a function end when it is deleted.
"""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from glowplug.contracts import Replica, ReplicaState
from glowplug.metrics import SECONDS, new_registry, text_of
from scaler.decisions import DecisionLog
from scaler.state import State
from scaler.usage import Usage
from scaler.usage_metrics import UsageMetrics

_STAGE_SECONDS = (0.001, 0.0025, 0.005, *SECONDS[1:-1])


class ScalerMetrics:
    """What one scaler measures. `standbys` says how many its fleet has ready, by class of
    accelerator."""

    def __init__(
        self,
        state: State,
        *,
        standbys: Callable[[], Mapping[str, int]],
        usage: Usage,
        decisions: DecisionLog,
        forecast_error: Callable[[str], float | None] = lambda _: None,
    ) -> None:
        self.usage = usage
        self.registry = registry = new_registry()
        self._starts = Histogram(
            "glowplug_start_seconds",
            "Cold starts: from the assignment of a replica to its first answer.",
            ("function", "kind"),
            buckets=SECONDS,
            registry=registry,
        )
        self._stages = Histogram(
            "glowplug_start_stage_seconds",
            "The parts of cold starts.",
            ("function", "stage"),
            buckets=_STAGE_SECONDS,
            registry=registry,
        )
        self._failures = Counter(
            "glowplug_start_failures",
            "Replicas that ended before they were ready.",
            ("function",),
            registry=registry,
        )
        registry.register(_Standbys(standbys))
        registry.register(_Replicas(state))
        registry.register(
            UsageMetrics(state, usage=usage, decisions=decisions, forecast_error=forecast_error)
        )

    def started(self, replica: Replica, *, took_s: float) -> None:
        """A replica is ready."""
        self._starts.labels(replica.function, replica.start_kind.value).observe(took_s)
        for stage, ms in replica.stages_ms.items():
            self._stages.labels(replica.function, stage).observe(ms / 1e3)

    def start_failed(self, function: str) -> None:
        """A replica will not be ready."""
        self._failures.labels(function).inc()

    def forget(self, function: str) -> None:
        """The function is deleted."""
        for metric in (self._starts, self._stages, self._failures):
            metric.remove_by_labels({"function": function})
        self.usage.forget(function)

    def text(self) -> str:
        """All of them in Prometheus' text format."""
        return text_of(self.registry)


class _Standbys(Collector):
    """The fleet's standbys."""

    def __init__(self, standbys: Callable[[], Mapping[str, int]]) -> None:
        self._standbys = standbys

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client."""
        family = GaugeMetricFamily(
            "glowplug_standbys", "Warm processes that wait for a model.", labels=("accelerator",)
        )
        for accelerator, ready in self._standbys().items():
            family.add_metric((accelerator,), ready)
        yield family


class _Replicas(Collector):
    """Gauges of each function."""

    def __init__(self, state: State) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client."""
        desired = _gauge("desired", "Replicas that there should be.")
        by_state = {
            ReplicaState.READY: _gauge("ready", "Replicas that answer."),
            ReplicaState.STARTING: _gauge("starting", "Replicas that start."),
            ReplicaState.DRAINING: _gauge("draining", "Replicas that finish what they have begun."),
        }
        for name, tracked in self._state.functions.items():
            desired.add_metric((name,), tracked.desired)
            states = [entry.replica.state for entry in self._state.replicas.of(name)]
            for state, family in by_state.items():
                family.add_metric((name,), states.count(state))
        yield desired
        yield from by_state.values()


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"glowplug_replicas_{name}", text, labels=("function",))
