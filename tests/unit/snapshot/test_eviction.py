"""What leaves the node cache, in which order, and what never does."""

import multiprocessing
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import snapshot.eviction
from glowplug.errors import Conflict, NotFound, SnapshotError
from snapshot.eviction import (
    Resident,
    collect_garbage,
    eviction_order,
    make_room,
    residents,
    trim,
    used_bytes,
)
from snapshot.manifest import WEIGHTS
from snapshot.node_cache import NodeCache
from snapshot.restore import restore
from snapshot.seal import seal

MIB = 2**20


def ignore(_: float) -> None:
    pass


@pytest.fixture
def digests(write_gguf: Callable[..., Any], cache: NodeCache) -> list[str]:
    """Three snapshots, the longest unused first."""
    sealed = [
        seal(
            str(write_gguf(f"{seed}.gguf", seed=seed).path),
            dtype="float32",
            cache=cache,
            progress=ignore,
        )
        for seed in range(3)
    ]
    for age, digest in enumerate(reversed(sealed)):
        os.utime(cache.root / "use" / digest, (1000 - age, 1000 - age))
    return sealed


def here(cache: NodeCache) -> set[str]:
    return {each.digest for each in cache.list()}


def size_of(cache: NodeCache, digest: str) -> int:
    return used_bytes(cache.path(digest))


RESIDENT = st.builds(
    Resident,
    digest=st.text("abcdef", min_size=1, max_size=4),
    size_bytes=st.integers(0, 100),
    last_used_s=st.sampled_from([0.0, 1.0, 2.0, 3.0]),
    pinned=st.booleans(),
)


@given(st.lists(RESIDENT, unique_by=lambda each: each.digest), st.sets(st.text("abcdef")))
def test_the_order(given_: list[Resident], keep: set[str]) -> None:
    order = eviction_order(given_, keep=keep)
    assert set(order) == {each for each in given_ if not each.pinned and each.digest not in keep}
    assert [each.last_used_s for each in order] == sorted(each.last_used_s for each in order)
    shuffled = random.Random(0).sample(given_, len(given_))
    assert eviction_order(shuffled, keep=keep) == order  # two processes agree


def test_no_limit_evicts_nothing(cache: NodeCache, digests: list[str]) -> None:
    assert cache.limit_bytes is None
    assert trim(cache).snapshots == []
    make_room(cache, 1)
    assert here(cache) == set(digests)


def test_the_longest_unused_go_first(cache: NodeCache, digests: list[str]) -> None:
    one = size_of(cache, digests[0])
    cache.set_limit(used_bytes(cache.root) - one // 2)
    assert trim(cache).snapshots == digests[:1]
    assert here(cache) == set(digests[1:])
    cache.touch(digests[1])
    cache.set_limit(used_bytes(cache.root) + 10_000)
    assert make_room(cache, 20_000).snapshots == digests[2:]
    assert here(cache) == {digests[1]}


def test_what_is_pinned_stays(cache: NodeCache, digests: list[str]) -> None:
    cache.pin(digests[0])
    cache.pin(digests[0])
    assert [each.pinned for each in residents(cache) if each.digest == digests[0]] == [True]
    cache.set_limit(1)
    assert set(trim(cache).snapshots) == set(digests[1:])
    assert here(cache) == {digests[0]}
    with pytest.raises(SnapshotError, match="--cache-limit or unpin"):
        make_room(cache, MIB)
    cache.unpin(digests[0])
    assert trim(cache).snapshots == digests[:1]
    for method in (cache.pin, cache.unpin):
        with pytest.raises(NotFound):
            method(digests[0])


def test_what_is_kept_stays(cache: NodeCache, digests: list[str]) -> None:
    cache.set_limit(1)
    trim(cache, keep=set(digests[:2]))
    assert here(cache) == set(digests[:2])


def test_sealing_makes_room_and_keeps_what_it_sealed(
    cache: NodeCache, digests: list[str], write_gguf: Callable[..., Any]
) -> None:
    cache.set_limit(used_bytes(cache.root) + 2**15)  # for a few small files beside it
    path = write_gguf("fourth.gguf", seed=4).path
    fourth = seal(str(path), dtype="float32", cache=cache, progress=ignore)
    assert here(cache) == {*digests[1:], fourth}
    cache.set_limit(1)
    with pytest.raises(SnapshotError, match="do not fit the cache's limit"):
        seal(str(path), dtype="bfloat16", cache=cache, progress=ignore)
    assert not list((cache.root / "partial").iterdir())


def test_evicted_snapshots_stay_known(cache: NodeCache, digests: list[str]) -> None:
    fingerprints = [path.name for path in (cache.root / "sources").iterdir()]
    assert {cache.recorded(each) for each in fingerprints} == set(digests)
    assert cache.evict(digests[0])
    assert cache.evict(digests[0])  # gone is gone
    assert {cache.recorded(each) for each in fingerprints} == set(digests)
    assert {cache.sealed(each) for each in fingerprints} == {None, *digests[1:]}


def _use(root: str, digest: str, told: Any, release: Any) -> None:
    with NodeCache(Path(root)).used(digest) as folder:
        told.put(str(folder))
        release.wait(60)


class User:
    """A process that uses a snapshot, as a replica does, until it is released or killed."""

    def __init__(self, cache: NodeCache, digest: str) -> None:
        context = multiprocessing.get_context("fork")
        told: Any = context.Queue()
        self.release: Any = context.Event()
        self.process = context.Process(
            target=_use, args=(str(cache.root), digest, told, self.release)
        )
        self.process.start()
        assert told.get(timeout=30) == str(cache.path(digest))

    def end(self) -> None:
        self.release.set()
        self.process.join(30)
        assert self.process.exitcode == 0


def test_what_is_in_use_stays(cache: NodeCache, digests: list[str]) -> None:
    user = User(cache, digests[0])
    try:
        (listed,) = (each for each in cache.list() if each.digest == digests[0])
        assert listed.users == (user.process.pid,)
        assert listed.last_used_s > 1000
        with pytest.raises(Conflict, match=f"in use .by process {user.process.pid}"):
            cache.remove(digests[0])
        cache.set_limit(1)
        assert set(trim(cache).snapshots) == set(digests[1:])
        with cache.used(digests[0]):  # several can use it
            assert not cache.evict(digests[0])
    finally:
        user.end()
    cache.remove(digests[0])
    assert here(cache) == set()


def test_a_killed_user_lets_go(cache: NodeCache, digests: list[str]) -> None:
    user = User(cache, digests[0])
    user.process.kill()
    user.process.join(30)
    cache.remove(digests[0])
    assert not cache.has(digests[0])


def test_eviction_while_others_begin_to_use_it(cache: NodeCache, digests: list[str]) -> None:
    """Whoever got the folder has it whole; whoever did not is told so."""
    context = multiprocessing.get_context("fork")
    answers: Any = context.Queue()
    begin = context.Event()

    def restore_now() -> None:
        begin.wait(30)
        try:
            with cache.used(digests[0]) as folder:
                tensors = restore(folder).tensors
                answers.put(("served", len(tensors)))
                assert (folder / WEIGHTS).stat().st_size > 0
        except NotFound as error:
            answers.put(("refused", error.message))

    def evict_now() -> None:
        begin.wait(30)
        answers.put(("evicted", cache.evict(digests[0])))

    for _ in range(5):
        targets = [restore_now, evict_now, restore_now]
        processes = [context.Process(target=target) for target in targets]
        for process in processes:
            process.start()
        begin.set()
        outcomes = [answers.get(timeout=60) for _ in processes]
        for process in processes:
            process.join(30)
            assert process.exitcode == 0
        kinds = dict(outcomes)
        assert "evicted" in kinds
        if kinds["evicted"] is False:
            assert cache.has(digests[0])
            assert "served" in kinds
        else:
            assert not cache.has(digests[0])
            break
        begin.clear()


def test_garbage(cache: NodeCache, digests: list[str]) -> None:
    cache.quarantine(digests[0], "found damaged")
    partial = cache.root / "partial" / ("sha256-" + "1" * 64)
    partial.mkdir(parents=True)
    (partial / "weights").write_bytes(bytes(MIB))
    leftover = cache.root / "tmp" / "of-a-killed-process"
    leftover.mkdir(parents=True)
    (leftover / "weights").write_bytes(bytes(MIB))
    before = used_bytes(cache.root)
    collected = collect_garbage(cache)
    assert collected.snapshots == []
    assert collected.freed_bytes == before - used_bytes(cache.root) >= 2 * MIB
    assert not partial.exists()
    assert not leftover.exists()
    assert not (cache.root / "quarantine" / digests[0]).exists()
    assert here(cache) == set(digests[1:])
    assert collect_garbage(cache, limit_bytes=0).snapshots == digests[1:]
    assert cache.limit_bytes is None


def test_what_serves_nobody_goes_before_snapshots(cache: NodeCache, digests: list[str]) -> None:
    cache.quarantine(digests[0], "found damaged")
    cache.set_limit(used_bytes(cache.root))
    assert make_room(cache, 10_000).snapshots == []
    assert here(cache) == set(digests[1:])
    assert not (cache.root / "quarantine" / digests[0]).exists()


def test_a_fetch_that_runs_is_no_garbage(cache: NodeCache, digests: list[str]) -> None:
    from snapshot.locks import locked

    digest = "sha256-" + "1" * 64
    partial = cache.root / "partial" / digest
    partial.mkdir(parents=True)
    with locked(cache.fetch_lock(digest)):
        collect_garbage(cache)
        assert partial.exists()
    collect_garbage(cache)
    assert not partial.exists()


def test_the_disk_has_its_own_limit(
    cache: NodeCache, digests: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SnapshotError, match="are free on its disk"):
        make_room(cache, 1 << 60)
    assert here(cache) == set(digests)  # no limit was given: it is not ours to evict
    monkeypatch.setattr(snapshot.eviction, "_RESERVE_BYTES", 1 << 60)
    cache.set_limit(1 << 61)
    with pytest.raises(SnapshotError, match="are free on its disk"):
        make_room(cache, 1 << 50)


def test_limits_are_kept(cache: NodeCache) -> None:
    cache.set_limit(5)
    assert NodeCache(cache.root).limit_bytes == 5
    cache.set_limit(None)
    cache.set_limit(None)
    assert NodeCache(cache.root).limit_bytes is None
    (cache.root / "limit").write_text("many")
    assert cache.limit_bytes is None
