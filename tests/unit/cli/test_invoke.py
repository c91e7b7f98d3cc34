"""invoke and chat: what is sent, what is shown, and how errors and ends look."""

import io
import json

import pytest
from stand_ins import Platform

from glowplug.cli.main import run
from glowplug.contracts import FunctionState

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def deployed(platform: Platform, capsys: Output) -> None:
    run(["deploy", "smol", "--model", "/models/smol"])
    capsys.readouterr()


def test_invoke_streams_the_answer(platform: Platform, capsys: Output) -> None:
    assert run(["invoke", "smol", "Hi", "--max-tokens", "5", "--system", "Be brief."]) == 0
    assert capsys.readouterr().out == "Hello\n"
    (body,) = platform.conversations
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    assert body["max_tokens"] == 5
    assert body["stream"] is True
    assert "temperature" not in body


def test_invoke_reads_stdin(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a long\nprompt"))
    assert run(["invoke", "smol", "-"]) == 0
    assert platform.conversations[0]["messages"][0]["content"] == "a long\nprompt"


def test_invoke_shows_where_the_time_went(capsys: Output) -> None:
    assert run(["invoke", "smol", "Hi", "--timing"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = {row[0]: row[1:] for row in rows if row}
    assert shown["prefill"] == ["7.0"]
    assert shown["engine-queue"] == ["1.0"]
    assert {"admission", "connect", "tokens", "tokens/s"} <= shown.keys()
    assert float(shown["first"][1]) > 0


def test_invoke_for_scripts(capsys: Output) -> None:
    assert run(["invoke", "smol", "Hi", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["text"] == "Hello"
    assert answer["finish_reason"] == "stop"
    assert answer["completion_tokens"] == 2
    assert answer["start_kind"] == "warm"
    assert answer["stages_ms"]["prefill"] == 7.0
    assert answer["total_ms"] >= answer["ttft_ms"] > 0


def test_an_error_inside_the_stream(platform: Platform, capsys: Output) -> None:
    platform.answers.append(["Hel", "!"])
    assert run(["invoke", "smol", "Hi"]) == 1
    shown = capsys.readouterr()
    assert shown.out == "Hel\n"
    assert shown.err.startswith("error: the replica broke off")
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize("command", [["invoke", "nobody", "Hi"], ["chat", "nobody"]])
def test_a_function_that_does_not_exist(command: list[str], capsys: Output) -> None:
    assert run(command) == 1
    assert "nobody" in capsys.readouterr().err


def test_chat_remembers_the_conversation(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n\ntwo\n"))
    platform.answers += [["fi", "rst"], ["second"]]
    assert run(["chat", "smol", "--system", "S"]) == 0
    assert capsys.readouterr().out == "first\nsecond\n"
    assert [message["content"] for message in platform.conversations[1]["messages"]] == [
        "S",
        "one",
        "first",
        "two",
    ]


def test_chat_goes_on_after_an_error(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n"))
    platform.answers += [["!"], ["second"]]
    assert run(["chat", "smol"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "second\n"
    assert shown.err.startswith("error: ")
    assert [message["content"] for message in platform.conversations[1]["messages"]] == ["two"]


def test_a_failed_function_says_why(platform: Platform, capsys: Output) -> None:
    platform.scaler.states = [(FunctionState.FAILED, "its model is gone")]
    platform.scaler.ready = False
    run(["deploy", "other", "--model", "/models/other", "--no-wait"])
    capsys.readouterr()
    assert run(["invoke", "other", "Hi"]) == 1
    assert "its model is gone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["invoke", "smol", "\udcff bad"], "not valid UTF-8"),
        (["invoke", "smol", "hi", "--temperature", "nan"], "not finite"),
        (["ls", "--api-key", "k\xe9"], "not ASCII"),
    ],
)
def test_what_cannot_be_sent_is_one_line(
    platform: Platform, capsys: Output, arguments: list[str], said: str
) -> None:
    assert run(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error
    assert error.count("\n") == 1


def test_an_adapter_is_named_with_its_function(platform: Platform, capsys: Output) -> None:
    run(["deploy", "smol", "--model", "/models/smol", "--adapter", "pirate=/p"])
    capsys.readouterr()
    assert run(["invoke", "smol:pirate", "Hi"]) == 0
    assert platform.conversations[0]["model"] == "smol:pirate"
    capsys.readouterr()
    assert run(["describe", "smol"]) == 0
    assert "pirate" in capsys.readouterr().out
