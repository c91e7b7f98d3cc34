"""Sealing: idempotent, atomic, single-flight, and nothing left behind by a failure."""

import errno
import hashlib
import os
import resource
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import snapshot.gguf_source
import snapshot.seal
from glowplug.errors import CorruptSnapshot, SnapshotError
from snapshot.manifest import MANIFEST, TOKENIZER, WEIGHTS, read_manifest
from snapshot.node_cache import NodeCache
from snapshot.seal import seal

WriteGguf = Callable[..., Any]


def ignore(_: float) -> None:
    pass


def leftovers(cache: NodeCache) -> list[str]:
    return [path.name for kind in ("tmp", "partial") for path in cache.root.glob(f"{kind}/*")]


def test_a_snapshot(write_gguf: WriteGguf, cache: NodeCache) -> None:
    path = write_gguf().path
    seen: list[float] = []
    digest = seal(str(path), dtype="bfloat16", cache=cache, progress=seen.append)
    folder = cache.path(digest)
    assert sorted(file.name for file in folder.iterdir()) == sorted([MANIFEST, TOKENIZER, WEIGHTS])
    assert digest == "sha256-" + hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
    manifest = read_manifest(folder)
    assert manifest.source == str(path)
    assert manifest.dtype == "bfloat16"
    assert (manifest.add_bos, manifest.bos_token_id) == (True, 1)
    for name, entry in manifest.files.items():
        data = (folder / name).read_bytes()
        assert (entry.size, entry.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert leftovers(cache) == []


def test_again_is_a_lookup(
    write_gguf: WriteGguf, cache: NodeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf().path
    digest = seal(str(path), dtype="bfloat16", cache=cache, progress=ignore)
    stat = (cache.path(digest) / WEIGHTS).stat()

    def fail(_: Path) -> None:
        raise AssertionError("opened again")

    monkeypatch.setattr(snapshot.gguf_source, "open_gguf", fail)
    assert seal(str(path), dtype="bfloat16", cache=cache, progress=ignore) == digest
    assert (cache.path(digest) / WEIGHTS).stat() == stat


def test_the_same_bytes_give_the_same_digest(write_gguf: WriteGguf, cache: NodeCache) -> None:
    path = write_gguf().path
    digest = seal(str(path), dtype="bfloat16", cache=cache, progress=ignore)
    os.utime(path, ns=(0, 0))  # another fingerprint, so it is sealed anew
    assert seal(str(path), dtype="bfloat16", cache=cache, progress=ignore) == digest
    assert len(cache.list()) == 1
    assert leftovers(cache) == []


def test_dtypes_and_changed_sources_are_apart(write_gguf: WriteGguf, cache: NodeCache) -> None:
    path = write_gguf(seed=1).path
    digests = {seal(str(path), dtype="bfloat16", cache=cache, progress=ignore)}
    digests.add(seal(str(path), dtype="float32", cache=cache, progress=ignore))
    write_gguf(seed=2)
    digests.add(seal(str(path), dtype="bfloat16", cache=cache, progress=ignore))
    assert len(digests) == 3
    assert {snapshot.digest for snapshot in cache.list()} == digests


@pytest.mark.parametrize("damage", ["manifest", "weights", "folder"])
def test_a_damaged_snapshot_is_replaced(
    write_gguf: WriteGguf, cache: NodeCache, damage: str
) -> None:
    path = write_gguf().path
    digest = seal(str(path), dtype="bfloat16", cache=cache, progress=ignore)
    folder = cache.path(digest)
    if damage == "manifest":
        (folder / MANIFEST).write_bytes(b"{}")
    elif damage == "weights":
        os.truncate(folder / WEIGHTS, 4096)
    else:
        cache.remove_folder(folder)
    assert seal(str(path), dtype="bfloat16", cache=cache, progress=ignore) == digest
    cache.verify(digest)
    assert leftovers(cache) == []


def test_the_disk_is_full(write_gguf: WriteGguf, cache: NodeCache) -> None:
    path = write_gguf(hidden=64, intermediate=256).path
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # a write over it fails, as then
    try:
        with pytest.raises(SnapshotError, match=os.strerror(errno.EFBIG)) as caught:
            seal(str(path), dtype="bfloat16", cache=cache, progress=ignore)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(path) in str(caught.value)
    assert cache.list() == []
    assert leftovers(cache) == []


def test_the_cache_is_a_file(write_gguf: WriteGguf, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SnapshotError, match=r"Not a directory|File exists"):
        seal(
            str(write_gguf().path),
            dtype="bfloat16",
            cache=NodeCache(tmp_path / "file"),
            progress=ignore,
        )


class Interrupted(BaseException):
    """Not an Exception, as KeyboardInterrupt."""


@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.999])
def test_interrupted(write_gguf: WriteGguf, cache: NodeCache, fraction: float) -> None:
    path = write_gguf().path

    def interrupt(done: float) -> None:
        if done >= fraction:
            raise Interrupted

    with pytest.raises(Interrupted):
        seal(str(path), dtype="bfloat16", cache=cache, progress=interrupt)
    assert cache.list() == []
    assert leftovers(cache) == []
    cache.verify(seal(str(path), dtype="bfloat16", cache=cache, progress=ignore))


def test_changed_while_sealed(write_gguf: WriteGguf, cache: NodeCache) -> None:
    path = write_gguf().path
    with pytest.raises(SnapshotError, match="changed while it was sealed"):
        seal(str(path), dtype="bfloat16", cache=cache, progress=lambda _: os.utime(path, ns=(0, 0)))
    assert cache.list() == []
    assert leftovers(cache) == []


def test_leftovers_of_the_dead_are_deleted(write_gguf: WriteGguf, cache: NodeCache) -> None:
    stale = cache.root / "tmp" / "of-a-killed-process"
    stale.mkdir(parents=True)
    (stale / WEIGHTS).write_bytes(b"half")
    with cache.workplace("of-a-living-process") as busy:
        busy.mkdir()
        seal(str(write_gguf().path), dtype="bfloat16", cache=cache, progress=ignore)
        assert leftovers(cache) == [busy.name]
    assert leftovers(cache) == []


def test_single_flight(
    write_gguf: WriteGguf, cache: NodeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf().path
    opened: list[Path] = []
    real = snapshot.gguf_source.open_gguf

    def counted(path: Path) -> Any:
        opened.append(path)
        return real(path)

    monkeypatch.setattr(snapshot.gguf_source, "open_gguf", counted)
    ready = threading.Barrier(4)

    def run(_: int) -> str:
        ready.wait()
        return seal(str(path), dtype="bfloat16", cache=cache, progress=ignore)

    with ThreadPoolExecutor(4) as pool:
        digests = set(pool.map(run, range(4)))
    assert len(digests) == 1
    assert len(opened) == 1


def test_an_error_is_not_remembered(write_gguf: WriteGguf, cache: NodeCache) -> None:
    path = write_gguf().path
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptSnapshot):
        seal(str(path), dtype="bfloat16", cache=cache, progress=ignore)
    path.write_bytes(whole)
    assert cache.path(seal(str(path), dtype="bfloat16", cache=cache, progress=ignore))


def test_too_little_room(
    write_gguf: WriteGguf, cache: NodeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf().path
    usage = shutil.disk_usage("/")._replace(free=5 << 10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(SnapshotError, match="0 MiB are free on its disk"):
        seal(str(path), dtype="bfloat16", cache=cache, progress=ignore)
    assert leftovers(cache) == []
