"""Move snapshots between the node cache and a store: `pull` and `push`. Blocking; no torch.

A pull writes into partial/DIGEST of the cache, in pieces that several threads fetch and hash as
they come (fetching.py), and renames the folder into place when all of them are right. Killed at any
moment, it leaves whatever arrived there: the next one hashes that and fetches only the rest. One
process at a time pulls a snapshot; others wait for it and find the snapshot there.
"""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from glowplug.errors import NotFound, SnapshotError
from snapshot.durable import sync_folder, write_synced
from snapshot.eviction import make_room, trim, used_bytes
from snapshot.fetching import THREADS, Fetch, Progress, allocate
from snapshot.hashing import damaged, pieces
from snapshot.locks import locked
from snapshot.manifest import MANIFEST, Manifest, parse_manifest, read_manifest
from snapshot.node_cache import NodeCache
from snapshot.s3_store import S3Store
from snapshot.signatures import MAX_SIGNATURE_BYTES, SIGNATURE
from snapshot.verification import verify_files

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, kw_only=True)
class Pulled:
    """What a pull did."""

    fetched_bytes: int  # from the store; 0: it was here
    kept_bytes: int  # of an earlier pull that did not finish


def pull(store: S3Store, digest: str, *, cache: NodeCache, progress: Progress) -> Pulled:
    """Have the snapshot in the cache. `progress` gets 0.0 to 1.0, from any thread.

    Raises:
        NotFound: the store does not hold it.
        CorruptSnapshot: what the store holds is damaged.
        SnapshotError: it does not fit, or cannot be fetched or written.
    """
    with locked(cache.fetch_lock(digest)):
        if cache.holds(digest):
            cache.touch(digest)
            progress(1.0)
            return Pulled(fetched_bytes=0, kept_bytes=0)
        data = store.read_small(digest, MANIFEST)
        manifest = parse_manifest(data, digest=digest, where=f"{store.location}/{digest}")
        folder = cache.root / "partial" / digest
        with partial(folder, what=digest, cache=cache):
            folder.mkdir(parents=True, exist_ok=True)
            pulled = _fill(store, digest, manifest, folder=folder, cache=cache, progress=progress)
            _finish(store, digest, data, folder=folder)
            cache.put(folder, digest)
    trim(cache, keep={digest})
    progress(1.0)
    return pulled


@contextmanager
def partial(folder: Path, *, what: str, cache: NodeCache) -> Iterator[None]:
    """For a fetch into the folder: what has come stays for the next try, but where the disk is
    full, as others need the room more.

    Raises:
        SnapshotError: for an OSError.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            cache.remove_folder(folder)
        raise SnapshotError(
            f"{error.filename or folder}: {error.strerror}; fetching {what} failed"
        ) from error


def push(store: S3Store, digest: str, *, cache: NodeCache, progress: Progress) -> bool:
    """Upload the snapshot, checked, unless the store holds it; whether it had to be uploaded.

    Raises:
        NotFound: the cache does not hold it.
        CorruptSnapshot: it is damaged here.
        SnapshotError: it cannot be uploaded.
    """
    with cache.used(digest) as folder:
        manifest = read_manifest(folder)
        is_new = not store.has(digest)
        if is_new:
            verify_files(folder, manifest)
            total, done, lock = manifest.size_bytes, 0, threading.Lock()

            def sent(count: int) -> None:
                nonlocal done
                with lock:
                    done += count
                progress(min(1.0, done / max(1, total)))

            for name, entry in manifest.files.items():
                store.write(digest, folder / name, entry, sent=sent)
        if (folder / SIGNATURE).is_file():
            store.write_small(digest, SIGNATURE, (folder / SIGNATURE).read_bytes())
        if is_new:
            store.write_small(digest, MANIFEST, (folder / MANIFEST).read_bytes())
    progress(1.0)
    return is_new


def _fill(
    store: S3Store,
    digest: str,
    manifest: Manifest,
    *,
    folder: Path,
    cache: NodeCache,
    progress: Progress,
) -> Pulled:
    """Get every piece of every file into the folder, hashed and synced."""
    wanted = [piece for name, entry in manifest.files.items() for piece in pieces(name, entry)]
    total = sum(piece.size for piece in wanted)
    make_room(cache, max(0, total - used_bytes(folder)), keep={digest})
    known = [piece for piece in wanted if _size_of(folder / piece.name) is not None]
    for name, entry in manifest.files.items():
        allocate(folder / name, entry.size)
    missing = [piece for piece in wanted if piece not in known]
    missing += damaged(folder, known, threads=THREADS) if known else []
    kept = total - sum(piece.size for piece in missing)
    descriptors = {name: os.open(folder / name, os.O_WRONLY) for name in manifest.files}
    fetch = Fetch(
        lambda piece: store.read(digest, piece.name, offset=piece.offset, size=piece.size),
        descriptors,
        wrong=lambda piece: (
            f"{store.location}/{digest}/{piece.name}: other bytes than its manifest says, at "
            f"{piece.offset}; push the snapshot again"
        ),
        total=total,
        done=kept,
        progress=progress,
    )
    try:
        fetch.all(sorted(missing, key=lambda piece: (piece.name, piece.offset)))
        for descriptor in descriptors.values():
            os.fsync(descriptor)
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)
    return Pulled(fetched_bytes=fetch.fetched, kept_bytes=kept)


def _finish(store: S3Store, digest: str, manifest: bytes, *, folder: Path) -> None:
    """The signature, if there is one, and at last the manifest."""
    try:
        signature = store.read_small(digest, SIGNATURE, max_bytes=MAX_SIGNATURE_BYTES)
    except NotFound:
        pass
    else:
        write_synced(folder / SIGNATURE, signature, replace=True)
    write_synced(folder / MANIFEST, manifest, replace=True)
    sync_folder(folder)


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
