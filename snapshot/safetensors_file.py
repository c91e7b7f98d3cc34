"""Open an untrusted safetensors file. Called in the sealing process only."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from glowplug.errors import CorruptSnapshot
from snapshot.json_file import LFS_POINTER, refuse_lfs_pointer


def open_safetensors(path: Path, *, fix: str) -> Any:
    """The opened file (also a context manager), mapped; `fix` says what to do where it is damaged.

    Raises:
        CorruptSnapshot: it cannot be read, is a Git LFS pointer, or not whole.
    """
    try:
        with path.open("rb") as start:
            refuse_lfs_pointer(start.read(len(LFS_POINTER)), path)
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise CorruptSnapshot(f"{path}: not a whole safetensors file ({error}); {fix}") from None
    except OSError as error:
        raise CorruptSnapshot(f"{path}: cannot be read ({error.strerror or error})") from None
