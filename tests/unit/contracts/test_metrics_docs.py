"""docs/operations.md lists every metric, with its type and its labels."""

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from activator.metrics import FrontDoorMetrics
from glowplug.contracts import DemandReport
from glowplug.spec import FunctionSpec
from runtime.engine.limits import EngineStats
from runtime.server.metrics import ReplicaMetrics
from scaler.decisions import DecisionLog
from scaler.metrics import ScalerMetrics
from scaler.state import State, Tracked
from scaler.usage import Present, Usage
from tests.unit.contracts.test_api_docs import rows, section

OPERATIONS = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()


def front_door() -> CollectorRegistry:
    demand = DemandReport(
        function="f",
        reporter="a",
        sequence=0,
        in_flight=0,
        queued=0,
        oldest_wait_s=0,
        arrivals=0,
        last_active_s=0,
    )
    return FrontDoorMetrics(lambda: [demand]).registry


def scaler() -> CollectorRegistry:
    from glowplug.contracts import Function

    state = State()
    spec = FunctionSpec(name="f", model="/m")
    state.functions["f"] = Tracked(function=Function(spec=spec, generation=1))
    usage = Usage(present=lambda _: Present(0, 1, 0), deployed=lambda _: True, now=lambda: 0.0)
    metrics = ScalerMetrics(
        state,
        standbys=lambda: {"cpu": 1},
        usage=usage,
        decisions=DecisionLog(),
        forecast_error=lambda _: 1.0,
    )
    return metrics.registry


def replica() -> CollectorRegistry:
    metrics = ReplicaMetrics(function="f", revision="r", now=lambda: 0.0)
    figures = dict.fromkeys(EngineStats.__dataclass_fields__, 1)
    sizes = {"drafts_proposed": (1,), "drafts_accepted": (1,), "step_sizes": (0,) * 14}
    metrics.connect(lambda: EngineStats(**(figures | sizes)))  # type: ignore[arg-type]
    return metrics.registry


@pytest.mark.parametrize(
    ("title", "registry"), [("Front door", front_door), ("Scaler", scaler), ("Replicas", replica)]
)
def test_every_metric_is_listed(title: str, registry) -> None:
    documented = {
        row[0].strip("`"): (row[1], set(re.findall(r"`(\w+)`", row[2])))
        for row in rows(section(OPERATIONS, title))
    }
    collectors = registry()._collector_to_names
    real = {}
    for collector in collectors:
        labels = set(getattr(collector, "_labelnames", ()))
        for family in collector.collect():
            name = family.name + ("_total" if family.type == "counter" else "")
            seen = labels.union(*(sample.labels for sample in family.samples)) - {"le"}
            real[name] = (family.type, seen)
    assert documented == real
