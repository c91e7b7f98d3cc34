"""Read a JSON object from an untrusted file, with limits."""

import json
from pathlib import Path
from typing import Any

from glowplug.errors import CorruptSnapshot

LFS_POINTER = b"version https://git-lfs"


def read_json_object(path: Path, *, max_bytes: int) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        CorruptSnapshot: missing, over the limit, or not a JSON object.
    """
    value = read_json(path, max_bytes=max_bytes)
    if not isinstance(value, dict):
        raise CorruptSnapshot(f"{path}: holds no JSON object; the file is mislabelled")
    return value


def read_json(path: Path, *, max_bytes: int) -> Any:
    """What a JSON file holds.

    Raises:
        CorruptSnapshot: missing, over the limit, or not JSON.
    """
    data = read_limited(path, max_bytes=max_bytes)
    try:
        value = json.loads(data)
        if b"\\u" in data:  # an escape can name half a character, which no other file can hold
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise CorruptSnapshot(
            f"{path}: not valid JSON ({reason[:120]}); the file is damaged, download it again"
        ) from None
    return value


def read_limited(path: Path, *, max_bytes: int) -> bytes:
    """A small file's bytes.

    Raises:
        CorruptSnapshot: missing, over the limit, or a Git LFS pointer.
    """
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise CorruptSnapshot(f"{path}: cannot be read ({error.strerror})") from None
    if len(data) > max_bytes:
        raise CorruptSnapshot(f"{path}: over {max_bytes >> 20} MiB, the limit for such a file")
    refuse_lfs_pointer(data, path)
    return data


def refuse_lfs_pointer(start: bytes, path: Path) -> None:
    """Raises CorruptSnapshot for a file that Git LFS has not fetched; `start`: its first bytes."""
    if start.startswith(LFS_POINTER):
        raise CorruptSnapshot(f"{path}: only a Git LFS pointer; run `git lfs pull` in its folder")
