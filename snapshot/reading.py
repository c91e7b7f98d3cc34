"""Reading: a mapped weights file comes into memory while the replica's start goes on.

Nobody waits for it. Where the forward pass comes to pages before they are read, it waits in a page
fault for just these. So on a cold page cache the first layers compute while the later ones are
still being read, and on a warm one the page tables are filled by a core that would be idle.
"""

import logging
import mmap
import threading
import time

from snapshot.page_cache import (
    READERS,
    address_of,
    available_bytes,
    populate,
    prefer_huge_pages,
    resident_bytes,
)

_log = logging.getLogger("glowplug.snapshot")
_MEBIBYTE = 2**20
_ALL = 0.99  # of a file in memory: one thread suffices


class Reading:
    """The reading of one mapping, begun at once. `mode` says how, once it is known:

    mapped      all was in the page cache; only page tables were filled
    read        by several threads into the page cache, as huge pages where possible
    on demand   the kernel cannot, or the file is larger than the free memory: by page faults
    """

    def __init__(self, mapping: mmap.mmap) -> None:
        """The mapping is read from its beginning to its end, as it will be needed."""
        self.mode = "on demand"
        self.was_cached = 0.0  # the share that was in memory before
        self._mapping = mapping  # it must not be unmapped meanwhile
        self._thread = threading.Thread(target=self._run, name="reading", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it is finished. Nobody needs to wait."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        size_bytes = len(self._mapping)
        began_s = time.perf_counter()
        try:
            address = address_of(self._mapping)
            cached = resident_bytes(address, size_bytes)
            self.was_cached = cached / size_bytes
            if size_bytes - cached <= available_bytes():
                prefer_huge_pages(address, size_bytes)
                all_there = self.was_cached >= _ALL
                populate(address, size_bytes, readers=1 if all_there else READERS)
                self.mode = "mapped" if all_there else "read"
        except OSError as error:
            _log.info("weights: no reading ahead: %s", error.strerror)
            self._mapping.madvise(mmap.MADV_WILLNEED)
        took_s = time.perf_counter() - began_s
        _log.log(
            logging.INFO if size_bytes >= _MEBIBYTE else logging.DEBUG,
            "weights: %d MiB, %.0f%% of it in the page cache; %s in %.1f ms",
            size_bytes // _MEBIBYTE,
            self.was_cached * 100,
            self.mode,
            took_s * 1e3,
        )
