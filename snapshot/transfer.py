"""Move snapshots between the node cache and a store: `pull` and `push`. Blocking; no torch.

A pull writes into partial/DIGEST of the cache, in pieces that several threads fetch and hash as
they come, and renames the folder into place when all of them are right. Killed at any moment, it
leaves whatever arrived there: the next one hashes that and fetches only the rest. One process at a
time pulls a snapshot; others wait for it and find the snapshot there.
"""

import errno
import hashlib
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from glowplug.errors import CorruptSnapshot, NotFound, SnapshotError
from snapshot.durable import sync_folder, write_synced
from snapshot.eviction import make_room, trim, used_bytes
from snapshot.hashing import Piece, damaged, pieces
from snapshot.locks import locked
from snapshot.manifest import MANIFEST, Manifest, parse_manifest, read_manifest
from snapshot.node_cache import NodeCache
from snapshot.s3_store import Interrupted, S3Store
from snapshot.signatures import MAX_SIGNATURE_BYTES, SIGNATURE
from snapshot.verification import verify_files

THREADS = 8
_ATTEMPTS = 6  # of a piece that breaks off
_ATTEMPTS_WRONG = 2  # of a piece that arrives with other bytes than the manifest says
_FIRST_WAIT_S = 0.2
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Progress = Callable[[float], None]


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
        try:
            folder.mkdir(parents=True, exist_ok=True)
            pulled = _fill(store, digest, manifest, folder=folder, cache=cache, progress=progress)
            _finish(store, digest, data, folder=folder)
            cache.put(folder, digest)
        except OSError as error:
            if error.errno in _NO_ROOM:  # others need the room more than the next pull this part
                cache.remove_folder(folder)
            raise SnapshotError(
                f"{error.filename or folder}: {error.strerror}; fetching {digest} failed"
            ) from error
    trim(cache, keep={digest})
    progress(1.0)
    return pulled


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
            total, done, lock = (
                sum(entry.size for entry in manifest.files.values()),
                0,
                threading.Lock(),
            )

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
        _allocate(folder / name, entry.size)
    missing = [piece for piece in wanted if piece not in known]
    missing += damaged(folder, known, threads=THREADS) if known else []
    kept = total - sum(piece.size for piece in missing)
    descriptors = {name: os.open(folder / name, os.O_WRONLY) for name in manifest.files}
    fetch = _Fetch(store, digest, descriptors, total=total, done=kept, progress=progress)
    try:
        fetch.all(sorted(missing, key=lambda piece: (piece.name, piece.offset)))
        for descriptor in descriptors.values():
            os.fsync(descriptor)
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)
    return Pulled(fetched_bytes=fetch.fetched, kept_bytes=kept)


class _Fetch:
    """The pieces of one snapshot on their way, in several threads."""

    def __init__(
        self,
        store: S3Store,
        digest: str,
        descriptors: dict[str, int],
        *,
        total: int,
        done: int,
        progress: Progress,
    ) -> None:
        self._store = store
        self._digest = digest
        self._descriptors = descriptors
        self._total = max(1, total)
        self._done = done
        self._progress = progress
        self._lock = threading.Lock()
        self._failed = threading.Event()
        self.fetched = 0  # bytes that came from the store, those of broken attempts too

    def all(self, wanted: list[Piece]) -> None:
        """Fetch these; the first error ends all. Raises as `_piece` does."""
        with ThreadPoolExecutor(THREADS, thread_name_prefix="pull") as pool:
            for _ in pool.map(self._guarded, wanted):
                pass

    def _guarded(self, piece: Piece) -> None:
        if self._failed.is_set():
            return
        try:
            self._piece(piece)
        except BaseException:
            self._failed.set()
            raise

    def _piece(self, piece: Piece) -> None:
        """Fetch until it is right.

        Raises:
            CorruptSnapshot: the store holds other bytes.
            SnapshotError: it cannot be fetched.
            OSError: it cannot be written.
        """
        broken = wrong = 0
        while True:
            try:
                if self._attempt(piece):
                    break
                wrong += 1
                if wrong == _ATTEMPTS_WRONG:
                    raise CorruptSnapshot(
                        f"{self._store.location}/{self._digest}/{piece.name}: other bytes than "
                        f"its manifest says, at {piece.offset}; push the snapshot again"
                    )
            except Interrupted:
                broken += 1
                if broken == _ATTEMPTS or self._failed.is_set():
                    raise
                wait_s = _FIRST_WAIT_S * 2 ** (broken - 1)
                time.sleep(wait_s * (0.5 + random.random() / 2))  # noqa: S311
        with self._lock:
            self._done += piece.size
            done = self._done
        self._progress(min(1.0, done / self._total))

    def _attempt(self, piece: Piece) -> bool:
        """Whether what came is right; it is written as it comes."""
        sha256 = hashlib.sha256()
        position, end = piece.offset, piece.offset + piece.size
        blocks = self._store.read(self._digest, piece.name, offset=piece.offset, size=piece.size)
        for block in blocks:
            with self._lock:
                self.fetched += len(block)
            if position + len(block) > end:  # the store ignores ranges
                return False
            sha256.update(block)
            view = memoryview(block)
            while view:
                count = os.pwrite(self._descriptors[piece.name], view, position)
                position += count
                view = view[count:]
        return sha256.hexdigest() == piece.sha256


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


def _allocate(path: Path, size: int) -> None:
    """Make the file as large as it will be, so that a full disk shows now and not at the end."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(descriptor).st_size > size:
            os.ftruncate(descriptor, size)
        if size:
            os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(descriptor)


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
