"""Reads snapshots ahead into the page cache, so that mapping them finds the pages there.

Owned by the supervisor. One daemon thread reads one snapshot after the other, in pieces, so that
the end of the process never waits for a disk.
"""

import os
import queue
import threading
from pathlib import Path

from glowplug.errors import GlowplugError
from runtime.pod.output import log
from snapshot.node_cache import NodeCache

_PIECE_BYTES = 8 * 2**20


class ReadAhead:
    """`ask` for a snapshot; it never blocks and never fails."""

    def __init__(self, cache: NodeCache) -> None:
        self._cache = cache
        self._wanted: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="read-ahead", daemon=True)
        self._thread.start()

    def ask(self, digest: str) -> None:
        """Read this snapshot when those asked for before are done."""
        self._wanted.put(digest)

    def _run(self) -> None:
        while True:
            digest = self._wanted.get()
            try:
                log.info("read ahead: %s, %d bytes", digest, read_ahead(self._cache.path(digest)))
            except (GlowplugError, OSError) as error:
                log.error("read ahead: %s", error)


def read_ahead(folder: Path) -> int:
    """Ask the kernel for every file of the folder; bytes asked for.

    Raises:
        OSError: a file cannot be opened.
    """
    total_bytes = 0
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            size_bytes = os.fstat(descriptor).st_size
            for offset in range(0, size_bytes, _PIECE_BYTES):
                os.posix_fadvise(descriptor, offset, _PIECE_BYTES, os.POSIX_FADV_WILLNEED)
            total_bytes += size_bytes
        finally:
            os.close(descriptor)
    return total_bytes
