"""Files that are mapped: how much of them is in memory, and how to get the rest there fast.

No torch. The pages of a mapped file come by `MADV_POPULATE_READ`: where they are missing it reads
them, and it enters them into the calling process's page tables, so that whoever computes with them
later takes no page fault. Several threads keep a disk's queue full. `MADV_HUGEPAGE` has missing
pages read as huge ones (2 MiB), where the file system can (ext4 from Linux 6.16, XFS): reading then
costs hardly any processor time, and a huge page takes one fault instead of 32.
O_DIRECT was measured no faster, and what it reads no other process can share.
"""

import ctypes
import functools
import mmap
import os
import threading
from pathlib import Path

HUGE_PAGE_BYTES = 2 * 2**20
READERS = 4  # threads; one suffices for what is in memory
_PIECE_BYTES = 8 * HUGE_PAGE_BYTES  # of one call
_MADV_POPULATE_READ = 22  # Linux 5.14; not in `mmap`
_MAX_MEMINFO_BYTES = 1 << 16


@functools.cache
def _libc() -> ctypes.CDLL:
    """ctypes and not `mmap.madvise`, which would hold the interpreter's lock while a disk reads."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    return libc


def address_of(mapping: mmap.mmap) -> int:
    """Where a writable (or private) mapping begins."""
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))


def resident_bytes(address: int, size_bytes: int) -> int:
    """How much of a mapping is in memory, whether this process has touched it or not.

    The kernel says "all" of a file that this user could not write to.

    Raises:
        OSError: nothing is mapped there.
    """
    pages = -(-size_bytes // mmap.PAGESIZE)
    found = ctypes.create_string_buffer(pages)
    _check(_libc().mincore(address, size_bytes, found))
    return min(found.raw.count(b"\1") * mmap.PAGESIZE, size_bytes)


def prefer_huge_pages(address: int, size_bytes: int) -> None:
    """Have missing pages of a mapping read as huge ones; where that cannot be, nothing happens."""
    _libc().madvise(address, size_bytes, mmap.MADV_HUGEPAGE)


def populate(address: int, size_bytes: int, *, readers: int) -> None:
    """Bring a mapping into memory and into the page tables, from its beginning to its end.

    Blocks, without the interpreter's lock. `address` is a multiple of the page size.

    Raises:
        OSError: the kernel cannot do this (before 5.14: EINVAL), or the file cannot be read.
    """
    pieces = iter(range(0, size_bytes, _PIECE_BYTES))
    lock, failures = threading.Lock(), list[OSError]()

    def work() -> None:
        while not failures:
            with lock:
                offset = next(pieces, None)
            if offset is None:
                return
            length = min(_PIECE_BYTES, size_bytes - offset)
            try:
                _check(_libc().madvise(address + offset, length, _MADV_POPULATE_READ))
            except OSError as error:
                failures.append(error)

    others = [
        threading.Thread(target=work, name=f"read-{n}", daemon=True) for n in range(1, readers)
    ]
    for thread in others:
        thread.start()
    work()
    for thread in others:
        thread.join()
    if failures:
        raise failures[0]


def read_into_page_cache(path: Path) -> int:
    """Read a file so that whoever maps it next finds it in memory; its size. Blocks, without the
    interpreter's lock. A file that is larger than the free memory is left alone.

    Raises:
        OSError: it cannot be opened or read.
    """
    with path.open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes == 0 or size_bytes > available_bytes():
            return size_bytes
        # Private and writable only for ctypes, which takes no address of a read-only one.
        with mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE | mmap_noreserve()) as mapping:
            address = address_of(mapping)
            prefer_huge_pages(address, size_bytes)
            try:
                populate(address, size_bytes, readers=READERS)
            except OSError:  # an old kernel
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
                while file.read(_PIECE_BYTES):
                    pass
    return size_bytes


def mmap_noreserve() -> int:
    """MAP_NORESERVE: without it a writable mapping larger than the machine's memory is refused,
    though nobody writes."""
    flag: int = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux's; Python names it from 3.13
    return flag


def available_bytes() -> int:
    """Memory that can be had without swapping, file pages that can be dropped included."""
    with Path("/proc/meminfo").open() as file:
        for line in file.read(_MAX_MEMINFO_BYTES).splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def _check(result: int) -> None:
    if result != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))
