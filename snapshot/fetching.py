"""Fetch: pieces of files on their way from a store, in several threads. Blocking; no torch.

Each piece is hashed as it comes and written to its place; what breaks off is tried again.
"""

import hashlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from glowplug.errors import CorruptSnapshot
from snapshot.hashing import Piece
from snapshot.s3_bucket import Interrupted

THREADS = 8
_ATTEMPTS = 6  # of a piece that breaks off
_ATTEMPTS_WRONG = 2  # of a piece that arrives with other bytes than it should
_FIRST_WAIT_S = 0.2

Progress = Callable[[float], None]


class Fetch:
    """The pieces of one snapshot, or of one source. A piece without a hash is right when all of its
    bytes have come."""

    def __init__(
        self,
        read: Callable[[Piece], Iterator[bytes]],
        descriptors: Mapping[str, int],
        *,
        wrong: Callable[[Piece], str],
        total: int,
        done: int,
        progress: Progress,
        arrived: Callable[[Piece], None] = lambda _: None,
    ) -> None:
        """`read` gives a piece's bytes as they come; `descriptors` are of the files to write, by
        name. `wrong` says what to tell of a piece that comes with other bytes; `arrived` gets each
        piece, with its hash, once it is written. All are called from several threads."""
        self._read = read
        self._descriptors = descriptors
        self._wrong = wrong
        self._arrived = arrived
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
            SnapshotError, NotFound: it cannot be fetched.
            OSError: it cannot be written.
        """
        broken = wrong = 0
        while True:
            try:
                if self._attempt(piece):
                    break
                wrong += 1
                if wrong == _ATTEMPTS_WRONG:
                    raise CorruptSnapshot(self._wrong(piece))
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
        for block in self._read(piece):
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
        if position != end or piece.sha256 not in (None, sha256.hexdigest()):
            return False
        self._arrived(replace(piece, sha256=sha256.hexdigest()))
        return True


def allocate(path: Path, size: int) -> None:
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
