"""kill -9 of every process of the tree: reported or replaced, and no orphan is left."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from glowplug.contracts import ReplicaState, StartKind


def test_a_killed_supervisor_takes_all_with_it(start_pod: Any) -> None:
    """A standby (in its read), a starting replica (its loop stuck) and a ready one."""

    async def main() -> None:
        async with start_pod("--standbys", "2") as pod:
            await pod.standbys_are(2)
            pod.assign("ready")
            await pod.ready("ready")
            pod.assign("stuck", "hang-start")
            await pod.state("stuck", ReplicaState.STARTING)
            await pod.standbys_are(1)  # refilled after `ready`, before `stuck` or after its limit
            assert len(pod.processes()) >= 5
            os.kill(pod.supervisor.pid, signal.SIGKILL)
            await pod.all_gone(2.0)

    asyncio.run(main())


def test_a_supervisor_killed_while_it_starts_takes_all_with_it(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            await pod.hello()  # the fork server is just being started
            os.kill(pod.supervisor.pid, signal.SIGKILL)
            await pod.all_gone(2.0)

    asyncio.run(main())


def test_the_end_of_the_control_stream_ends_the_pod_at_once(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            pod.assign("draining", "ignore-drain")
            await pod.ready("draining")
            pod.release("draining", drain_s=60.0)
            await pod.state("draining", ReplicaState.DRAINING)
            pod.assign("stuck", "hang-start")
            await pod.until(lambda: pod.replicas("stuck") and pod.replicas("stuck")[-1].pid)
            pod.hang_up()
            await pod.all_gone(2.0)
            assert pod.supervisor.returncode == 0

    asyncio.run(main())


def test_the_pod_ends_with_the_process_that_started_it(tmp_path: Path, start_pod: Any) -> None:
    """Even while somebody else holds the control stream open."""

    async def main() -> None:
        async with start_pod() as pod:  # finds the processes of both pods by their mark
            folder = tmp_path / "second"
            owner = subprocess.Popen(  # noqa: ASYNC220
                [
                    sys.executable,
                    "-c",
                    "import subprocess, sys, socket\n"
                    "ours, theirs = socket.socketpair()\n"
                    "import os; os.set_inheritable(ours.fileno(), True)\n"
                    "subprocess.Popen(['sleep', '60'], close_fds=False)\n"
                    "subprocess.Popen([*sys.argv[1:], '--control-fd', str(theirs.fileno())],"
                    " pass_fds=[theirs.fileno()])\n"
                    "theirs.close()\n"
                    "print(ours.recv(4096).decode(), flush=True)\n"
                    "import time; time.sleep(60)\n",
                    *(sys.executable, "-m", "runtime.pod.supervisor"),
                    *(
                        "--cache",
                        str(folder),
                        "--program",
                        "program:HttpProgram",
                        "--log-dir",
                        str(folder),
                    ),
                ],
                stdout=subprocess.PIPE,
                env={
                    **os.environ,
                    "GLOWPLUG_TEST_POD": pod.mark,
                    "PYTHONPATH": str(Path(__file__).parent),
                },
            )
            assert owner.stdout is not None
            assert b"Hello" in owner.stdout.readline()
            owner.kill()
            owner.wait(5)
            owner.stdout.close()
            await _until(lambda: not [p for p in pod.processes() if str(folder) in p.cmdline()])
            for process in pod.processes():
                if process.name() == "sleep":
                    process.kill()

    asyncio.run(main())


def test_replicas_and_standbys_outlive_the_fork_server(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            pod.assign("r1")
            ready = await pod.ready("r1")
            await pod.until(lambda: pod.standbys() == 1 and len(pod.forked()) >= 2)
            slow = asyncio.create_task(pod.get(ready.url, "/slow"))
            await pod.accepted(ready.pid)

            os.kill(await pod.fork_server(), signal.SIGKILL)
            assert await slow == str(ready.pid)
            assert await pod.fork_server(2)
            pod.assign("r2")  # the standby that the first fork server made
            second = await pod.ready("r2")
            assert second.pid == pod.forked()[1]
            assert second.start_kind is StartKind.SNAPSHOT
            await pod.until(lambda: pod.standbys() == 1 and len(pod.forked()) >= 3)

            assert {psutil.Process(pid).ppid() for pid in pod.forked()} == {pod.supervisor.pid}
            os.kill(ready.pid, signal.SIGKILL)
            assert (await pod.gone("r1")).reason == "killed by signal 9"
            pod.release("r2")
            assert (await pod.gone("r2")).reason == "released"

    asyncio.run(main())


def test_an_assignment_waits_for_the_next_fork_server(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod("--standbys", "0") as pod:
            os.kill(await pod.fork_server(), signal.SIGKILL)
            pod.assign("r1")
            assert (await pod.ready("r1")).start_kind is StartKind.CACHE

    asyncio.run(main())


@pytest.mark.slow
def test_a_fork_server_that_hangs_is_replaced(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod("--standbys", "0") as pod:
            os.kill(await pod.fork_server(), signal.SIGSTOP)
            pod.assign("r1")
            await pod.ready("r1")
            assert await pod.fork_server(2)

    asyncio.run(main())


def test_a_killed_standby_is_replaced(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            await pod.standbys_are(1)
            for n in range(1, 4):
                os.kill(pod.forked()[-1], signal.SIGKILL)
                await pod.until(lambda n=n: pod.standbys() == 1 and len(pod.forked()) >= n + 1)
            pod.assign("r1")
            assert (await pod.ready("r1")).pid == pod.forked()[-1]

    asyncio.run(main())


def test_a_standby_killed_as_it_is_handed_out_is_replaced_or_reported(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            await pod.standbys_are(1)
            os.kill(pod.supervisor.pid, signal.SIGSTOP)  # so that it learns of both at once
            os.kill(pod.forked()[0], signal.SIGKILL)
            pod.assign("r1")
            os.kill(pod.supervisor.pid, signal.SIGCONT)
            ended = await pod.until(
                lambda: next((r for r in pod.replicas("r1") if r.state in ("ready", "gone")), None)
            )
            assert ended.state == "ready" or ended.reason == "killed by signal 9"

    asyncio.run(main())


def test_a_replica_killed_while_starting(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            await pod.standbys_are(1)
            pod.assign("r1", "hang-start")
            starting = await pod.until(
                lambda: next((r for r in pod.replicas("r1") if r.pid is not None), None)
            )
            client = asyncio.create_task(pod.get(starting.url))
            os.kill(starting.pid, signal.SIGKILL)
            assert (await pod.gone("r1")).reason == "killed by signal 9"
            with pytest.raises(httpx.TransportError):
                await client
            pod.assign("r2")
            await pod.ready("r2")

    asyncio.run(main())


def test_a_replica_that_crashes_while_it_answers(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            pod.assign("r1")
            ready = await pod.ready("r1")
            with pytest.raises(httpx.TransportError):
                await pod.get(ready.url, "/crash")
            gone = await pod.gone("r1")
            assert gone.reason == "killed by signal 11"
            assert pod.states("r1") == ["starting", "ready", "gone"]

    asyncio.run(main())


def test_a_replica_killed_while_draining(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            pod.assign("r1", "ignore-drain")
            ready = await pod.ready("r1")
            pod.release("r1", drain_s=60.0)
            await pod.state("r1", ReplicaState.DRAINING)
            os.kill(ready.pid, signal.SIGKILL)
            assert (await pod.gone("r1")).reason == "released; killed by signal 9"

    asyncio.run(main())


async def _until(condition: Any, wait_s: float = 5.0) -> None:
    deadline_s = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.02)
