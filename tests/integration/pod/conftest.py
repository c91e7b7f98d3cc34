"""A pod under test: the real process tree, driven as a fleet drives it, and nothing left behind."""

import asyncio
import os
import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from glowplug.contracts import Assignment, Replica, ReplicaState
from glowplug.pod_wire import (
    Assign,
    Hello,
    Message,
    Prefetch,
    Release,
    Renew,
    ReplicaChanged,
    SetStandbys,
    Sleep,
    StandbysChanged,
    decode,
    encode,
)

WAIT_S = 30.0
_MARK = "GLOWPLUG_TEST_POD"


class PodUnderTest:
    """Keeps every event; all waits are bounded."""

    def __init__(self, supervisor: "subprocess.Popen[bytes]", mark: str, log_file: Path) -> None:
        self.supervisor = supervisor
        self.mark = mark
        self.log_file = log_file
        self.events: list[Message] = []
        self.ended = False
        self._arrived = asyncio.Condition()
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def connect(self, control: socket.socket) -> None:
        self._reader, self._writer = await asyncio.open_connection(sock=control)

    async def read(self) -> None:
        with suppress(ConnectionResetError):  # the pod ended without reading all
            while line := await self._reader.readline():
                async with self._arrived:
                    self.events.append(decode(line))
                    self._arrived.notify_all()
        async with self._arrived:
            self.ended = True
            self._arrived.notify_all()

    def send(self, message: Message) -> None:
        self._writer.write(encode(message))

    def send_bytes(self, line: bytes) -> None:
        self._writer.write(line)

    def hang_up(self) -> None:
        self._writer.close()

    def assign(
        self, replica: str, function: str = "f", snapshot: str = "sha256-0", **more: Any
    ) -> None:
        fields: dict[str, Any] = {
            "max_context": None,
            "max_seqs": 4,
            "kv_cache_bytes": 2**20,
            **more,
        }
        self.send(
            Assign(
                assignment=Assignment(
                    replica=replica, function=function, revision="r", snapshot=snapshot, **fields
                )
            )
        )

    def sleep(self, replica: str) -> None:
        self.send(Sleep(replica=replica))

    async def asleep(self, replica: str, asleep: bool) -> Replica:
        """Wait until its latest change says so."""

        def reached() -> Replica | None:
            changes = self.replicas(replica)
            return changes[-1] if changes and changes[-1].asleep is asleep else None

        return await self.until(reached)

    def release(self, replica: str, drain_s: float = 5.0) -> None:
        self.send(Release(replica=replica, drain_s=drain_s))

    def set_standbys(self, keep: int) -> None:
        self.send(SetStandbys(keep=keep))

    def renew(self, **settings: Any) -> None:
        self.send(Renew(**settings))

    async def all_ended(self, *pids: int) -> None:
        """Until none of these processes is there."""
        async with asyncio.timeout(WAIT_S):
            while any(psutil.pid_exists(pid) for pid in pids):  # noqa: ASYNC110 (not ours)
                await asyncio.sleep(0.01)

    async def said(self, text: str) -> None:
        """Until its log has this."""
        async with asyncio.timeout(WAIT_S):
            while text not in self.log():  # noqa: ASYNC110 (only the log tells)
                await asyncio.sleep(0.02)

    def prefetch(self, snapshot: str) -> None:
        self.send(Prefetch(snapshot=snapshot))

    async def until(self, condition: Callable[[], Any], wait_s: float = WAIT_S) -> Any:
        async with asyncio.timeout(wait_s), self._arrived:
            await self._arrived.wait_for(condition)
            return condition()

    def replicas(self, replica: str) -> list[Replica]:
        return [
            event.replica
            for event in self.events
            if isinstance(event, ReplicaChanged) and event.replica.id == replica
        ]

    def states(self, replica: str) -> list[str]:
        """Without repeats."""
        states = [change.state.value for change in self.replicas(replica)]
        return [state for n, state in enumerate(states) if n == 0 or states[n - 1] != state]

    async def state(self, replica: str, state: ReplicaState, wait_s: float = WAIT_S) -> Replica:
        def reached() -> Replica | None:
            return next((r for r in self.replicas(replica) if r.state is state), None)

        return await self.until(reached, wait_s)

    async def ready(self, replica: str) -> Replica:
        """Fails at once when the replica is gone instead."""

        def settled() -> Replica | None:
            good = (ReplicaState.READY, ReplicaState.GONE)
            return next((r for r in self.replicas(replica) if r.state in good), None)

        result: Replica = await self.until(settled)
        assert result.state is ReplicaState.READY, result.reason
        return result

    async def gone(self, replica: str, wait_s: float = WAIT_S) -> Replica:
        return await self.state(replica, ReplicaState.GONE, wait_s)

    def standbys(self) -> int:
        counts = [event.ready for event in self.events if isinstance(event, StandbysChanged)]
        return counts[-1] if counts else 0

    async def standbys_are(self, count: int) -> None:
        await self.until(lambda: self.standbys() == count)

    async def hello(self) -> Hello:
        return await self.until(
            lambda: next((event for event in self.events if isinstance(event, Hello)), None)
        )

    async def accepted(self, pid: int) -> None:
        """Until the process has accepted a client's connection."""
        async with asyncio.timeout(WAIT_S):
            while psutil.CONN_ESTABLISHED not in [  # noqa: ASYNC110 (another process)
                connection.status for connection in psutil.Process(pid).net_connections("tcp")
            ]:
                await asyncio.sleep(0.01)

    @staticmethod
    async def get(url: str, path: str = "/pid") -> str:
        """The body of a GET on a new connection."""
        async with httpx.AsyncClient(timeout=WAIT_S, trust_env=False) as client:
            response = await client.get(url + path)
            response.raise_for_status()
            return response.text

    def processes(self) -> list[psutil.Process]:
        """Every living process of this pod, wherever it hangs in the machine's tree."""
        found = []
        for process in psutil.process_iter():
            try:
                if (
                    process.status() != psutil.STATUS_ZOMBIE
                    and process.environ().get(_MARK) == self.mark
                ):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    async def fork_server(self, number: int = 1) -> int:
        """The pid of the pod's nth fork server, once it is up."""
        async with asyncio.timeout(WAIT_S):
            while len(self.fork_servers()) < number:  # noqa: ASYNC110 (only the log tells)
                await asyncio.sleep(0.02)
        return self.fork_servers()[number - 1]

    def fork_servers(self) -> list[int]:
        """The pids of all fork servers that came up, in order."""
        return [int(pid) for pid in re.findall(r"fork server: pid (\d+)", self.log())]

    def forked(self) -> list[int]:
        """The pids of all standbys ever forked, in order."""
        return [int(pid) for pid in re.findall(r"forked in [0-9.]+ ms, pid (\d+)", self.log())]

    def log(self) -> str:
        return self.log_file.read_text() if self.log_file.exists() else ""

    async def all_gone(self, wait_s: float = 10.0) -> None:
        """Fails with what is left of the pod."""
        deadline_s = time.monotonic() + wait_s
        while (left := self.processes()) and time.monotonic() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # nothing tells of the end of another's child
        with suppress(subprocess.TimeoutExpired):
            self.supervisor.wait(0.5)
        assert not left, [(p.pid, p.ppid(), p.status(), p.cmdline()[:4]) for p in left]


def start_supervisor(
    folder: Path, *arguments: str, cache: Path, program: str, env: dict[str, str]
) -> tuple["subprocess.Popen[bytes]", socket.socket]:
    """A supervisor and the fleet's end of its control stream."""
    ours, theirs = socket.socketpair()
    with theirs:
        supervisor = subprocess.Popen(
            [
                *(sys.executable, "-m", "runtime.pod.supervisor"),
                *("--control-fd", str(theirs.fileno())),
                *("--cache", str(cache)),
                *("--log-dir", str(folder / "log")),
                *("--program", program),
                *arguments,
            ],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), **env},
        )
    return supervisor, ours


@asynccontextmanager
async def pod(
    folder: Path,
    *arguments: str,
    cache: Path | None = None,
    program: str = "program:HttpProgram",
    env: dict[str, str] | None = None,
) -> AsyncIterator[PodUnderTest]:
    """A running pod; at the end the control stream is closed and nothing may be left."""
    mark = uuid.uuid4().hex
    supervisor, control = start_supervisor(
        folder,
        *arguments,
        cache=cache or folder / "cache",
        program=program,
        env={_MARK: mark, **(env or {})},
    )
    under_test = PodUnderTest(supervisor, mark, folder / "log" / "pod.log")
    await under_test.connect(control)
    reading = asyncio.get_running_loop().create_task(under_test.read())
    try:
        yield under_test
    except BaseException:
        print(under_test.log())
        raise
    finally:
        under_test.hang_up()
        try:
            await under_test.all_gone()
        finally:
            for process in under_test.processes():
                process.kill()
            supervisor.kill()
            supervisor.wait(5)
            reading.cancel()


@pytest.fixture
def start_pod(tmp_path: Path) -> Callable[..., Any]:
    """`async with start_pod(*arguments) as pod`."""
    return lambda *arguments, **options: pod(tmp_path, *arguments, **options)
