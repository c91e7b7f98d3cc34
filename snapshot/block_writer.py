"""Write a file in large aligned blocks, so that its pages lie in the page cache as huge ones.

A file system with large folios (ext4 from Linux 6.16, XFS) makes a cached page as large as the
write that filled it. Mapping a freshly sealed snapshot then takes 2 MiB at a fault.
"""

from typing import BinaryIO

_BLOCK_BYTES = 4 * 2**20  # two huge pages


class BlockWriter:
    """For a file that is unbuffered and written from its beginning; `finish` writes the rest."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._block = bytearray(_BLOCK_BYTES)
        self._filled = 0

    def write(self, data: memoryview) -> None:
        """Raises OSError, also for what was given earlier."""
        while len(data):
            part = data[: _BLOCK_BYTES - self._filled]
            self._block[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            data = data[len(part) :]
            if self._filled == _BLOCK_BYTES:
                self.finish()

    def finish(self) -> None:
        """Write what is held. Raises OSError."""
        rest = memoryview(self._block)[: self._filled]
        while len(rest):
            rest = rest[self._file.write(rest) :]
        self._filled = 0
