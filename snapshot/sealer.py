"""Seal in a child process: torch, untrusted files and crashes stay out of the serving process.

`ProcessSealer` runs on one asyncio loop (glowplug serve's, or the command line's) and imports no
torch. A model that is sealed already is found without a child, by a few stats.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from glowplug.errors import NotFound, SnapshotError
from glowplug.spec import Dtype, FunctionSpec, Quantization
from snapshot.adapter_store import AdapterStore, adapter_fingerprint
from snapshot.child_job import JobCrashed, run_job
from snapshot.draft import about_draft
from snapshot.node_cache import NodeCache
from snapshot.s3_location import is_s3
from snapshot.source import Source, find_source, fingerprint

_LISTING_HOLDS_S = 10.0  # for the look-up and the sealing that follow a check

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
    are cancelled the child is killed; the next sealing goes on with what it has made.
    """

    def __init__(self, cache: NodeCache, *, s3_endpoint: str | None = None) -> None:
        """`s3_endpoint`: the S3-compatible service that s3:// sources are in; None: as boto3 is
        configured."""
        self._cache = cache
        self._s3_endpoint = s3_endpoint
        self._listed: dict[str, tuple[float, Source]] = {}  # of s3:// sources, when and what
        self._jobs: dict[_Wanted, _Job] = {}
        self._one_at_a_time = asyncio.Semaphore(1)
        self._few_listings = asyncio.Semaphore(4)  # each is a process

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

    async def seal_adapters(self, spec: FunctionSpec, *, snapshot: str) -> Mapping[str, str]:
        """Digests of the function's adapters, for the model of this snapshot, by name.

        Raises:
            SnapshotError: with the adapter's name, the reason and what to do, for the user.
        """
        if not spec.adapters:
            return {}
        store = AdapterStore(self._cache)
        digests = await asyncio.to_thread(_find_adapters, spec.adapters, snapshot, store)
        missing = {name: spec.adapters[name] for name, digest in digests.items() if digest is None}
        if missing:
            arguments = ["--adapters", snapshot]
            arguments += [f"{name}={source}" for name, source in missing.items()]
            digests |= (await self._child(arguments, f"{len(missing)} adapters", ignore))["digests"]
        sealed = {name: digest for name, digest in digests.items() if digest is not None}
        for name, digest in sealed.items():
            size_bytes = store.size_bytes(digest)
            if size_bytes > spec.adapter_cache_bytes:
                raise SnapshotError(
                    f"adapters.{name}: {size_bytes} bytes, over adapter_cache_bytes "
                    f"({spec.adapter_cache_bytes}); raise it"
                )
        return sealed

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
        fingerprint = await self._fingerprint(wanted)
        digest = await asyncio.to_thread(self._cache.sealed, fingerprint)
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

    async def recorded(self, spec: FunctionSpec) -> str | None:
        """The digest that the function's model was sealed into, whether or not that snapshot is in
        the cache; None: it was not sealed yet. Costs some stats.

        Raises:
            SnapshotError: there is no such model.
        """
        fingerprint = await self._fingerprint(_wanted(spec))
        return await asyncio.to_thread(self._cache.recorded, fingerprint)

    async def check(self, spec: FunctionSpec) -> None:
        """Look whether there is such a model, now. Raises SnapshotError: there is none."""
        self._listed.clear()
        await self._fingerprint(_wanted(spec))

    async def _fingerprint(self, wanted: _Wanted) -> str:
        source, draft = await self._find(wanted.source), None
        if wanted.draft is not None:
            with about_draft():
                draft = await self._find(wanted.draft)
        return await asyncio.to_thread(
            fingerprint, source, wanted.dtype, wanted.quantization, draft
        )

    async def _find(self, text: str) -> Source:
        """The source, as it is now; in S3 as it was a few seconds ago. Raises SnapshotError."""
        if not is_s3(text):
            return await asyncio.to_thread(find_source, text)
        at_s, source = self._listed.get(text, (-math.inf, None))
        now_s = asyncio.get_running_loop().time()
        if source is None or now_s - at_s > _LISTING_HOLDS_S:
            source = await self._list(text)
            self._listed[text] = (now_s, source)
        return source

    async def _list(self, text: str) -> Source:
        endpoint = [self._s3_endpoint] if self._s3_endpoint else []
        try:
            async with self._few_listings:
                found = await run_job("snapshot.source_process", [text, *endpoint], ignore)
        except JobCrashed as error:
            cause, errors = error.args
            _log.error("listing %s failed: %s\n%s", text, cause, errors)
            raise SnapshotError(f"{text}: it could not be listed, {cause}") from None
        except NotFound as error:
            raise SnapshotError(error.message) from None
        return Source(
            text=found["text"], kind=found["kind"], path=Path(), identity=found["identity"]
        )

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
        endpoint = ["--s3-endpoint", self._s3_endpoint] if self._s3_endpoint else []
        arguments = [*endpoint, *(argument for argument in wanted if argument is not None)]
        return str((await self._child(arguments, wanted.source, report))["digest"])

    async def _child(
        self, arguments: Sequence[str], what: str, report: Callable[[float], None]
    ) -> dict[str, Any]:
        """The outcome of a sealing process (see seal_process.py) with these arguments."""
        async with self._one_at_a_time:
            root = str(self._cache.root.absolute())
            try:
                return await run_job("snapshot.seal_process", [root, *arguments], report)
            except JobCrashed as error:
                cause, errors = error.args
                _log.error("sealing %s failed: %s\n%s", what, cause, errors)
                raise SnapshotError(f"{what}: sealing failed, {cause}") from None
            finally:
                with contextlib.suppress(OSError, SnapshotError):
                    await asyncio.to_thread(self._cache.clean)


def _wanted(spec: FunctionSpec) -> _Wanted:
    return _Wanted(spec.model, spec.dtype, spec.quantization, spec.draft_model)


def ignore(_fraction: float) -> None:
    """For sealing whose progress nobody follows."""


def _find_adapters(
    sources: Mapping[str, str], snapshot: str, store: AdapterStore
) -> dict[str, str | None]:
    """Each adapter's digest where it is sealed already."""
    base = store.base(snapshot)
    found = {}
    for name, source in sources.items():
        try:
            digest = found[name] = store.sealed(adapter_fingerprint(source, base))
            if digest is not None:  # it is needed now, and must not leave for those to be sealed
                store.cache.touch(digest)
        except SnapshotError as error:
            raise type(error)(f"adapters.{name}: {error.message}") from None
    return found
