"""The commands as a user runs them: real processes against a real server and the real model."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from serving import MODEL, Serve, wait_for_state

pytestmark = pytest.mark.model

QUESTION = "What is the capital of France? Answer with one word."


def glowplug(server: Serve, *arguments: str, code: int = 0) -> str:
    """What a command says on stdout (on stderr, where it has to fail)."""
    ended = subprocess.run(
        [sys.executable, "-m", "glowplug", *arguments],
        env=os.environ | {"GLOWPLUG_ENDPOINT": server.endpoint, "GLOWPLUG_DATA": str(server.data)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ended.returncode == code, ended.stderr
    return ended.stderr if code else ended.stdout


@pytest.fixture
def deployed(server: Serve) -> Iterator[str]:
    name = "from-cli"
    glowplug(server, "deploy", name, "--model", MODEL, "--idle", "2s")
    yield name
    glowplug(server, "rm", name)


def test_deploy_call_and_look(server: Serve, deployed: str) -> None:
    (listed,) = (
        each for each in json.loads(glowplug(server, "ls", "--json")) if each["name"] == deployed
    )
    assert listed["state"] == "zero"
    assert listed["invoke_url"] == f"{server.endpoint}/f/{deployed}"

    answer = glowplug(server, "invoke", deployed, QUESTION, "--temperature", "0", "--timing")
    assert answer.startswith("The capital of France is Paris.\nWhere the time went")
    for stage in ("assign", "start", "tokenizer", "prefill", "first token", "tokens/s"):
        assert stage in answer

    described = glowplug(server, "describe", deployed)
    assert "last start" in described
    assert "ready" in described
    with server.client() as client:
        wait_for_state(client, deployed, "zero")
    again = json.loads(glowplug(server, "invoke", deployed, QUESTION, "--json"))
    assert again["start_kind"] in ("snapshot", "cache")


def test_a_model_that_does_not_exist(server: Serve) -> None:
    error = glowplug(server, "deploy", "missing", "--model", "/none/such.gguf", code=1)
    assert error.splitlines()[-1].startswith("error: missing: ")
    assert "/none/such.gguf" in error
    glowplug(server, "rm", "missing")


def test_seal_and_snapshots(server: Serve, tmp_path: Path) -> None:
    sealed = json.loads(glowplug(server, "seal", MODEL, "--json"))  # in the cache already
    digest = sealed["digest"]
    listed = json.loads(glowplug(server, "snapshots", "ls", "--json"))
    assert digest in [snapshot["digest"] for snapshot in listed]
    assert digest.removeprefix("sha256-")[:12] in glowplug(server, "snapshots", "ls")
    assert glowplug(server, "snapshots", "verify", digest[7:15]) == f"{digest} is whole\n"
    error = glowplug(server, "snapshots", "rm", "sha256-0123", code=1)
    assert error.startswith("error: no snapshot")
    error = glowplug(server, "snapshots", "rm", "s", code=1)
    assert "too short" in error


def test_snapshots_rm(data: Path, server: Serve) -> None:
    (digest,) = (each.name for each in (data / "cache").glob("sha256-*"))
    arguments = ("snapshots", "rm", digest, "--data", str(data))
    assert glowplug(server, *arguments) == f"{digest} removed\n"
    assert not (data / "cache" / digest).exists()
    assert "no snapshots" in glowplug(server, "snapshots", "ls", "--data", str(data))


class Terminal:
    """A command that believes a person sits before it."""

    def __init__(self, process: subprocess.Popen[Any], side: int) -> None:
        self.process = process
        self._side = side
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._side, text.encode())

    def read_until(self, text: str) -> str:
        """Everything since the last call, up to and with `text`."""
        while text not in self.shown:
            self.shown += os.read(self._side, 4096).decode()
        found, _, self.shown = self.shown.partition(text)
        return found + text


@contextmanager
def terminal(server: Serve, *arguments: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "glowplug", *arguments],
        env=os.environ | {"GLOWPLUG_ENDPOINT": server.endpoint, "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.timeout(90)
def test_chat_at_a_terminal(server: Serve, deployed: str) -> None:
    with terminal(server, "chat", deployed, "--temperature", "0") as chat:
        chat.read_until("> ")
        chat.type(f"{QUESTION}\n")
        assert "Paris" in chat.read_until("> ").partition(QUESTION)[2]

        chat.type("Tell a very long story about a lighthouse.\n")
        chat.read_until("lighthouse.")
        chat.read_until(" the ")  # it is well on its way
        chat.process.send_signal(signal.SIGINT)
        chat.read_until("> ")  # the answer ends, the conversation goes on

        chat.type("\x04")
        assert chat.process.wait(10) == 0


@pytest.mark.timeout(90)
def test_a_terminal_sees_the_table_in_colour(server: Serve, deployed: str) -> None:
    with terminal(server, "ls") as shown:
        assert "\x1b[" in shown.read_until(deployed)
