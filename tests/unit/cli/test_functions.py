"""deploy, ls, describe and rm against the real control API."""

import json
from pathlib import Path

import pytest
from stand_ins import SNAPSHOT, Platform

from glowplug.cli.main import run
from glowplug.client import Client
from glowplug.contracts import FunctionState

Output = pytest.CaptureFixture[str]

OPTIONS = {
    "--idle": ("90s", "idle_s", 90.0),
    "--cold-start-cost": ("5m", "cold_start_cost_s", 300.0),
    "--sleep": ("10s", "sleep_s", 10.0),
    "--min": ("1", "min_replicas", 1),
    "--max": ("7", "max_replicas", 7),
    "--priority": ("-7", "priority", -7),
    "--dtype": ("float32", "dtype", "float32"),
    "--quantization": ("int4", "quantization", "int4"),
    "--max-seqs": ("3", "max_seqs", 3),
    "--max-context": ("512", "max_context", 512),
    "--speculation": ("off", "speculation", "off"),
    "--prefix-snapshot": ("8MiB", "prefix_snapshot_bytes", 8 * 2**20),
    "--pooling": ("mean", "pooling", "mean"),
    "--kv-cache": ("64MiB", "kv_cache_bytes", 64 * 2**20),
    "--adapter": ("a=/adapters/a", "adapters", {"a": "/adapters/a"}),
    "--adapter-cache": ("2MiB", "adapter_cache_bytes", 2**21),
    "--predictive": ("forecast", "predictive", "forecast"),
    "--timezone": ("Europe/Berlin", "timezone", "Europe/Berlin"),
    "--accelerator": ("cpu", "accelerator", "cpu"),
    "--start-timeout": ("1m", "start_timeout_s", 60.0),
    "--request-timeout": ("2m", "request_timeout_s", 120.0),
    "--queue-requests": ("9", "queue", {"max_requests": 9, "max_bytes": 64 * 2**20}),
    "--queue-bytes": ("2MiB", "queue", {"max_requests": 200, "max_bytes": 2**21}),
}


def deploy(name: str = "smol", *options: str) -> int:
    return run(["deploy", name, "--model", "/models/smol", *options])


@pytest.mark.parametrize("option", OPTIONS)
def test_each_option_of_deploy_sets_its_field(platform: Platform, option: str) -> None:
    text, field, value = OPTIONS[option]
    assert deploy("smol", option, text) == 0
    with Client(platform.endpoint) as client:
        assert client.function("smol")["spec"][field] == value


def test_activation_goes_with_a_maximum(platform: Platform) -> None:
    assert deploy("smol", "--activation", "2", "--max", "3") == 0
    with Client(platform.endpoint) as client:
        assert client.function("smol")["spec"]["activation_replicas"] == 2


def test_deploy_says_where_to_call(platform: Platform, capsys: Output) -> None:
    assert deploy() == 0
    url = f"{platform.endpoint}/f/smol/v1/chat/completions"
    assert capsys.readouterr().out == f"smol is ready: {url}\n"


def test_what_is_not_given_gets_its_default_again(platform: Platform) -> None:
    assert deploy("smol", "--idle", "5s") == 0
    assert deploy("smol") == 0
    with Client(platform.endpoint) as client:
        assert client.function("smol")["spec"]["idle_s"] is None


@pytest.mark.parametrize(
    ("source", "model"),
    [
        ("weights/m.gguf", "{here}/weights/m.gguf"),
        ("/models/m.gguf", "/models/m.gguf"),
        ("~/m.gguf", "{home}/m.gguf"),
        ("package://some_package/m.gguf", "package://some_package/m.gguf"),
    ],
)
def test_paths_are_made_absolute(
    platform: Platform, source: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert run(["deploy", "smol", "--model", source]) == 0
    with Client(platform.endpoint) as client:
        shown = client.function("smol")["spec"]["model"]
    assert shown == model.format(here=tmp_path, home="/home/somebody")


def test_deploy_waits_and_shows_what_it_waits_for(platform: Platform, capsys: Output) -> None:
    sealing = (FunctionState.SEALING, "its model is being sealed")
    platform.scaler.states = [sealing, sealing, sealing, (FunctionState.ZERO, None)]
    assert deploy() == 0
    shown = capsys.readouterr()
    assert shown.err == "smol: sealing\n"  # not once a look
    assert shown.out.startswith("smol is zero: ")


def test_deploy_with_min_waits_for_a_replica(platform: Platform, capsys: Output) -> None:
    starting = (FunctionState.STARTING, "a replica is starting")
    platform.scaler.states = [starting, starting, (FunctionState.READY, None)]
    assert deploy("smol", "--min", "1") == 0
    assert capsys.readouterr().out.startswith("smol is ready: ")


def test_deploy_without_waiting(platform: Platform, capsys: Output) -> None:
    platform.scaler.states = [(FunctionState.SEALING, None)]
    assert deploy("smol", "--no-wait") == 0
    assert capsys.readouterr().out.startswith("smol is sealing: ")


def test_deploy_of_a_bad_model(platform: Platform, capsys: Output) -> None:
    platform.scaler.states = [
        (FunctionState.SEALING, None),
        (FunctionState.FAILED, "/models/smol: no such file or folder"),
    ]
    assert deploy() == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == "error: smol: /models/smol: no such file or folder"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["Smol"], "error: name: use lower-case letters"),
        (["smol", "--idle", "soon"], "error: idle_s: 'soon' is not a duration"),
        (["smol", "--min", "4"], "error: min_replicas: 4 is over max_replicas 1"),
        (["a/b"], "error: name: 'a/b' cannot be a function's name"),
        (["..", "--no-wait"], "error: name: '..' cannot be a function's name"),
    ],
)
def test_a_wrong_spec_is_refused_in_one_line(
    platform: Platform, options: list[str], said: str, capsys: Output
) -> None:
    assert deploy(*options) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith(said)
    assert shown.err.count("\n") == 1


def test_ls(platform: Platform, capsys: Output) -> None:
    assert run(["ls"]) == 0
    assert "no functions" in capsys.readouterr().out
    deploy("beta")
    deploy("alpha", "--idle", "90s")
    capsys.readouterr()
    assert run(["ls"]) == 0
    header, first, *_ = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["NAME", "STATE", "REPLICAS", "IDLE"]
    assert first.split()[:4] == ["alpha", "ready", "1/1", "90s"]


def test_ls_for_scripts(platform: Platform, capsys: Output) -> None:
    deploy("smol")
    capsys.readouterr()
    assert run(["ls", "--json"]) == 0
    (function,) = json.loads(capsys.readouterr().out)
    assert function["name"] == "smol"
    assert function["state"] == "ready"
    assert function["replicas"]["ready"] == 1
    assert function["invoke_url"] == f"{platform.endpoint}/f/smol"


def test_describe(platform: Platform, capsys: Output) -> None:
    deploy("smol")
    platform.scaler.states = [(FunctionState.READY, "the revision before answers [still]")]
    capsys.readouterr()
    assert run(["describe", "smol"]) == 0
    shown = capsys.readouterr().out
    for said in (
        "the revision before answers [still]",
        "1/1",
        "1 request in flight",
        "2 queued",
        "/models/smol",
        SNAPSHOT[:40],
        f"{platform.endpoint}/f/smol/v1",
        "tokenizer",
        "61.0",
        "66.0",  # the sum
    ):
        assert said in shown
    assert "\x1b" not in shown  # no colours where nobody looks
    assert run(["describe", "smol", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["last_start_ms"] == {"map": 5.0, "tokenizer": 61.0}


def test_rm(platform: Platform, capsys: Output) -> None:
    deploy("smol")
    assert run(["rm", "smol"]) == 0
    assert capsys.readouterr().out.endswith("smol deleted\n")
    assert run(["rm", "smol"]) == 1
    assert capsys.readouterr().err.startswith("error: there is no function 'smol'")


def test_adapters_have_names_and_absolute_paths(
    platform: Platform, capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert deploy("smol", "--adapter", "a=here/a", "--adapter", "b=/b") == 0
    with Client(platform.endpoint) as client:
        adapters = client.function("smol")["spec"]["adapters"]
    assert adapters == {"a": str(tmp_path / "here/a"), "b": "/b"}
    for options in (["a"], ["=/a"], ["a="], ["a=/a", "--adapter", "a=/b"]):
        assert deploy("smol", "--adapter", *options) != 0
        assert "--adapter" in capsys.readouterr().err
