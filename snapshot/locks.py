"""Advisory file locks between processes (flock), held until released or the holder is dead.

Lock files are never deleted: deleting one while another process waits on it would let two hold
"the" lock. They are empty.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROC_LOCKS = Path("/proc/locks")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock `path`, waiting for it as long as it takes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def try_locked(path: Path) -> Iterator[bool]:
    """Hold the lock `path` if it is free; yields whether it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


@contextmanager
def shared(path: Path) -> Iterator[int]:
    """Hold the lock `path` together with other sharers; yields its descriptor.

    Waits only while somebody has it alone.
    """
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield descriptor
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o644)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o644)


def holders(path: Path) -> list[int]:
    """The processes that hold the lock `path`, as far as this one may see them (/proc/locks)."""
    try:
        stat = path.stat()
        lines = _PROC_LOCKS.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    place = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    held = (line.split() for line in lines if "->" not in line)
    return sorted({int(parts[4]) for parts in held if parts[1] == "FLOCK" and parts[5] == place})
