"""The hashes of a snapshot's files: taken while they are written, checked piece by piece.

A *piece* is what is fetched, checked and repaired as one: `PIECE_BYTES` of a large file, or all of
a small one. Each has a SHA-256 of its own in the manifest, beside the whole file's.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from snapshot.manifest import FileEntry

PIECE_BYTES = 8 * 2**20
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of a file with its SHA-256."""

    name: str  # of the file
    offset: int
    size: int
    sha256: str | None  # None: not known yet


class FileHasher:
    """Hashes a file as it is written: feed it every byte in order, then take its `entry`."""

    def __init__(self) -> None:
        self._size = 0
        self._whole = hashlib.sha256()
        self._piece = hashlib.sha256()
        self._pieces: list[str] = []

    def update(self, data: bytes | memoryview) -> None:
        """The next bytes of the file."""
        self._whole.update(data)
        view = memoryview(data).cast("B")
        while view:
            room = PIECE_BYTES - self._size % PIECE_BYTES
            self._piece.update(view[:room])
            self._size += len(view[:room])
            view = view[room:]
            if self._size % PIECE_BYTES == 0:
                self._end_piece()

    def copy(self) -> "FileHasher":
        """Another that has got the same bytes."""
        other = FileHasher()
        other._size, other._pieces = self._size, self._pieces.copy()
        other._whole, other._piece = self._whole.copy(), self._piece.copy()
        return other

    @property
    def whole_pieces(self) -> Sequence[str]:
        """The SHA-256 of each piece of PIECE_BYTES that is complete."""
        return self._pieces

    def entry(self) -> FileEntry:
        """What the manifest says of the file."""
        if self._size <= PIECE_BYTES:
            return FileEntry(size=self._size, sha256=self._whole.hexdigest())
        if self._size % PIECE_BYTES:
            self._end_piece()
        return FileEntry(
            size=self._size,
            sha256=self._whole.hexdigest(),
            piece_bytes=PIECE_BYTES,
            piece_sha256=tuple(self._pieces),
        )

    def _end_piece(self) -> None:
        self._pieces.append(self._piece.hexdigest())
        self._piece = hashlib.sha256()


def file_entry(data: bytes) -> FileEntry:
    """What the manifest says of a file with these bytes."""
    hasher = FileHasher()
    hasher.update(data)
    return hasher.entry()


def pieces(name: str, entry: FileEntry) -> list[Piece]:
    """The pieces of a file in order; a file whose manifest lists none is one."""
    if not entry.piece_sha256:
        return [Piece(name, 0, entry.size, entry.sha256)]
    return [
        Piece(name, start, min(entry.piece_bytes, entry.size - start), sha256)
        for start, sha256 in zip(
            range(0, entry.size, entry.piece_bytes), entry.piece_sha256, strict=True
        )
    ]


def is_whole(descriptor: int, piece: Piece) -> bool:
    """Whether an open file holds the piece as it should be. Raises OSError."""
    sha256 = hashlib.sha256()
    buffer = memoryview(bytearray(min(_READ_BYTES, piece.size)))
    position, end = piece.offset, piece.offset + piece.size
    while position < end:
        count = os.preadv(descriptor, [buffer[: end - position]], position)
        if count == 0:
            return False
        sha256.update(buffer[:count])
        position += count
    return sha256.hexdigest() == piece.sha256


def damaged(
    folder: Path,
    wanted: list[Piece],
    *,
    threads: int,
    checked: Callable[[Piece], None] = lambda _: None,
) -> list[Piece]:
    """Those of the pieces that the folder's files do not hold. Reads with several threads.

    `checked` is called from them after each piece.

    Raises:
        OSError: a file is missing or cannot be read.
    """
    descriptors = {name: os.open(folder / name, os.O_RDONLY) for name in {p.name for p in wanted}}

    def check(piece: Piece) -> bool:
        good = is_whole(descriptors[piece.name], piece)
        checked(piece)
        return good

    try:
        if threads == 1 or len(wanted) == 1:
            return [piece for piece in wanted if not check(piece)]
        with ThreadPoolExecutor(threads, thread_name_prefix="verify") as pool:
            good = list(pool.map(check, wanted))
        return [piece for piece, fine in zip(wanted, good, strict=True) if not fine]
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)
