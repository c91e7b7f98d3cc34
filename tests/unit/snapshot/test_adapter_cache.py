"""Adapters in the node cache: listed, pinned, verified, and evicted like snapshots."""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lora import write_adapter

from glowplug.errors import Conflict, CorruptSnapshot, NotFound, SnapshotError
from snapshot.adapter_seal import seal_adapter
from snapshot.adapter_store import AdapterStore
from snapshot.eviction import collect_garbage, make_room, residents, trim, used_bytes
from snapshot.manifest import read_manifest
from snapshot.model_config import ModelConfig
from snapshot.node_cache import NodeCache
from snapshot.seal import seal

NOBODY = "sha256-" + "0" * 64


def ignore(_: float) -> None:
    pass


@pytest.fixture
def store(cache: NodeCache) -> AdapterStore:
    return AdapterStore(cache)


@pytest.fixture
def base(cache: NodeCache, write_gguf: Callable[..., Any]) -> str:
    """A sealed model, used lately."""
    digest = seal(str(write_gguf().path), dtype="float32", cache=cache, progress=ignore)
    os.utime(cache.use_lock(digest), (5000, 5000))
    return digest


@pytest.fixture
def folders(cache: NodeCache, base: str, tmp_path: Path) -> list[Path]:
    config = read_manifest(cache.path(base)).config
    assert isinstance(config, ModelConfig)
    return [write_adapter(tmp_path / f"lora-{n}", config, seed=n, rank=4) for n in range(3)]


@pytest.fixture
def digests(store: AdapterStore, base: str, folders: list[Path]) -> list[str]:
    """Three adapters, the longest unused first; all longer unused than the model."""
    sealed = [seal_adapter(str(each), snapshot=base, store=store) for each in folders]
    for age, digest in enumerate(reversed(sealed)):
        os.utime(store.cache.use_lock(digest), (1000 - age, 1000 - age))
    return sealed


def test_they_are_listed(store: AdapterStore, digests: list[str]) -> None:
    listed = {each.digest: each for each in store.list()}
    assert set(listed) == set(store.digests()) == set(digests)
    one = listed[digests[0]]
    assert (one.dtype, one.matrices, one.pinned, one.users) == ("float32", 8, False, ())
    assert one.size_bytes == store.size_bytes(digests[0])
    assert one.last_used_s == 998
    (store.folder / "sha256-no.safetensors").touch()
    store.path(digests[1]).write_bytes(b"\xff" * 20)
    store.path(digests[2]).write_bytes(b"")
    assert [each.digest for each in store.list()] == digests[:1]
    assert set(store.digests()) == set(digests)


def test_none_where_none_was_sealed(tmp_path: Path) -> None:
    store = AdapterStore(NodeCache(tmp_path / "none"))
    assert store.list() == []
    for method in (store.verify, store.pin, store.unpin, store.remove):
        with pytest.raises(NotFound, match="no adapter"):
            method(NOBODY)
    assert store.evict(NOBODY)  # gone is gone


def test_the_longest_unused_leave_snapshots_and_adapters_alike(
    store: AdapterStore, base: str, digests: list[str]
) -> None:
    cache = store.cache
    assert {each.digest for each in residents(cache) if each.is_adapter} == set(digests)
    assert trim(cache).adapters == []  # no limit
    one = used_bytes(store.folder) // 3
    cache.set_limit(used_bytes(cache.root) - one // 2)
    collected = trim(cache)
    assert (collected.snapshots, collected.adapters) == ([], digests[:1])
    os.utime(cache.use_lock(base), (1, 1))
    collected = collect_garbage(cache, limit_bytes=used_bytes(store.folder) + one // 4)
    assert (collected.snapshots, collected.adapters) == ([base], [])
    assert collected.freed_bytes > 0
    collected = collect_garbage(cache, limit_bytes=0)
    assert collected.adapters == digests[1:]
    assert store.digests() == []


def test_sealing_one_makes_room_but_keeps_its_model_and_its_siblings(
    store: AdapterStore, base: str, folders: list[Path], tmp_path: Path
) -> None:
    cache = store.cache
    first = seal_adapter(str(folders[0]), snapshot=base, store=store)
    second = seal_adapter(str(folders[1]), snapshot=base, store=store)
    for digest, at in ((base, 1), (first, 2), (second, 3)):
        os.utime(cache.use_lock(digest), (at, at))
    cache.set_limit(used_bytes(cache.root) + 2**13)
    third = seal_adapter(str(folders[2]), snapshot=base, store=store, keep=[first])
    assert set(store.digests()) == {first, third}
    assert cache.has(base)
    cache.set_limit(1)
    with pytest.raises(SnapshotError, match="do not fit the cache's limit"):
        seal_adapter(str(folders[1]), snapshot=base, store=store, keep=[first, third])
    cache.set_limit(None)
    assert seal_adapter(str(folders[1]), snapshot=base, store=store) == second


def test_a_look_up_counts_as_a_use(
    store: AdapterStore, base: str, folders: list[Path], digests: list[str]
) -> None:
    assert seal_adapter(str(folders[0]), snapshot=base, store=store) == digests[0]
    assert store.last_used_s(digests[0]) > 1e9


def test_what_is_pinned_stays(store: AdapterStore, digests: list[str]) -> None:
    store.pin(digests[0])
    assert [each.digest for each in store.list() if each.pinned] == digests[:1]
    collect_garbage(store.cache, limit_bytes=0)
    assert store.digests() == digests[:1]
    store.unpin(digests[0])
    assert collect_garbage(store.cache, limit_bytes=0).adapters == digests[:1]


def _use(root: Path, digest: str, told: Any) -> None:
    with AdapterStore(NodeCache(root)).used(digest):
        told.send("held")
        told.poll(60)


@pytest.fixture
def user(store: AdapterStore, digests: list[str]) -> Iterator[Any]:
    """A process that uses the longest unused one."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_use, args=(store.cache.root, digests[0], theirs))
    process.start()
    assert ours.poll(60)
    yield process
    process.kill()
    process.join()


def test_what_is_in_use_stays_until_its_user_dies(
    store: AdapterStore, digests: list[str], user: Any
) -> None:
    os.utime(store.cache.use_lock(digests[0]), (1, 1))
    assert next(each for each in store.list() if each.digest == digests[0]).users == (user.pid,)
    assert set(collect_garbage(store.cache, limit_bytes=0).adapters) == set(digests[1:])
    with pytest.raises(Conflict, match=f"in use \\(by process {user.pid}\\)"):
        store.remove(digests[0])
    store.cache.set_limit(1)
    with pytest.raises(SnapshotError, match="pinned or in use"):
        make_room(store.cache, 1)
    user.kill()
    user.join()
    store.remove(digests[0])
    assert store.digests() == []


def test_removed_ones_are_forgotten_and_evicted_ones_sealed_again(
    store: AdapterStore, base: str, folders: list[Path], digests: list[str]
) -> None:
    store.pin(digests[0])
    store.remove(digests[0])
    assert not store.cache.is_pinned(digests[0])
    assert len(list((store.folder / "sources").iterdir())) == 2
    assert store.evict(digests[1])
    for number in (0, 1):
        again = seal_adapter(str(folders[number]), snapshot=base, store=store)
        assert again == digests[number]


def test_a_damaged_one_is_found_and_set_aside(store: AdapterStore, digests: list[str]) -> None:
    for digest in digests:
        store.verify(digest)
    path = store.path(digests[0])
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptSnapshot, match="its bytes changed") as caught:
        store.verify(digests[0])
    for _ in range(2):  # the second time it is gone already
        store.quarantine(digests[0], caught.value.message)
        assert store.digests() == sorted(digests[1:])
    folder = store.cache.root / "quarantine" / digests[0]
    assert collect_garbage(store.cache).freed_bytes > 0
    assert not folder.exists()
