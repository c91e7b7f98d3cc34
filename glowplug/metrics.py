"""What the parts share of Prometheus metrics: a registry, its text, and bounds for times.

All metrics of Glowplug begin with `glowplug_`; docs/operations.md lists them. Labels only have
values of which there are few: functions, revisions, and words from our own code.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, disable_created_metrics, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MetricsText = Callable[[], str]
"""Metrics in Prometheus' text format, as they are now. On the event loop; must not wait."""

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bounds of times that a request waits for: from a warm first token to a start from afar."""


def new_registry() -> CollectorRegistry:
    """A registry of one part's own; nothing is registered globally."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a second gauge for each counter
    return CollectorRegistry(auto_describe=False)


def text_of(registry: CollectorRegistry) -> str:
    """All of a registry's metrics."""
    return generate_latest(registry).decode()
