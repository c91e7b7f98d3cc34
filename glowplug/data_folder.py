"""What lies where in the folder that `--data` names, and its lock: one server a folder.

    registry.sqlite   the deployed functions
    traffic.sqlite    the functions' traffic history
    decisions.sqlite  the functions' last decisions
    cache/            the node cache: sealed snapshots
    logs/             of the server, the pod and its replicas
    lock              held by the server that runs; its process id

The node cache has locks of its own: `glowplug seal` and `snapshots` work beside a server.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from glowplug.errors import Conflict, GlowplugError


@dataclass(frozen=True)
class DataFolder:
    """The paths in one data folder."""

    root: Path

    @property
    def registry(self) -> Path:
        """The function registry's SQLite file."""
        return self.root / "registry.sqlite"

    @property
    def traffic(self) -> Path:
        """The traffic history's SQLite file."""
        return self.root / "traffic.sqlite"

    @property
    def decisions(self) -> Path:
        """The decision log's SQLite file."""
        return self.root / "decisions.sqlite"

    @property
    def cache(self) -> Path:
        """The node cache's root."""
        return self.root / "cache"

    @property
    def logs(self) -> Path:
        """The folder of the log files."""
        return self.root / "logs"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder and hold its lock; the kernel frees it however this process ends.

        Raises:
            Conflict: another server holds it.
            GlowplugError: the folder cannot be made or written.
        """
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            file = (self.root / "lock").open("a+")
        except OSError as error:
            raise GlowplugError(f"--data {self.root}: {error.strerror}") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.read(20).strip() or "unknown"
                raise Conflict(
                    f"--data {self.root} is in use by another glowplug serve (pid {holder}); "
                    "stop that one or choose another folder"
                ) from None
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            yield
