"""A standby's rehearsal: the real path with a toy, and nothing left of it."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from glowplug.errors import CorruptSnapshot
from runtime.pod.program import Start
from runtime.pod.rehearsal import rehearse, write_toy_snapshot
from snapshot.node_cache import NodeCache
from snapshot.restore import restore

pytestmark = pytest.mark.timeout(90)

# In a process of its own, as a standby is one: it sets torch up.
WARM = """
import json, sys, time
from pathlib import Path
from runtime.pod.process import thread_names
from runtime.pod.program import Settings
from runtime.pod.replica import ModelProgram

def sockets():
    links = []
    for path in Path("/proc/self/fd").iterdir():
        try: links.append(str(path.readlink()))
        except FileNotFoundError: pass  # the listing's own
    return [link for link in links if link.startswith("socket:")]

played = []
real = ModelProgram._rehearse
def rehearse(program):
    if "fail" in sys.argv: raise OSError("no loopback")
    real(program)
    played.append(1)
ModelProgram._rehearse = rehearse
program = ModelProgram(Settings(cache=Path(sys.argv[1]) / "cache", threads=1))
before = sockets()
program.warm(hurry="hurry" in sys.argv)
print(json.dumps({"played": len(played), "sockets": len(sockets()) - len(before),
    "tokenizers": len(program._tokenizers), "threads": thread_names()}))
"""


def warm(folder: Path, *words: str) -> tuple[dict[str, Any], str]:
    """What a standby says of itself after warming up, and its standard error."""
    done = subprocess.run(
        [sys.executable, "-c", WARM, str(folder), *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=os.environ | {"TMPDIR": str(folder), "OPENBLAS_NUM_THREADS": "1"},
    )
    return json.loads(done.stdout), done.stderr


def test_the_toy_is_a_snapshot(tmp_path: Path) -> None:
    digest = write_toy_snapshot(tmp_path)
    restored = restore(NodeCache(tmp_path).path(digest))
    assert {"embed", "layers.1.down", "norm"} <= restored.tensors.keys()


def test_a_standby_rehearses_and_leaves_nothing(tmp_path: Path) -> None:
    told, errors = warm(tmp_path)
    assert (told["played"], told["sockets"], told["tokenizers"]) == (1, 0, 0)
    assert not any("engine" in name for name in told["threads"])
    assert "no rehearsal" not in errors
    assert "never retrieved" not in errors
    assert "destroyed" not in errors
    assert list(tmp_path.iterdir()) == []


def test_a_hurried_one_does_not_rehearse(tmp_path: Path) -> None:
    told, errors = warm(tmp_path, "hurry")
    assert told["played"] == 0
    assert errors == ""


def test_a_failed_rehearsal_costs_no_standby(tmp_path: Path) -> None:
    told, errors = warm(tmp_path, "fail")
    assert told["played"] == 0
    assert errors.splitlines()[-1] == "no rehearsal: no loopback"


def test_an_answer_that_breaks_off_is_noticed() -> None:
    async def serve(start: Start) -> None:
        loop = asyncio.get_running_loop()
        start.listener.setblocking(False)
        connection, _ = await loop.sock_accept(start.listener)
        await loop.sock_recv(connection, 65536)
        await loop.sock_sendall(connection, b"HTTP/1.1 500 Internal Server Error\r\n\r\n")
        connection.close()
        await start.drain

    with pytest.raises(RuntimeError, match=r"not complete: .*500 Internal"):
        rehearse(serve, snapshot="sha256-none")


def test_a_toy_that_cannot_be_served_is_told_at_once() -> None:
    async def serve(_start: Start) -> None:
        raise CorruptSnapshot("the toy is broken")

    began_s = time.monotonic()
    with pytest.raises(CorruptSnapshot, match="the toy is broken"):
        rehearse(serve, snapshot="sha256-none")
    assert time.monotonic() - began_s < 5
