"""Notices that the installed code has changed while the pod runs.

The fork server and the standbys hold the code that was installed when they were made; after an
upgrade (or while somebody edits) they would serve old code, or old and new mixed, where a module is
imported late. The supervisor looks every few seconds, on a thread; a change counts once it has
stayed the same for two looks, so that a half-copied package is not picked up.
"""

import asyncio
import hashlib
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

_EVERY_S = 5.0
_CODE = (".py", ".so")


def code_folders() -> list[Path]:
    """The packages that a replica runs."""
    root = Path(__file__).parents[2]
    return [root / name for name in ("glowplug", "runtime", "snapshot")]


def library_folders() -> list[Path]:
    """Where the installed distributions lie."""
    return [folder for entry in sys.path if (folder := Path(entry or ".")).is_dir()]


def fingerprint(code: Iterable[Path], libraries: Iterable[Path]) -> str:
    """A digest of the code's files (name, size, time of change) and of the names and versions of
    the distributions. Some milliseconds; what vanishes meanwhile is left out."""
    seen = hashlib.sha256()
    for folder in code:
        for path, _, names in sorted(os.walk(folder)):
            for name in sorted(name for name in names if name.endswith(_CODE)):
                file = Path(path, name)
                try:
                    stat = file.stat()
                except OSError:
                    continue
                seen.update(f"{file}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    for folder in libraries:
        try:
            names = sorted(path.name for path in folder.glob("*.dist-info"))
        except OSError:
            continue
        seen.update("\0".join(names).encode())
    return seen.hexdigest()


async def watch_code(
    changed: Callable[[], None], *, look: Callable[[], str], every_s: float = _EVERY_S
) -> None:
    """Call `changed` after each change of what `look`, run on a thread, says; until cancelled."""
    known = before = await asyncio.to_thread(look)
    while True:
        await asyncio.sleep(every_s)
        now = await asyncio.to_thread(look)
        if now != known and now == before:
            known = now
            changed()
        before = now
