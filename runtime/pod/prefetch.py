"""Reads snapshots ahead into the page cache, so that mapping them finds the pages there.

Owned by the supervisor. One daemon thread reads one snapshot after the other, so that the end of
the process never waits for a disk.
"""

import queue
import threading
from pathlib import Path

from glowplug.errors import GlowplugError
from runtime.pod.output import log
from snapshot.node_cache import NodeCache
from snapshot.page_cache import read_into_page_cache


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
    """Read every file of the folder; their bytes.

    Raises:
        OSError: a file cannot be read.
    """
    return sum(map(read_into_page_cache, folder.iterdir()))
