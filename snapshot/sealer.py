"""Seal in a child process: torch, untrusted files and crashes stay out of the serving process.

`ProcessSealer` runs on one asyncio loop (glowplug serve's, or the command line's) and imports no
torch. A model that is sealed already is found without a child, by a few stats.
"""

import asyncio
import contextlib
import json
import logging
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from glowplug.errors import CorruptSnapshot, SnapshotError, UnsupportedModel
from glowplug.spec import Dtype, FunctionSpec, Quantization
from snapshot.draft import find_draft
from snapshot.node_cache import NodeCache
from snapshot.source import find_source, fingerprint

_ERRORS = {kind.__name__: kind for kind in (SnapshotError, UnsupportedModel, CorruptSnapshot)}
_MAX_LINE_BYTES = 1 << 16
_STDERR_TAIL_BYTES = 1 << 14

_log = logging.getLogger("glowplug.snapshot")


class _Wanted(NamedTuple):
    """What is to be sealed: the arguments of the sealing process."""

    source: str
    dtype: Dtype
    quantization: Quantization
    draft: str | None


@dataclass(eq=False)
class _Job:
    """One sealing that any number of callers wait for."""

    task: "asyncio.Task[str]"
    listeners: list[Callable[[float], None]] = field(default_factory=list)
    fraction: float = 0.0

    def report(self, fraction: float) -> None:
        self.fraction = fraction
        for listener in tuple(self.listeners):
            listener(fraction)


class ProcessSealer:
    """Implements glowplug.contracts.Sealer.

    One child at a time; callers that ask for the same share one. When all of them
    are cancelled the child is killed and what it made is deleted.
    """

    def __init__(self, cache: NodeCache) -> None:
        self._cache = cache
        self._jobs: dict[_Wanted, _Job] = {}
        self._one_at_a_time = asyncio.Semaphore(1)

    async def seal(self, spec: FunctionSpec, progress: Callable[[float], None]) -> str:
        """Digest of the snapshot of the function's model; `progress` gets 0.0 to 1.0.

        Raises:
            SnapshotError: with the reason and what to do, for the user.
        """
        return await self.seal_source(
            spec.model,
            dtype=spec.dtype,
            quantization=spec.quantization,
            draft=spec.draft_model,
            progress=progress,
        )

    async def seal_source(
        self,
        source: str,
        *,
        dtype: Dtype,
        quantization: Quantization = "none",
        draft: str | None = None,
        progress: Callable[[float], None],
    ) -> str:
        """As `seal`, for a source that belongs to no function."""
        wanted = _Wanted(source, dtype, quantization, draft)
        digest = await asyncio.to_thread(self._find, wanted)
        if digest is not None:
            progress(1.0)
            return digest
        job = self._jobs.get(wanted) or self._start(wanted)
        job.listeners.append(progress)
        try:
            progress(job.fraction)
            return await asyncio.shield(job.task)
        finally:
            job.listeners.remove(progress)
            if not job.listeners and not job.task.done():
                self._forget(wanted, job)
                job.task.cancel()

    def _find(self, wanted: _Wanted) -> str | None:
        source, draft = find_source(wanted.source), find_draft(wanted.draft)
        key = fingerprint(source, wanted.dtype, wanted.quantization, draft)
        return self._cache.sealed(key)

    def _start(self, wanted: _Wanted) -> _Job:
        def report(fraction: float) -> None:
            job.report(fraction)

        job = _Job(asyncio.create_task(self._run(wanted, report), name=f"seal {wanted.source}"))
        self._jobs[wanted] = job
        job.task.add_done_callback(lambda _: self._forget(wanted, job))
        return job

    def _forget(self, wanted: _Wanted, job: _Job) -> None:
        if self._jobs.get(wanted) is job:
            del self._jobs[wanted]

    async def _run(self, wanted: _Wanted, report: Callable[[float], None]) -> str:
        arguments = [argument for argument in wanted if argument is not None]
        async with self._one_at_a_time:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "snapshot.seal_process"),
                *(str(self._cache.root.absolute()), *arguments),
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
                if outcome is not None and status == 0:
                    return _digest(outcome)
            finally:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
                    await process.wait()
                with contextlib.suppress(OSError, SnapshotError):
                    await asyncio.to_thread(self._cache.clean)
            _log.error("sealing %s failed (%s)\n%s", wanted.source, status, errors)
            raise SnapshotError(f"{wanted.source}: sealing failed, {_cause(status, errors)}")


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


def _digest(outcome: dict[str, Any]) -> str:
    if "error" in outcome:
        raise _ERRORS.get(outcome["error"], SnapshotError)(outcome["message"])
    return str(outcome["digest"])


def _cause(status: int, errors: str) -> str:
    if status < 0:
        name = signal.Signals(-status).name
        hint = "; was there too little memory?" if status == -signal.SIGKILL else ""
        return f"its process was ended by {name}{hint}"
    last = errors.strip().rpartition("\n")[2][:200]
    return f"its process ended with status {status}: {last or 'no reason given'}"
