"""The pool over a pod's life: hung standbys, other counts, new code and new settings."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from glowplug.pod_wire import Ping, Pong, StandbysChanged


def counts(pod: Any) -> list[int]:
    return [event.ready for event in pod.events if isinstance(event, StandbysChanged)]


def test_a_stopped_standby_is_replaced_and_not_handed_out(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod("--standbys", "2") as pod:
            await pod.standbys_are(2)
            stopped = pod.forked()[0]  # the one that would be handed out first
            os.kill(stopped, signal.SIGSTOP)
            await pod.until(lambda: counts(pod)[-2:] == [1, 2] and len(pod.forked()) == 3)
            await pod.all_ended(stopped)
            assert "standby 1: did not answer for 5 s" in pod.log()
            for name in ("r1", "r2"):
                pod.assign(name)
            pids = {(await pod.ready(name)).pid for name in ("r1", "r2")}
            assert pids == set(pod.forked()[1:3])

    asyncio.run(main())


def test_one_that_is_taken_while_it_is_asked_serves(start_pod: Any) -> None:
    """Its late answer comes before all that the replica says."""

    async def main() -> None:
        async with start_pod() as pod:
            await pod.standbys_are(1)
            standby = pod.forked()[0]
            os.kill(standby, signal.SIGSTOP)
            await asyncio.sleep(5.5)  # asked, and given 5 s
            pod.assign("r1")
            await pod.until(lambda: any(each.pid for each in pod.replicas("r1")))
            os.kill(standby, signal.SIGCONT)
            ready = await pod.ready("r1")
            assert ready.pid == standby
            await asyncio.sleep(6.0)  # past the limit of that question
            assert await pod.get(ready.url) == str(standby)

    asyncio.run(main())


def test_the_count_can_be_changed(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod() as pod:
            await pod.standbys_are(1)
            pod.set_standbys(3)
            await pod.standbys_are(3)
            pod.assign("r1")
            replica = await pod.ready("r1")
            pod.set_standbys(0)
            await pod.standbys_are(0)
            pod.set_standbys(-1)
            pod.set_standbys(1000)
            pod.send(Ping())
            await pod.until(lambda: Pong() in pod.events)
            assert await pod.get(replica.url) == str(replica.pid)
            await pod.all_ended(*(pid for pid in pod.forked() if pid != replica.pid))
            assert pod.log().count("0 to 64 are kept") == 2

    asyncio.run(main())


def test_new_settings_reach_new_replicas_while_old_ones_run(start_pod: Any) -> None:
    async def main() -> None:
        async with start_pod("--standbys", "2", "--threads", "2") as pod:
            await pod.standbys_are(2)
            pod.assign("old")
            old = await pod.ready("old")
            await pod.until(lambda: pod.standbys() == 2 and len(pod.forked()) == 3)
            before = len(counts(pod))
            pod.renew(threads=10_000)  # ignored
            pod.renew(threads=1, verify="always")
            await pod.fork_server(2)
            await pod.until(lambda: pod.standbys() == 2 and len(pod.forked()) == 5)
            assert min(counts(pod)[before:]) == 2  # never fewer than before
            await pod.all_ended(*pod.forked()[1:3], pod.fork_servers()[0])
            pod.assign("new")
            assert await pod.get((await pod.ready("new")).url, "/threads") == "1"
            assert await pod.get(old.url, "/threads") == "2"

    asyncio.run(main())


def test_an_upgrade_is_noticed(start_pod: Any, tmp_path: Path) -> None:
    async def main() -> None:
        libraries = tmp_path / "site-packages"
        (libraries / "torch-1.0.dist-info").mkdir(parents=True)
        path = f"{Path(__file__).parent}{os.pathsep}{libraries}"
        async with start_pod(env={"PYTHONPATH": path}) as pod:
            await pod.standbys_are(1)
            (libraries / "torch-1.0.dist-info").rename(libraries / "torch-2.0.dist-info")
            await pod.fork_server(2)
            await pod.until(lambda: pod.standbys() == 1 and len(pod.forked()) == 2)
            assert min(counts(pod)[counts(pod).index(1) :]) == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("", "exit code 1: ImportError: half of an upgrade"),
        ("other words", "restart glowplug serve"),
    ],
)
def test_code_that_cannot_be_used_leaves_the_old_one_in_place(
    start_pod: Any, tmp_path: Path, fault: str, told: str
) -> None:
    async def main() -> None:
        flag = tmp_path / "broken"
        async with start_pod(env={"POD_TEST_BREAK_IMPORT_WHILE": str(flag)}) as pod:
            await pod.standbys_are(1)
            flag.write_text(fault)
            pod.renew()
            await pod.said("no new fork server, the old one goes on")
            assert told in pod.log()
            for name in ("r1", "r2"):  # the second one is forked for it
                pod.assign(name)
                await pod.ready(name)
            assert len(pod.fork_servers()) == 1
            flag.unlink()
            await pod.fork_server(2)
            await pod.until(lambda: pod.standbys() == 1)

    asyncio.run(main())


def test_standbys_are_renewed_also_when_the_old_fork_server_dies_meanwhile(
    start_pod: Any, tmp_path: Path
) -> None:
    async def main() -> None:
        flag = tmp_path / "broken"
        async with start_pod(env={"POD_TEST_BREAK_IMPORT_WHILE": str(flag)}) as pod:
            await pod.standbys_are(1)
            flag.write_text("")
            pod.renew()
            await pod.said("no new fork server, the old one goes on")
            os.kill(await pod.fork_server(), signal.SIGKILL)
            flag.unlink()
            await pod.until(lambda: pod.standbys() == 1 and len(pod.forked()) == 2)
            await pod.all_ended(pod.forked()[0])

    asyncio.run(main())
