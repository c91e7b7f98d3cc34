"""Files and names that are on the disk when these return. No torch."""

import os
from pathlib import Path


def write_synced(path: Path, data: bytes, *, replace: bool = False) -> None:
    """Write a whole file. Raises OSError; without `replace` also where there is one already."""
    with path.open("wb" if replace else "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
