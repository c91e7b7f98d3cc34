"""Files out of and into the page cache, and how fast this machine reads them."""

import mmap
import os
import threading
import time
from pathlib import Path

import torch

from snapshot.page_cache import address_of, mmap_noreserve, resident_bytes

_PIECE_BYTES = 4 * 2**20
_DISK_READERS = (1, 4)
_MOST_LEFT = 0.01  # of a file that counts as dropped
_TRIES = 50


def files_of(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.is_file()]


def cached_share(paths: list[Path]) -> float:
    """How much of these files is in the page cache, by mincore: 0.0 to 1.0."""
    total = cached = 0
    for path in paths:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size:
                with mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE | mmap_noreserve()) as mapping:
                    cached += resident_bytes(address_of(mapping), size)
                total += size
    return cached / total if total else 0.0


def drop(paths: list[Path]) -> None:
    """Drop files from the page cache, and make sure that they are gone.

    A page that a process has mapped stays, so a replica that is just ending is waited for.
    """
    for _ in range(_TRIES):
        for path in paths:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)  # a page that is not written yet stays, too
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
        if cached_share(paths) <= _MOST_LEFT:
            return
        time.sleep(0.1)
    share = cached_share(paths)
    raise SystemExit(f"{paths[0].parent}: {share:.0%} stays in the page cache; cannot measure")


def warm(paths: list[Path]) -> None:
    """Read files into the page cache."""
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.read(_PIECE_BYTES):
                pass


def disk_bytes_per_s(path: Path, *, rounds: int = 3) -> float:
    """The best of sequential O_DIRECT reads of the file, by one thread and by several.

    Buffered reads after dropping the file, where the file system has no O_DIRECT.
    """
    size = path.stat().st_size
    best_s = min(_direct_s(path, readers) for readers in _DISK_READERS for _ in range(rounds))
    return size / best_s


def _direct_s(path: Path, readers: int) -> float:
    drop([path])
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        descriptor = os.open(path, os.O_RDONLY)
    size = os.fstat(descriptor).st_size
    pieces = iter(range(0, size, _PIECE_BYTES))
    lock = threading.Lock()

    def work() -> None:
        with mmap.mmap(-1, _PIECE_BYTES) as buffer:
            while True:
                with lock:
                    offset = next(pieces, None)
                if offset is None:
                    return
                if os.preadv(descriptor, [buffer], offset) != min(_PIECE_BYTES, size - offset):
                    raise SystemExit(f"{path}: a short read")

    threads = [threading.Thread(target=work) for _ in range(readers)]
    began_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = time.perf_counter() - began_s
    os.close(descriptor)
    return took_s


def memory_bytes_per_s(path: Path, *, rounds: int = 20) -> float:
    """The best of sequential reads of the file's pages in memory, by all cores."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size // 4096 * 4096
        mapping = mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE | mmap_noreserve())
        numbers = torch.frombuffer(mapping, dtype=torch.int64)
        times = []
        for _ in range(rounds):
            began_s = time.perf_counter()
            numbers.sum()
            times.append(time.perf_counter() - began_s)
    return size / min(times)
