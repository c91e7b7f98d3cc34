"""FunctionSpec: durations, sizes, bounds, and messages that name the field and the fix."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glowplug.errors import InvalidSpec
from glowplug.fields import parse_bytes, parse_duration
from glowplug.spec import FunctionSpec, QueueLimits, parse_spec

MINIMAL = {"name": "smol", "model": "/models/smol.gguf"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("250ms", 0.25),
        ("1.5s", 1.5),
        ("2d", 172800.0),
        (" 45 ", 45.0),
        (7, 7),
    ],
)
def test_durations(text: object, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "five minutes", "5 m", "-5s", "5s!", "1h 30m", "1e3"])
def test_what_is_not_a_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="30s, 5m or 1h30m"):
        parse_duration(text)


@settings(derandomize=True)
@given(st.integers(0, 23), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_duration_parts_add_up(hours: int, minutes: int, seconds: int, millis: int) -> None:
    text = f"{hours}h{minutes}m{seconds}s{millis}ms"
    expected = hours * 3600 + minutes * 60 + seconds + millis / 1000
    assert parse_duration(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "size"),
    [("64MiB", 64 * 2**20), ("1.5 GiB", 3 * 2**29), ("512", 512), ("2KiB", 2048), (99, 99)],
)
def test_sizes(text: object, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "64MB", "MiB", "-1MiB", "1 TiB"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="64MiB"):
        parse_bytes(text)


def test_defaults_scale_to_zero() -> None:
    spec = parse_spec(MINIMAL)
    assert (spec.min_replicas, spec.max_replicas, spec.idle_s) == (0, 1, None)
    assert spec.queue == QueueLimits(max_requests=200, max_bytes=64 * 2**20)


@pytest.mark.parametrize(
    ("change", "param", "fix"),
    [
        ({"name": "Not_A_Label"}, "name", "lower-case letters"),
        ({"name": "-x"}, "name", "starting and ending"),
        ({"name": "x" * 64}, "name", "63 characters"),
        ({"name": "ok\n"}, "name", "lower-case letters"),
        ({"model": ""}, "model", "is empty; name a folder"),
        ({"model": " \n"}, "model", "is empty; name a folder"),
        ({"model": "/models/\0"}, "model", "give a folder, a .gguf file"),
        ({"model": "https://huggingface.co/x/y"}, "model", "https:// is no kind of source"),
        ({"model": "hf://x/y"}, "model", "hf:// is no kind of source"),
        ({"model": "s3://b/m.bin"}, "model", "is a Python pickle"),
        ({"model": "S3://b/m"}, "model", "or s3://BUCKET/PREFIX"),
        ({"model": "/models/pytorch_model.bin"}, "model", "can run code when read"),
        ({"model": "/models/Model.PT"}, "model", "can run code when read"),
        ({"digest": "sha256-12"}, "digest", "64 hexadecimal digits"),
        ({"digest": "sha512-" + "0" * 64}, "digest", "snapshots ls --json"),
        ({"digest": "sha256-" + "A" * 64}, "digest", "64 hexadecimal digits"),
        ({"dtype": "float8"}, "dtype", "'bfloat16' or 'float32'"),
        ({"quantization": "int2"}, "quantization", "'none', 'int8' or 'int4'"),
        ({"quantization": "int8", "dtype": "float32"}, "quantization", "drop one of the two"),
        ({"idle_s": "soon"}, "idle_s", "30s, 5m or 1h30m"),
        ({"idle_s": -1}, "idle_s", "greater than or equal to 0"),
        ({"idle_s": float("nan")}, "idle_s", "30s, 5m or 1h30m"),
        ({"start_timeout_s": 0}, "start_timeout_s", "greater than 0"),
        ({"max_seqs": 0}, "max_seqs", "greater than or equal to 1"),
        ({"kv_cache_bytes": "64MB"}, "kv_cache_bytes", "64MiB"),
        ({"queue": {"max_requests": 0}}, "queue.max_requests", "greater than or equal to 1"),
        ({"min_replicas": 3, "max_replicas": 2}, "min_replicas", "lower min_replicas or raise"),
        ({"activation_replicas": 0}, "activation_replicas", "greater than or equal to 1"),
        (
            {"activation_replicas": 3, "max_replicas": 2},
            "activation_replicas",
            "is over max_replicas 2; lower activation_replicas or raise",
        ),
        ({"priority": 101}, "priority", "less than or equal to 100"),
        ({"priority": -101}, "priority", "greater than or equal to -100"),
        ({"replicas": 3}, "replicas", "known ones are name, model"),
        ({"adapters": {"a:b": "/a"}}, "adapters", "letters, digits"),
        ({"adapters": {"": "/a"}}, "adapters", "letters, digits"),
        ({"adapters": {"../a": "/a"}}, "adapters", "letters, digits"),
        ({"adapters": {"a": ""}}, "adapters", "give the folder"),
        ({"adapters": {"a": "/x\0y"}}, "adapters", "give the folder"),
        ({"adapters": {f"a{n}": "/a" for n in range(129)}}, "adapters", "at most 128"),
        ({"queue": {"length": 3}}, "queue.length", "known ones are max_requests, max_bytes"),
    ],
)
def test_errors_name_the_field_and_the_fix(change: dict[str, Any], param: str, fix: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(MINIMAL | change)
    assert caught.value.param == param
    assert caught.value.message.startswith(f"{param}: ")
    assert fix in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("missing", ["name", "model"])
def test_required_fields(missing: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_spec({key: value for key, value in MINIMAL.items() if key != missing})
    assert caught.value.param == missing


@pytest.mark.parametrize("data", [None, [], "smol", 3])
def test_what_is_not_an_object_is_refused(data: object) -> None:
    with pytest.raises(InvalidSpec, match="a JSON object with at least name and model"):
        parse_spec(data)


SERVING = {
    "model": "/other.gguf",
    "digest": "sha256-" + "0" * 64,
    "dtype": "float32",
    "quantization": "int4",
    "max_context": 512,
    "max_seqs": 3,
    "kv_cache_bytes": 2**21,
    "speculation": "off",
    "draft_model": "/draft.gguf",
    "prefix_snapshot_bytes": 0,
    "pooling": "mean",
    "adapters": {"pirate": "/adapters/pirate"},
    "adapter_cache_bytes": 2**22,
    "accelerator": "nvidia-h200",
}
SCALING = {
    "min_replicas": 1,
    "max_replicas": 9,
    "activation_replicas": 2,
    "priority": -7,
    "idle_s": 5,
    "cold_start_cost_s": 5,
    "sleep_s": 2,
    "predictive": "off",
    "timezone": "Asia/Tokyo",
    "start_timeout_s": 5,
    "request_timeout_s": 5,
    "queue": {"max_requests": 5},
    "schedules": [{"name": "morning", "cron": "0 8 * * 1-5", "duration": "2h"}],
}


@pytest.mark.parametrize(("field", "value"), SERVING.items())
def test_what_a_replica_cannot_change_makes_a_revision(field: str, value: object) -> None:
    assert parse_spec(MINIMAL | {field: value}).revision != parse_spec(MINIMAL).revision


@pytest.mark.parametrize(("field", "value"), SCALING.items())
def test_scaling_settings_keep_the_revision(field: str, value: object) -> None:
    roomy = MINIMAL | {"max_replicas": 9}
    assert parse_spec(roomy | {field: value}).revision == parse_spec(MINIMAL).revision


def test_each_field_is_either_serving_or_scaling() -> None:
    assert {"name"} | SERVING.keys() | SCALING.keys() == FunctionSpec.model_fields.keys()


def test_json_round_trip() -> None:
    spec = parse_spec(MINIMAL | SERVING | SCALING | {"dtype": "bfloat16"})
    assert FunctionSpec.model_validate_json(spec.model_dump_json()) == spec
