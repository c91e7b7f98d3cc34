"""The command line as a whole: help, usage errors, one-line errors, and how fast it starts."""

import subprocess
import sys

import pytest

from glowplug.cli.main import run

COMMANDS = ("serve", "deploy", "ls", "describe", "invoke", "chat", "rm", "seal", "snapshots")


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in COMMANDS)


@pytest.mark.parametrize("command", [*COMMANDS, "demo"])
def test_each_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    assert command in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fly"], "fly"),
        (["deploy", "smol"], "--model"),
        (["ls", "--colour"], "--colour"),
        (["serve", "--port", "70000"], "--port"),
        (["serve", "--public-url", ""], "not a URL that clients can call"),
        (["serve", "--public-url", "models.example.com"], "not a URL that clients can call"),
        (["serve", "--public-url", "ftp://models.example.com"], "not a URL"),
        (["serve", "--public-url", "https://"], "not a URL that clients can call"),
        (["serve", "--public-url", "https://host:port"], "not a URL that clients can call"),
        (["serve", "--public-url", "https://host/?a=b"], "not a URL that clients can call"),
        (["serve", "--public-url", "https://ho st"], "not a URL that clients can call"),
        (["deploy", "smol", "--model", ""], "the model's source is empty"),
        (["deploy", "smol", "--model", "  "], "the model's source is empty"),
        (["deploy", "smol", "--model", "m", "--max-seqs", "many"], "--max-seqs"),
        (["snapshots"], "ommand"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert said in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("http://127.0.0.1:9", "no Glowplug server answers at http://127.0.0.1:9; start one with"),
        ("127.0.0.1:8080", "http://"),
        ("http://[::1", "not a URL"),
    ],
)
def test_a_server_that_cannot_be_reached(
    endpoint: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ls", "--endpoint", endpoint]) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ")
    assert said in shown.err
    assert shown.err.count("\n") == 1


def test_the_endpoint_comes_from_the_environment_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GLOWPLUG_ENDPOINT", "http://127.0.0.1:9")
    assert run(["ls"]) == 1
    assert "127.0.0.1:9" in capsys.readouterr().err


def modules_after(code: str) -> set[str]:
    """What a fresh interpreter has imported after this code."""
    shown = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    )
    return {name.partition(".")[0] for name in shown.stdout.split()}


def test_listing_commands_imports_nothing_heavy() -> None:
    heavy = {"torch", "transformers", "numpy", "httpx", "rich", "pydantic", "uvicorn", "starlette"}
    assert not modules_after("import glowplug.cli.main") & heavy


def test_serve_imports_no_torch() -> None:
    assert not modules_after("import glowplug.serve") & {"torch", "transformers", "numpy", "gguf"}


def test_the_client_imports_no_part() -> None:
    parts = {"torch", "activator", "scaler", "snapshot", "runtime"}
    assert not modules_after("import glowplug.client") & parts
