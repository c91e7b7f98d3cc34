"""What a sealing that was killed has written of a weights file, and how much of it is right.

The file is written from its beginning; its journal has a line for each of its pieces (hashing.py)
that is written whole: the piece's SHA-256. The next sealing reads those pieces again, which takes a
fraction of the time to make them, and goes on after the last one that is as its line says. Nothing
depends on the order in which the two files reached the disk.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from snapshot.hashing import PIECE_BYTES, FileHasher

_READ_BYTES = 1 << 20


@dataclass(kw_only=True)
class SealedPart:
    """A file that is being written, with what is kept of it from before."""

    file: BinaryIO  # unbuffered, at the end of what is kept
    hasher: FileHasher  # has got what is kept
    kept_bytes: int
    _lines: BinaryIO
    _noted: int  # pieces in the journal

    def note(self) -> None:
        """Take down the pieces that the hasher has got, and the file too. Raises OSError."""
        pieces = self.hasher.whole_pieces[self._noted :]
        if pieces:
            self._lines.write("".join(f"{sha256}\n" for sha256 in pieces).encode("ascii"))
            self._noted += len(pieces)


@contextmanager
def resumed(path: Path, journal: Path) -> Iterator[SealedPart]:
    """Go on with a file, or begin it.

    Raises:
        OSError: it cannot be read or written.
    """
    path.touch()
    with path.open("r+b", buffering=0) as file:
        hasher = _kept(file, journal)
        count = len(hasher.whole_pieces)
        file.truncate(count * PIECE_BYTES)
        file.seek(count * PIECE_BYTES)
        with journal.open("wb", buffering=0) as lines:
            part = SealedPart(
                file=file,
                hasher=hasher,
                kept_bytes=count * PIECE_BYTES,
                _lines=lines,
                _noted=0,
            )
            part.note()
            yield part


def _kept(file: BinaryIO, journal: Path) -> FileHasher:
    """A hasher that has got the pieces, from the first one on, that are right."""
    hasher = FileHasher()
    try:
        lines = journal.read_text(encoding="ascii", errors="replace").split("\n")
    except FileNotFoundError:
        return hasher
    for number, sha256 in enumerate(lines):
        longer = hasher.copy()
        start = number * PIECE_BYTES
        for offset in range(start, start + PIECE_BYTES, _READ_BYTES):
            longer.update(os.pread(file.fileno(), _READ_BYTES, offset))
        if len(longer.whole_pieces) != number + 1 or longer.whole_pieces[-1] != sha256:
            break
        hasher = longer
    return hasher
