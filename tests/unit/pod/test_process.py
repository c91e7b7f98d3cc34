"""Reaping and exit statuses, with real processes."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from runtime.pod.process import Reaper, describe_exit, thread_names


def _spawn(script: str) -> int:
    return os.posix_spawn("/bin/sh", ["sh", "-c", script], os.environ)


@pytest.mark.parametrize(
    ("status", "words"),
    [(0, "exit code 0"), (3 << 8, "exit code 3"), (signal.SIGKILL, "killed by signal 9")],
)
def test_exit_statuses_in_words(status: int, words: str) -> None:
    assert describe_exit(status) == words


def test_every_exit_is_collected_also_one_that_came_first() -> None:
    async def main() -> None:
        reaper = Reaper()
        slow, quick = _spawn("exec sleep 60"), _spawn("exit 5")
        slow_exit = reaper.exit_of(slow)
        async with asyncio.timeout(10):
            while quick not in reaper._unclaimed:  # noqa: ASYNC110 (nobody waits for it yet)
                await asyncio.sleep(0.005)
        assert describe_exit(await reaper.exit_of(quick)) == "exit code 5"
        os.kill(slow, signal.SIGTERM)
        async with asyncio.timeout(10):
            assert describe_exit(await slow_exit) == "killed by signal 15"

    asyncio.run(main())


def test_kill_all() -> None:
    async def main() -> None:
        reaper = Reaper()
        exits = [reaper.exit_of(_spawn("trap '' TERM; sleep 60 & wait")) for _ in range(3)]
        await reaper.kill_all(within_s=10)
        assert [describe_exit(each.result()) for each in exits] == ["killed by signal 9"] * 3

    asyncio.run(main())


def test_a_parent_that_is_gone_is_noticed() -> None:
    script = "from runtime.pod.process import die_with_parent; die_with_parent(1 << 30)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr.splitlines()[-1] == "ProcessLookupError: the parent 1073741824 is gone"


def test_threads_of_c_libraries_count() -> None:
    assert len(thread_names()) >= 1
