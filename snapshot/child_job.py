"""A job in a child process, both ends of it: what may crash, block or bring heavy libraries.

The child writes JSON lines to its standard output: any number of {"progress": 0.5}, then one that
is the outcome, or {"error": "UnsupportedModel", "message": "..."}. Its standard input is a pipe
that nobody writes to: when it ends, whoever asked is gone, and so the child goes.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

from glowplug.errors import (
    CorruptSnapshot,
    GlowplugError,
    NotFound,
    SnapshotError,
    UnsupportedModel,
)

NICENESS = 10
_PROGRESS_STEP = 0.005
_MAX_LINE_BYTES = 1 << 16
_STDERR_TAIL_BYTES = 1 << 14
_ERRORS: dict[str, type[GlowplugError]] = {
    kind.__name__: kind for kind in (SnapshotError, UnsupportedModel, CorruptSnapshot, NotFound)
}


class JobCrashed(Exception):
    """The child ended without an outcome. `args`: how, for the user, and its last output."""


async def run_job(
    module: str, arguments: Sequence[str], report: Callable[[float], None]
) -> dict[str, Any]:
    """The outcome of `python -m module ARGUMENTS`, which is killed when this is cancelled.

    Raises:
        SnapshotError, NotFound: as the child says.
        JobCrashed: it did not say anything.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", module, *arguments),
        stdin=asyncio.subprocess.PIPE,  # never written to: its end says that we are gone
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_MAX_LINE_BYTES,
    )
    try:
        outcome, errors = await asyncio.gather(
            _follow(cast(asyncio.StreamReader, process.stdout), report),
            _tail(cast(asyncio.StreamReader, process.stderr)),
        )
        status = await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if outcome is None or status != 0:
        raise JobCrashed(_cause(status, errors), errors)
    if "error" in outcome:
        raise _ERRORS.get(str(outcome["error"]), SnapshotError)(str(outcome["message"]))
    return dict(outcome)


def serve_job(work: Callable[[Callable[[float], None]], dict[str, Any]]) -> int:
    """In the child: do `work(progress)` and write its outcome. The exit status: 0 whenever it is
    written."""
    os.nice(NICENESS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Libraries may print: what they print must not end up between our lines.
    with os.fdopen(os.dup(1), "w", buffering=1) as out:
        os.dup2(2, 1)
        last = 0.0
        lock = threading.Lock()  # transfers tell of their progress from several threads

        def progress(fraction: float) -> None:
            nonlocal last
            with lock:
                if fraction - last >= _PROGRESS_STEP or fraction == 1.0:
                    last = fraction
                    print(json.dumps({"progress": round(fraction, 4)}), file=out)

        try:
            line = work(progress)
        except (SnapshotError, NotFound) as error:
            line = {"error": type(error).__name__, "message": error.message}
        print(json.dumps(line), file=out)
    return 0


async def _follow(
    stdout: asyncio.StreamReader, report: Callable[[float], None]
) -> dict[str, Any] | None:
    """Report the child's progress; its outcome line, if it got that far."""
    outcome: dict[str, Any] | None = None
    async for line in stdout:
        try:
            message = json.loads(line)
        except ValueError:  # it died while it wrote
            break
        if "progress" in message:
            report(message["progress"])
        else:
            outcome = message
    return outcome


async def _tail(stderr: asyncio.StreamReader) -> str:
    """The end of what the child wrote to its standard error, for the log."""
    tail = b""
    while chunk := await stderr.read(_STDERR_TAIL_BYTES):
        tail = (tail + chunk)[-_STDERR_TAIL_BYTES:]
    return tail.decode(errors="replace")


def _cause(status: int, errors: str) -> str:
    if status < 0:
        name = signal.Signals(-status).name
        hint = "; was there too little memory?" if status == -signal.SIGKILL else ""
        return f"its process was ended by {name}{hint}"
    last = errors.strip().rpartition("\n")[2][:200]
    return f"its process ended with status {status}: {last or 'no reason given'}"


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)
