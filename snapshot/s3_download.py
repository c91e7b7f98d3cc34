"""Fetch a source's files out of S3. Blocking; no torch.

    FOLDER/identity        of the source that is fetched here (S3Source.identity)
    FOLDER/pieces.jsonl    the pieces that have arrived, a line each, with their SHA-256
    FOLDER/files/NAME      as large as it will be; its pieces are written to their places

Killed at any moment, it leaves whatever arrived: the next one reads that, compares it with the
hashes in pieces.jsonl and fetches only the rest. A source that has changed is fetched anew. The
caller holds the folder's lock.
"""

import json
import os
import threading
from pathlib import Path

from snapshot.durable import write_synced
from snapshot.eviction import make_room, used_bytes
from snapshot.fetching import THREADS, Fetch, Progress, allocate
from snapshot.hashing import PIECE_BYTES, Piece, damaged
from snapshot.node_cache import NodeCache
from snapshot.s3_bucket import S3Bucket
from snapshot.s3_source import S3Source
from snapshot.transfer import Pulled, partial

_IDENTITY = "identity"
_PIECES = "pieces.jsonl"
FILES = "files"


def download(source: S3Source, folder: Path, *, cache: NodeCache, progress: Progress) -> Pulled:
    """Have the source's files in FOLDER/files. `progress` gets 0.0 to 1.0, from any thread.

    Raises:
        SnapshotError: they do not fit, cannot be fetched or written, or changed meanwhile.
        NotFound: one was deleted meanwhile.
    """
    with partial(folder, what=source.text, cache=cache):
        if _read(folder / _IDENTITY) != source.identity:
            cache.remove_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_synced(folder / _IDENTITY, source.identity.encode(), replace=True)
        pulled = _fill(source, folder, cache=cache, progress=progress)
    progress(1.0)
    return pulled


def _fill(source: S3Source, folder: Path, *, cache: NodeCache, progress: Progress) -> Pulled:
    total = source.size_bytes
    make_room(cache, max(0, total - used_bytes(folder)), keep={folder.name})
    wanted = {
        (file.name, offset): Piece(file.name, offset, min(PIECE_BYTES, file.size - offset), None)
        for file in source.files
        for offset in range(0, file.size, PIECE_BYTES)
    }
    files = folder / FILES
    for file in source.files:
        (files / file.name).parent.mkdir(parents=True, exist_ok=True)
        allocate(files / file.name, file.size)
    known = _arrived(folder / _PIECES, wanted)
    kept = wanted.keys() & {(piece.name, piece.offset) for piece in known}
    kept -= {(piece.name, piece.offset) for piece in damaged(files, known, threads=THREADS)}
    missing = [wanted[place] for place in sorted(wanted.keys() - kept)]
    kept_bytes = total - sum(piece.size for piece in missing)
    by_name = {file.name: file for file in source.files}
    bucket, lock = S3Bucket(source.location), threading.Lock()
    descriptors = {name: os.open(files / name, os.O_WRONLY) for name in by_name}
    try:
        with (folder / _PIECES).open("a", encoding="ascii") as journal:
            journal.write("\n")  # a kill may have cut the last line

            def arrived(piece: Piece) -> None:
                line = json.dumps([piece.name, piece.offset, piece.size, piece.sha256])
                with lock:
                    journal.write(f"{line}\n")
                    journal.flush()

            fetch = Fetch(
                lambda piece: bucket.read(
                    by_name[piece.name].key,
                    offset=piece.offset,
                    size=piece.size,
                    etag=by_name[piece.name].etag,
                ),
                descriptors,
                wrong=lambda piece: f"{source.text}: {piece.name} came with another size",
                total=total,
                done=kept_bytes,
                progress=progress,
                arrived=arrived,
            )
            fetch.all(missing)
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)
    return Pulled(fetched_bytes=fetch.fetched, kept_bytes=kept_bytes)


def _arrived(path: Path, wanted: dict[tuple[str, int], Piece]) -> list[Piece]:
    """The pieces that an earlier download says have arrived. Whatever else its file says, as where
    a kill or a crash of the machine cut it, is passed over."""
    found = {}
    for line in (_read(path) or "").splitlines():
        try:
            name, offset, size, sha256 = json.loads(line)
            piece = wanted.get((name, offset))
        except (ValueError, TypeError, RecursionError):
            continue
        if piece is not None and piece.size == size and isinstance(sha256, str):
            found[name, offset] = Piece(name, offset, size, sha256)
    return list(found.values())


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
