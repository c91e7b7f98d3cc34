"""The front door's metrics, and GET /metrics: those of all parts on this machine in one answer.

A request is counted once, at its end. Labels come from the registry and from our own code, never
from a client: a request for a function that there is not counts under the function "". Series of a
function end when it is deleted.
"""

from collections.abc import Callable, Iterable, Sequence

from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from activator.auth import require_admin
from activator.exchange import Exchange, exchange_of
from glowplug.contracts import DemandReport
from glowplug.metrics import CONTENT_TYPE, SECONDS, MetricsText, new_registry, text_of


class FrontDoorMetrics:
    """Counts requests. `demands` gives what each function has to do at this moment."""

    def __init__(self, demands: Callable[[], Iterable[DemandReport]]) -> None:
        self.registry = registry = new_registry()
        self._requests = Counter(
            "glowplug_requests",
            "Answered requests, by class of status code and how they found a replica.",
            ("function", "code", "start_kind"),
            registry=registry,
        )
        self._wait = Histogram(
            "glowplug_queue_wait_seconds",
            "From a request's place in line to a ready replica with room.",
            ("function",),
            buckets=SECONDS,
            registry=registry,
        )
        self._rejections = Counter(
            "glowplug_rejections",
            "Requests that the front door answered with an error, by its code.",
            ("function", "reason"),
            registry=registry,
        )
        registry.register(_Demand(demands))

    def observe(self, exchange: Exchange) -> None:
        """The request is over."""
        function = exchange.function or ""
        code = f"{(exchange.status or 500) // 100}xx"
        self._requests.labels(function, code, exchange.start_kind or "none").inc()
        if exchange.replica is not None:
            waited_ms = exchange.laps.sum_ms("assign", "start", "queue")
            self._wait.labels(function).observe(waited_ms / 1e3)
        if exchange.error is not None:
            reason = exchange.error.code or exchange.error.type
            self._rejections.labels(function, reason).inc()

    def forget(self, function: str) -> None:
        """The function is deleted."""
        for metric in (self._requests, self._wait, self._rejections):
            metric.remove_by_labels({"function": function})

    def text(self) -> str:
        """All of them in Prometheus' text format."""
        return text_of(self.registry)


class MetricsPage:
    """The endpoint. Needs an admin key, as the control API does."""

    def __init__(self, texts: Sequence[MetricsText]) -> None:
        self._texts = texts

    async def get(self, request: Request) -> Response:
        """GET /metrics."""
        require_admin(exchange_of(request.scope).identity)
        return Response("".join(text() for text in self._texts), media_type=CONTENT_TYPE)


class _Demand(Collector):
    """Gauges of each function that has been called."""

    def __init__(self, demands: Callable[[], Iterable[DemandReport]]) -> None:
        self._demands = demands

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client."""
        in_flight = _gauge("requests_in_flight", "Requests that replicas work on.")
        queued = _gauge("queue_depth", "Requests that wait for a replica.")
        oldest = _gauge("queue_oldest_wait_seconds", "How long the first in line has waited.")
        for demand in self._demands():
            in_flight.add_metric((demand.function,), demand.in_flight)
            queued.add_metric((demand.function,), demand.queued)
            oldest.add_metric((demand.function,), demand.oldest_wait_s)
        return in_flight, queued, oldest


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"glowplug_{name}", text, labels=("function",))
