"""A child by itself: it ends when its control socket does, while its parent lives."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from glowplug.contracts import Assignment
from runtime.pod import child_wire
from runtime.pod.child_wire import Failed, Forked, Serving, StandbyReady, Take

SCRIPT = """
import asyncio, os, socket, sys, time
from glowplug.errors import SnapshotError
from runtime.pod import standby

class Program:
    def expect(self, snapshot): pass
    def warm(self, *, hurry):
        if "bad-warm" in sys.argv: raise SnapshotError("cannot warm up")
    async def serve(self, start):
        start.ready()
        await start.drain

standby.run(Program(), supervisor_pid=os.getppid(), began_s=time.monotonic(),
            control=socket.socket(fileno=int(sys.argv[1])), output=os.dup(1))
"""


class Standby:
    """A standby's process and the supervisor's end of its socket."""

    def __init__(self, *words: str) -> None:
        self.control, theirs = child_wire.pair()
        self.control.settimeout(20)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, str(theirs.fileno()), *words],
                pass_fds=[theirs.fileno()],
                stdout=subprocess.DEVNULL,
            )

    def next(self) -> child_wire.Message:
        received = child_wire.receive(self.control)
        assert received is not None
        return received[0]

    def hang_up(self) -> int:
        """The exit code."""
        began_s = time.monotonic()
        self.control.close()
        code = self.process.wait(20)
        assert time.monotonic() - began_s < 1.0
        return code


@pytest.fixture
def standby() -> Iterator[Standby]:
    one = Standby()
    yield one
    one.process.kill()
    one.process.wait(20)
    one.control.close()


def test_a_standby_ends_with_its_socket(standby: Standby) -> None:
    forked = standby.next()
    assert isinstance(forked, Forked)
    assert forked.pid == standby.process.pid
    assert isinstance(standby.next(), StandbyReady)
    assert standby.hang_up() == 0


def test_a_replica_ends_with_its_socket(standby: Standby) -> None:
    assignment = Assignment(
        replica="r1",
        function="f",
        revision="r",
        snapshot="s",
        max_context=None,
        max_seqs=1,
        kv_cache_bytes=1,
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        take = Take(assignment=assignment, sent_s=time.monotonic())
        child_wire.send(standby.control, take, (listener.fileno(),))
    kinds = [type(standby.next()) for _ in range(3)]
    assert kinds == [Forked, StandbyReady, Serving]
    assert standby.hang_up() == 0


def test_a_standby_that_cannot_warm_up_says_why() -> None:
    standby = Standby("bad-warm")
    try:
        assert isinstance(standby.next(), Forked)
        assert standby.next() == Failed(message="cannot warm up")
        assert standby.process.wait(20) == 1
    finally:
        standby.process.kill()
        standby.control.close()
