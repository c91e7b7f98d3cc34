"""docs/deploy.md says of each FunctionSpec field what the code does."""

import re
from pathlib import Path
from typing import Any

import pytest
from annotated_types import Ge, Le
from pydantic.fields import FieldInfo
from typer.main import get_command

from glowplug.cli.main import app
from glowplug.fields import parse_bytes, parse_duration
from glowplug.schedule import MAX_SCHEDULES, Schedule
from glowplug.spec import MAX_ADAPTERS, FunctionSpec, QueueLimits

DEPLOY_MD = Path(__file__).parents[3] / "docs" / "deploy.md"


def table_rows(title: str = "Fields") -> dict[str, list[str]]:
    """Field → [option, default, limits, meaning], as the table of a section has them."""
    fields = DEPLOY_MD.read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in fields.splitlines() if line.startswith("| `")]
    rows = [re.split(r"\s*\|\s*", line.strip("| ")) for line in lines]
    return {row[0].strip("`"): row[1:] for row in rows}


def spec_fields() -> dict[str, FieldInfo]:
    fields = {name: info for name, info in FunctionSpec.model_fields.items() if name != "queue"}
    return fields | {f"queue.{name}": info for name, info in QueueLimits.model_fields.items()}


def value_of(field: str, text: str) -> Any:
    """What a default or a limit in the table means."""
    text = text.strip("`")
    if field.endswith("_s"):
        return parse_duration(text)
    return parse_bytes(text) if field.endswith("bytes") else int(text)


def test_the_table_has_every_field_in_order() -> None:
    assert list(table_rows()) == list(spec_fields())


@pytest.mark.parametrize("field", spec_fields())
def test_defaults(field: str) -> None:
    info, shown = spec_fields()[field], table_rows()[field][1]
    if info.is_required():
        assert shown == "–"
    elif info.default is None:
        unset = {
            "sleep_s": "never",
            "draft_model": "none",
            "digest": "none",
            "idle_s": "learned",
            "cold_start_cost_s": "measured",
        }
        assert shown == unset.get(field, "the model's")
    elif info.default in ({}, []):
        assert shown == "none"
    elif isinstance(info.default, str):
        assert shown == f"`{info.default}`"
    else:
        assert value_of(field, shown) == info.default


def bounds(info: FieldInfo) -> tuple[Any, Any]:
    low = next((each.ge for each in info.metadata if isinstance(each, Ge)), None)
    return low, next((each.le for each in info.metadata if isinstance(each, Le)), None)


@pytest.mark.parametrize("field", spec_fields())
def test_limits(field: str) -> None:
    low, high = bounds(spec_fields()[field])
    shown = table_rows()[field][2]
    texts = ("name", "model", "digest", "dtype", "quantization", "speculation", "draft_model")
    if field in (*texts, "pooling", "predictive", "timezone", "accelerator"):
        assert (low, high) == (None, None)
    elif field == "adapters":
        assert shown == f"to {MAX_ADAPTERS}"
    elif field == "schedules":
        assert shown == f"to {MAX_SCHEDULES}"
    elif high is None:
        assert value_of(field, shown.removeprefix("from ")) == low
    elif low is None:
        assert value_of(field, shown.removeprefix("to ")) == high
    else:
        assert [value_of(field, part) for part in shown.split("–")] == [low, high]


@pytest.mark.parametrize("field", [name for name in spec_fields() if name != "name"])
def test_options(field: str) -> None:
    command = get_command(app).commands["deploy"]
    options = {option for parameter in command.params for option in parameter.opts}
    assert table_rows()[field][0].strip("`") in options


def test_the_fields_of_a_prewarm() -> None:
    rows = table_rows("Scheduled prewarms")
    assert list(rows) == list(Schedule.model_fields)
    options = {
        option
        for parameter in get_command(app).commands["prewarm"].commands["add"].params
        for option in parameter.opts
    }
    assert {row[0].strip("`") for row in rows.values()} - {"PREWARM"} <= options
    fields = Schedule.model_fields
    assert bounds(fields["min_replicas"]) == (1, 1000)
    shown = [parse_duration(part) for part in rows["duration"][2].split("–")]
    assert shown == list(bounds(fields["duration"]))


def test_revision_fields() -> None:
    said = DEPLOY_MD.read_text().split("## Revisions")[1].split("make the *revision*")[0]
    named = set(re.findall(r"`(\w+)`", said))
    base = FunctionSpec(name="a", model="/m")
    changed: dict[str, Any] = {
        "model": "/n",
        "digest": "sha256-" + "0" * 64,
        "dtype": "float32",
        "quantization": "int4",
        "max_context": 64,
        "max_seqs": 2,
        "kv_cache_bytes": 2**21,
        "speculation": "off",
        "draft_model": "/d",
        "prefix_snapshot_bytes": 0,
        "pooling": "mean",
        "adapters": {"a": "/a"},
        "adapter_cache_bytes": 2**21,
        "accelerator": "cpu",
        "min_replicas": 1,
        "max_replicas": 2,
        "activation_replicas": 2,
        "priority": 1,
        "idle_s": 1,
        "sleep_s": 1,
        "predictive": "on",
        "timezone": "Europe/Berlin",
        "start_timeout_s": 1,
        "request_timeout_s": 1,
        "queue": QueueLimits(max_requests=1),
        "schedules": [Schedule(name="a", cron="0 8 * * *", duration=60)],
    }
    assert named == {
        field
        for field, value in changed.items()
        if base.model_copy(update={field: value}).revision != base.revision
    }
