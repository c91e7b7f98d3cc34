"""The pool of standbys in a real pod: ready ahead, handed out once, refilled off the path."""

import asyncio
import os
from pathlib import Path
from typing import Any

import psutil

from glowplug.contracts import StartKind


def test_no_process_is_handed_out_twice(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod("--standbys", "2") as pod:
            await pod.standbys_are(2)
            names = [f"r{n}" for n in range(6)]
            for name in names:
                pod.assign(name)
            replicas = [await pod.ready(name) for name in names]
            assert len({replica.pid for replica in replicas}) == 6
            assert len({replica.url for replica in replicas}) == 6
            kinds = [replica.start_kind for replica in replicas]
            assert kinds == [StartKind.SNAPSHOT] * 2 + [StartKind.CACHE] * 4
            for replica in replicas:
                assert await pod.get(replica.url) == str(replica.pid)
            await pod.standbys_are(2)

    asyncio.run(main())


def test_the_pool_is_refilled_after_the_start_not_beside_it(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            await pod.standbys_are(1)
            pod.assign("r1", "slow-start")
            await pod.ready("r1")
            await pod.until(lambda: pod.standbys() == 1 and len(pod.forked()) >= 2)
            log = pod.log()
            assert log.index("r1: ready") < log.index("standby 2: forked")

    asyncio.run(main())


def test_the_pool_is_refilled_after_a_failed_start(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            await pod.standbys_are(1)
            pod.assign("r1", "fail-start")
            await pod.gone("r1")
            await pod.until(lambda: pod.standbys() == 1 and len(pod.forked()) >= 2)

    asyncio.run(main())


def test_a_slow_start_does_not_keep_the_pool_empty(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            await pod.standbys_are(1)
            pod.assign("stuck", "hang-start")
            await pod.until(lambda: pod.standbys() == 1 and len(pod.forked()) >= 2)
            assert pod.states("stuck") == ["starting"]

    asyncio.run(main())


def test_no_standby_is_kept_when_none_is_asked_for(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod("--standbys", "0") as pod:
            pod.assign("r1")
            await pod.ready("r1")
            pod.assign("r2")
            await pod.ready("r2")
            assert len(pod.forked()) == 2

    asyncio.run(main())


def test_a_release_while_waiting_costs_no_standby(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            pod.assign("r1")  # waits for the first standby
            pod.release("r1")
            assert (await pod.gone("r1")).reason == "released"
            await pod.standbys_are(1)
            pod.assign("r2")
            assert (await pod.ready("r2")).pid == pod.forked()[0]

    asyncio.run(main())


def test_random_state_is_not_shared(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod("--standbys", "2") as pod:
            drawn = set()
            for name in ("r1", "r2", "r3"):
                pod.assign(name)
                drawn.add(await pod.get((await pod.ready(name)).url, "/random"))
            assert len(drawn) == 3

    asyncio.run(main())


def test_threads_reach_the_replica(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod("--threads", "3") as pod:
            pod.assign("r1")
            assert await pod.get((await pod.ready("r1")).url, "/threads") == "3"

    asyncio.run(main())


def test_what_was_served_once_is_expected_by_later_standbys(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            fork_server = await pod.fork_server()
            pod.assign("r1", snapshot="sha256-a")
            assert await pod.get((await pod.ready("r1")).url, "/expected") == ""
            await pod.until(lambda: pod.standbys() == 1 and len(pod.forked()) >= 2)
            pod.assign("r2", snapshot="sha256-b")
            answer = await pod.get((await pod.ready("r2")).url, "/expected")
            assert answer == f"sha256-a@{fork_server}"

    asyncio.run(main())


def test_a_prefetched_snapshot_is_expected_by_standbys_there_and_to_come(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            fork_server = await pod.fork_server()
            await pod.standbys_are(1)
            pod.prefetch("broken")  # must harm neither the fork server nor the standby
            pod.prefetch("sha256-a")
            pod.assign("r1")
            ready = await pod.ready("r1")
            assert await pod.get(ready.url, "/expected") == f"sha256-a@{ready.pid}"
            await pod.until(lambda: pod.standbys() == 1 and len(pod.forked()) >= 2)
            pod.assign("r2")
            answer = await pod.get((await pod.ready("r2")).url, "/expected")
            assert answer.split()[0] == f"sha256-a@{fork_server}"
            assert len(pod.fork_servers()) == 1

    asyncio.run(main())


async def settled_fds(*pids: int) -> list[int]:
    """How many descriptors each has open, once nothing is being opened or closed."""
    before: list[int] = []
    while True:
        now = [psutil.Process(pid).num_fds() for pid in pids]
        if now == before:
            return now
        before = now
        await asyncio.sleep(0.05)


def test_nothing_leaks_over_many_starts(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            counts = []
            for n in range(12):
                pod.assign(f"r{n}", "fail-start" if n % 3 == 2 else "f")
                if n % 3 != 2:
                    await pod.ready(f"r{n}")
                    pod.release(f"r{n}")
                await pod.gone(f"r{n}")
                await pod.until(lambda n=n: pod.standbys() == 1 and len(pod.forked()) >= n + 2)
                pids = (pod.supervisor.pid, await pod.fork_server(), pod.forked()[-1])
                counts.append(await settled_fds(*pids))
            assert counts[1] == counts[-1]
            assert len(pod.processes()) == 3

    asyncio.run(main())


def test_a_program_that_cannot_be_imported_fails_assignments_with_the_cause(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod(env={"POD_TEST_BREAK": "import"}) as pod:
            pod.assign("r1")
            reason = (await pod.gone("r1")).reason
            assert reason == (
                "no process could be started: fork server: exit code 1: "
                "ImportError: no module named torch"
            )

    asyncio.run(main())


def test_a_fork_server_with_threads_does_not_fork(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod(env={"POD_TEST_BREAK": "thread"}) as pod:
            pod.assign("r1")
            assert "the fork server must have one thread" in (await pod.gone("r1")).reason
            assert pod.forked() == []

    asyncio.run(main())


def test_standbys_that_cannot_warm_up_fail_assignments_and_recover(
    start_pod: Any, tmp_path: Path
) -> None:
    async def main() -> None:
        flag = tmp_path / "broken"
        flag.touch()
        async with start_pod(env={"POD_TEST_BREAK_WARM_WHILE": str(flag)}) as pod:
            pod.assign("r1")
            reason = (await pod.gone("r1")).reason
            assert reason == (
                "no process could be started: internal error: MemoryError: no memory to warm up"
            )
            flag.unlink()
            pod.assign("r2")
            await pod.ready("r2")

    asyncio.run(main())


def test_a_replica_is_what_the_kernel_ends_first_when_memory_is_short(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            await pod.standbys_are(1)

            def score(pid: int) -> int:
                return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

            assert score(pod.forked()[0]) > score(pod.supervisor.pid)
            assert os.getsid(pod.forked()[0]) != os.getsid(pod.supervisor.pid)

    asyncio.run(main())
