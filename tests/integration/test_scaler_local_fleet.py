"""LocalFleet with a real supervisor process: its life, its deaths, and no orphan after any."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import uvloop

from glowplug.contracts import Assignment, ReplicaState
from glowplug.errors import Unavailable
from scaler.fleets.local import LocalFleet

POD = [sys.executable, str(Path(__file__).with_name("scaler_pod_script.py"))]


def make_assignment(replica, function="f"):
    return Assignment(
        replica=replica,
        function=function,
        revision="0123456789",
        snapshot="sha256-0",
        max_context=None,
        max_seqs=16,
        kv_cache_bytes=2**20,
    )


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_dead(*pids, within_s=5.0):
    deadline_s = time.monotonic() + within_s
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline_s, "a process outlived its pod"
        time.sleep(0.005)


def run(body, *, loop_factory=None):
    async def main():
        async with asyncio.timeout(30):
            await body()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


@asynccontextmanager
async def running(tmp_path, *options, command=None, **settings):
    fleet = LocalFleet(
        command or [*POD, *options],
        log_path=tmp_path / "pod.log",
        **{"end_timeout_s": 5, **settings},
    )
    await fleet.start()
    try:
        yield fleet
    finally:
        await fleet.close()


async def next_of(changes, state):
    """The next change to this state."""
    async for replica in changes:
        if replica.state is state:
            return replica
    raise AssertionError("the watch ended")


def supervisor(fleet):
    return fleet._pod.pid


@pytest.mark.parametrize("loop_factory", [None, uvloop.new_event_loop])
def test_a_replica_from_assignment_to_end(tmp_path, loop_factory):
    async def body():
        async with running(tmp_path) as fleet:
            changes = fleet.watch()
            replica = await fleet.assign(make_assignment("r1"))
            assert (replica.id, replica.url) == ("r1", "http://127.0.0.1:1")
            seen = [await anext(changes), await anext(changes)]
            assert [r.state for r in seen] == [ReplicaState.STARTING, ReplicaState.READY]
            assert seen[1].stages_ms == {"restore": 1.5}
            assert await fleet.list() == [seen[1]]
            assert fleet.standbys == {"cpu": 2}

            await fleet.release("r1", drain_s=7.5)
            draining = await anext(changes)
            assert (draining.state, draining.reason) == (ReplicaState.DRAINING, "drain 7.5")
            assert (await anext(changes)).state is ReplicaState.GONE
            assert await fleet.list() == []
            await fleet.release("r1", drain_s=1)
            await fleet.release("never", drain_s=1)
            await fleet.prefetch("sha256-1")
            await fleet.assign(make_assignment("r2"))
            pid = supervisor(fleet)
        wait_dead(pid)
        log = (tmp_path / "pod.log").read_text()
        assert "the pod is up" in log
        assert "prefetch sha256-1" in log

    run(body, loop_factory=loop_factory)


@pytest.mark.parametrize("loop_factory", [None, uvloop.new_event_loop])
def test_a_killed_supervisor_takes_its_replicas_along_and_is_started_again(tmp_path, loop_factory):
    async def body():
        async with running(tmp_path) as fleet:
            changes = fleet.watch()
            for number in range(3):
                await fleet.assign(make_assignment(f"r{number}"))
                replica = await next_of(changes, ReplicaState.READY)
                killed = supervisor(fleet)
                os.kill(killed, signal.SIGKILL)
                gone = await next_of(changes, ReplicaState.GONE)
                assert gone.id == f"r{number}"
                assert "killed by signal 9" in gone.reason
                assert str(tmp_path / "pod.log") in gone.reason
                assert await fleet.list() == []
                assert fleet.standbys == {"cpu": 0}
                wait_dead(killed, replica.pid)

    run(body, loop_factory=loop_factory)


def test_an_assignment_waits_for_the_next_pod_and_one_in_flight_is_refused(tmp_path):
    async def body():
        async with running(tmp_path, assign_timeout_s=5) as fleet:
            await fleet.assign(make_assignment("r1"))
            silent = asyncio.create_task(fleet.assign(make_assignment("r2", "silent")))
            await asyncio.sleep(0.01)
            os.kill(supervisor(fleet), signal.SIGKILL)
            with pytest.raises(Unavailable, match="killed by signal 9"):
                await silent
            assert fleet._pod is None
            assert (await fleet.assign(make_assignment("r3"))).id == "r3"

    run(body)


def test_a_pod_that_does_not_answer_or_refuses(tmp_path):
    async def body():
        async with running(tmp_path, assign_timeout_s=5) as fleet:
            with pytest.raises(Unavailable, match="the snapshot is corrupt"):
                await fleet.assign(make_assignment("r1", "refused"))
            assert await fleet.list() == []
            fleet._assign_timeout_s = 0.05
            with pytest.raises(Unavailable, match="did not answer"):
                await fleet.assign(make_assignment("r2", "silent"))
            assert fleet._first == {}

    run(body)


def test_a_command_that_does_not_exist(tmp_path):
    async def body():
        command = [str(tmp_path / "no-such-program")]
        async with running(tmp_path, command=command, assign_timeout_s=0.2) as fleet:
            with pytest.raises(Unavailable, match="no-such-program"):
                await fleet.assign(make_assignment("r1"))

    run(body)


def test_a_supervisor_that_ends_at_once(tmp_path):
    async def body():
        command = [sys.executable, "-c", "import sys; sys.exit(3)"]
        async with running(tmp_path, command=command, assign_timeout_s=1) as fleet:
            with pytest.raises(Unavailable, match=r"ended before it was up \(exit code 3\)"):
                await fleet.assign(make_assignment("r1"))

    run(body)


def test_a_supervisor_that_never_says_hello_is_killed(tmp_path):
    async def body():
        settings = {"hello_timeout_s": 0.3, "end_timeout_s": 0.1, "assign_timeout_s": 0.6}
        async with running(tmp_path, "--mute", **settings) as fleet:
            with pytest.raises(Unavailable, match=r"said nothing for 0\.3 s"):
                await fleet.assign(make_assignment("r1"))

    run(body)


def test_lines_that_mean_nothing_are_passed_over(tmp_path, caplog):
    async def body():
        async with running(tmp_path, "--garbage") as fleet:
            await fleet.assign(make_assignment("r1"))
        assert caplog.text.count("passed over") == 4

    run(body)


@pytest.mark.parametrize("fault", ["--flood", "--hang-up"])
def test_a_pod_that_breaks_its_stream_is_ended(tmp_path, fault):
    async def body():
        async with running(tmp_path, fault, end_timeout_s=0.1) as fleet:
            await fleet._up.wait()
            killed = supervisor(fleet)
            await asyncio.to_thread(wait_dead, killed)
            fleet._up.clear()
            await fleet._up.wait()  # the next one is up
            assert supervisor(fleet) != killed

    run(body)


@pytest.mark.parametrize("loop_factory", [None, uvloop.new_event_loop])
def test_a_supervisor_that_hangs_is_killed_with_its_replicas_and_started_again(
    tmp_path, loop_factory
):
    async def body():
        settings = {"ping_every_s": 0.05, "ping_limit_s": 0.3, "end_timeout_s": 20}
        async with running(tmp_path, **settings) as fleet:
            changes = fleet.watch()
            await fleet.assign(make_assignment("r1"))
            replica = await next_of(changes, ReplicaState.READY)
            hung = supervisor(fleet)
            await asyncio.sleep(0.6)  # it answers, so it lives on
            assert supervisor(fleet) == hung
            os.kill(hung, signal.SIGSTOP)
            gone = await next_of(changes, ReplicaState.GONE)
            assert "the pod's supervisor hangs" in gone.reason
            assert "killed by signal 9" in gone.reason
            wait_dead(hung, replica.pid)
            await fleet.assign(make_assignment("r2"))

    run(body, loop_factory=loop_factory)


def test_the_count_of_standbys_outlives_the_pod(tmp_path):
    async def body():
        async def standbys(ready):
            while fleet.standbys != {"cpu": ready}:  # noqa: ASYNC110 (the fleet tells nobody)
                await asyncio.sleep(0.01)

        async with running(tmp_path) as fleet:
            await fleet._up.wait()
            await standbys(2)
            await fleet.set_standbys(5)
            await standbys(5)
            for wrong in (-1, 65):
                with pytest.raises(ValueError, match="keep 0 to 64"):
                    await fleet.set_standbys(wrong)
            os.kill(supervisor(fleet), signal.SIGKILL)
            await standbys(0)
            await standbys(5)

    run(body)


def test_a_class_of_accelerator_that_is_not_here_is_refused(tmp_path):
    async def body():
        async with running(tmp_path) as fleet:
            for wanted in ("cuda", "nvidia-h200"):
                assignment = replace(make_assignment("r1"), accelerator=wanted)
                with pytest.raises(Unavailable, match=f"{wanted} is not here, only cpu"):
                    await fleet.assign(assignment)
            assert await fleet.list() == []
            await fleet.assign(replace(make_assignment("r2"), accelerator="cpu"))

    run(body)


def test_what_a_supervisor_prints_does_not_fill_the_disk(tmp_path):
    async def body():
        async with running(tmp_path, "--chatter") as fleet:
            await fleet.assign(make_assignment("r1"))
        log = tmp_path / "pod.log"
        assert "the last line" in log.read_text()
        sizes = [path.stat().st_size for path in tmp_path.glob("pod.log*")]
        assert len(sizes) == 2
        assert max(sizes) <= 4 * 2**20 < sum(sizes)

    run(body)


@pytest.mark.parametrize("options", [(), ("--linger",)])
def test_close_ends_everything_within_a_bound(tmp_path, options):
    async def body():
        async with running(tmp_path, *options, end_timeout_s=0.5) as fleet:
            changes = fleet.watch()
            await fleet.assign(make_assignment("r1"))
            replica = await next_of(changes, ReplicaState.READY)
            pid = supervisor(fleet)
            await fleet.close()
            gone = await anext(changes)
            assert (gone.state, gone.reason) == (ReplicaState.GONE, "the pod was ended")
            with pytest.raises(StopAsyncIteration):
                await anext(changes)
            wait_dead(pid, replica.pid)
            await fleet.close()

    run(body)


def test_nothing_is_left_open(tmp_path):
    async def cycle():
        async with running(tmp_path) as fleet:
            await fleet.assign(make_assignment("r1"))
            changes = fleet.watch()
            os.kill(supervisor(fleet), signal.SIGKILL)
            await next_of(changes, ReplicaState.GONE)
            await fleet.assign(make_assignment("r2"))

    def open_files():
        return len(list(Path("/proc/self/fd").iterdir()))

    run(cycle)
    before = open_files()
    run(cycle)
    assert open_files() <= before


HOST = """
import asyncio, sys
from pathlib import Path
from glowplug.contracts import Assignment
from scaler.fleets.local import LocalFleet

async def main():
    fleet = LocalFleet(sys.argv[2:], log_path=Path(sys.argv[1]))
    await fleet.start()
    await fleet.assign(Assignment(
        replica="r", function="f", revision="0", snapshot="s", max_context=None, max_seqs=1,
        kv_cache_bytes=1))
    (replica,) = await fleet.list()
    print(fleet._pod.pid, replica.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_when_the_serving_process_is_killed_the_pod_ends(tmp_path):
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, str(tmp_path / "pod.log"), *POD], stdout=subprocess.PIPE
    )
    with host:
        pids = [int(pid) for pid in host.stdout.readline().split()]
        assert len(pids) == 2
        assert all(alive(pid) for pid in pids)
        host.kill()
    wait_dead(*pids)
