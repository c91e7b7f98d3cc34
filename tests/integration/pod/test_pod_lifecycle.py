"""A replica's life in a real pod: assign, serve, drain, release."""

import asyncio
import os
import signal
import time
from typing import Any

import httpx
import psutil
import pytest

from glowplug.contracts import ReplicaState, StartKind
from glowplug.pod_wire import ReplicaChanged, ReplicaMeasured


def test_from_assignment_to_release(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            hello = await pod.hello()
            assert hello.pid == pod.supervisor.pid
            await pod.standbys_are(1)
            (standby,) = pod.forked()

            pod.assign("r1", max_seqs=7)
            ready = await pod.ready("r1")
            assert ready.pid == standby
            assert ready.start_kind is StartKind.SNAPSHOT
            assert ready.capacity == 7
            assert (ready.function, ready.revision) == ("f", "r")
            assert list(ready.stages_ms) == ["standby", "handover", "restore", "server", "report"]
            assert ready.ready_s is not None
            total_ms = (ready.ready_s - ready.assigned_s) * 1e3
            assert sum(ready.stages_ms.values()) == pytest.approx(total_ms, abs=5)
            assert await pod.get(ready.url) == str(standby)

            pod.release("r1")
            gone = await pod.gone("r1")
            assert gone.reason == "released"
            assert pod.states("r1") == ["starting", "ready", "draining", "gone"]
            assert not psutil.pid_exists(standby)
            with pytest.raises(httpx.ConnectError):
                await pod.get(ready.url)

    asyncio.run(main())


def test_connections_made_before_the_replica_is_ready_wait_and_are_answered(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            pod.assign("r1", "slow-start")  # no standby is ready yet either
            starting = await pod.state("r1", ReplicaState.STARTING)
            answers = await asyncio.gather(*(pod.get(starting.url) for _ in range(50)))
            ready = await pod.ready("r1")
            assert set(answers) == {str(ready.pid)}
            assert ready.start_kind is StartKind.CACHE
            assert ready.stages_ms["standby"] > 0
            assert ready.stages_ms["restore"] >= 500

    asyncio.run(main())


def test_draining_finishes_what_runs(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            pod.assign("r1")
            ready = await pod.ready("r1")
            slow = asyncio.create_task(pod.get(ready.url, "/slow"))
            await pod.accepted(ready.pid)
            pod.release("r1", drain_s=10.0)
            await pod.state("r1", ReplicaState.DRAINING)
            assert await slow == str(ready.pid)
            assert (await pod.gone("r1")).reason == "released"

    asyncio.run(main())


def test_a_replica_that_does_not_drain_is_killed(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            pod.assign("r1", "ignore-drain")
            await pod.ready("r1")
            pod.release("r1", drain_s=0.1)
            gone = await pod.gone("r1")
            assert gone.reason == "released; killed by signal 9"

    asyncio.run(main())


def test_release_while_starting_ends_it_at_once(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod("--standbys", "0") as pod:
            pod.assign("waiting")  # for a fork server that still imports
            await pod.state("waiting", ReplicaState.STARTING)
            pod.release("waiting")
            assert (await pod.gone("waiting")).reason == "released"

            pod.assign("stuck", "hang-start")  # even its event loop hangs
            await pod.until(lambda: pod.replicas("stuck") and pod.replicas("stuck")[-1].pid)
            released_s = time.monotonic()
            pod.release("stuck", drain_s=60.0)
            assert (await pod.gone("stuck")).reason == "released"
            assert time.monotonic() - released_s < 2.0
            assert pod.states("stuck") == ["starting", "gone"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("fail-start", "weights.safetensors: truncated; seal it again"),
        ("broken-start", "internal error: RuntimeError: a bug"),
        ("exit-start", "exit code 3: last words"),
    ],
)
def test_a_failed_start_says_why_and_the_pod_goes_on(
    start_pod: Any, function: str, reason: str
) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            pod.assign("r1", function)
            starting = await pod.state("r1", ReplicaState.STARTING)
            client = asyncio.create_task(pod.get(starting.url))
            assert (await pod.gone("r1")).reason == reason
            with pytest.raises(httpx.TransportError):  # refused or reset, but not left waiting
                await client
            pod.assign("r2")
            assert await pod.get((await pod.ready("r2")).url)
            assert ("Traceback" in pod.log()) == (function == "broken-start")

    asyncio.run(main())


def test_output_goes_to_the_log_with_the_replicas_name(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            pod.assign("r-42", snapshot="sha256-abc")
            await pod.ready("r-42")
            pod.release("r-42")
            await pod.gone("r-42")
            assert "r-42: serving sha256-abc" in pod.log()

    asyncio.run(main())


def test_sigterm_drains_then_ends_the_pod(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            pod.assign("r1")
            ready = await pod.ready("r1")
            slow = asyncio.create_task(pod.get(ready.url, "/slow"))
            await pod.accepted(ready.pid)
            os.kill(pod.supervisor.pid, signal.SIGTERM)
            await pod.state("r1", ReplicaState.DRAINING)
            pod.assign("late")
            assert (await pod.gone("late")).reason == "the pod is ending"
            assert await slow == str(ready.pid)
            assert (await pod.gone("r1")).reason == "released"
            await pod.until(lambda: pod.ended)
            await pod.all_gone()
            assert pod.supervisor.returncode == 0

    asyncio.run(main())


def test_sigterm_is_bounded(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod("--drain-s", "0.2") as pod:
            pod.assign("r1", "ignore-drain")
            await pod.ready("r1")
            os.kill(pod.supervisor.pid, signal.SIGTERM)
            assert (await pod.gone("r1")).reason == "released; killed by signal 9"
            await pod.all_gone()
            assert pod.supervisor.returncode == 0

    asyncio.run(main())


def test_bad_commands_are_ignored(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            pod.send_bytes(b"not json\n")
            pod.send_bytes(b'{"kind": "Hello", "pid": 1}\n')
            pod.send_bytes(b'{"kind": "Assign", "assignment": {}}\n')
            pod.release("nobody")
            pod.prefetch("../../etc")
            pod.assign("r1")
            ready = await pod.ready("r1")
            pod.assign("r1")  # the same name again
            pod.assign("r2")
            await pod.ready("r2")
            assert pod.states("r1") == ["starting", "ready"]
            assert await pod.get(ready.url) == str(ready.pid)

    asyncio.run(main())


def test_a_line_over_the_limit_ends_the_pod(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            await pod.standbys_are(1)
            pod.send_bytes(b"x" * (3 << 20))
            await pod.until(lambda: pod.ended)
            await pod.all_gone()

    asyncio.run(main())


def test_what_a_replica_has_measured_outlives_it(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            pod.assign("r1", "measure")
            ready = await pod.ready("r1")
            for _ in range(3):
                await pod.get(ready.url)
            pod.release("r1")
            await pod.gone("r1")
            told = [
                event
                for event in pod.events
                if isinstance(event, ReplicaMeasured)
                or (isinstance(event, ReplicaChanged) and event.replica.state is ReplicaState.GONE)
            ]
            assert told[:-1] == [
                ReplicaMeasured(replica="r1", text="answered 0\n"),
                ReplicaMeasured(replica="r1", text="answered 3\n"),
            ]

    asyncio.run(main())
