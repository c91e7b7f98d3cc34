"""SnapshotSupply: a function's snapshot, from where it can be had soonest.

The node cache, else the store (S3), else its model's source, which is then sealed and pushed to the
store. Whatever comes has to be what the spec pins and signed by a trusted key, where that is asked.
On one asyncio loop (glowplug serve's); transfers and sealing run in child processes. No torch, no
boto3.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from glowplug.errors import GlowplugError, NotFound, SnapshotError
from glowplug.spec import FunctionSpec
from snapshot.child_job import JobCrashed, run_job
from snapshot.manifest import read_manifest
from snapshot.node_cache import NodeCache
from snapshot.s3_location import S3Location
from snapshot.sealer import ProcessSealer
from snapshot.signatures import check_signature

if TYPE_CHECKING:
    from snapshot.signatures import PublicKey

_log = logging.getLogger("glowplug.snapshot")


class SnapshotSupply:
    """Implements glowplug.contracts.Sealer."""

    def __init__(
        self,
        cache: NodeCache,
        sealer: ProcessSealer,
        *,
        store: S3Location | None = None,
        trusted: "Sequence[PublicKey]" = (),
    ) -> None:
        """`trusted`: the keys of which one must have signed a snapshot; none: no one has to."""
        self._cache = cache
        self._sealer = sealer
        self._store = store
        self._trusted = trusted
        self._stored: set[str] = set()  # digests that the store holds, as far as we know
        self._pushes: set[asyncio.Task[None]] = set()
        self._one_push = asyncio.Semaphore(1)

    async def check(self, spec: FunctionSpec) -> None:
        """Look whether the function's model is there at all; costs some stats, or a listing in
        S3.

        Raises:
            SnapshotError: it is not, and no store may have its snapshot.
        """
        may_be_fetched = spec.digest is not None and (
            self._store is not None or await asyncio.to_thread(self._cache.holds, spec.digest)
        )
        if not may_be_fetched:
            await self._sealer.check(spec)

    async def seal(self, spec: FunctionSpec, progress: Callable[[float], None]) -> str:
        """Digest of the snapshot of the function's model, which is in the cache then; `progress`
        gets 0.0 to 1.0, only 1.0 where it was there.

        Raises:
            SnapshotError: with the reason and what to do, for the user.
        """
        known = spec.digest or await self._sealer.recorded(spec)
        why_not_fetched = None
        digest = None
        if known is not None:
            if await asyncio.to_thread(self._cache.holds, known):
                digest = known
            elif self._store is not None:
                why_not_fetched = await self._pull(known, progress)
                digest = known if why_not_fetched is None else None
        if digest is None:
            digest = await self._seal(spec, progress, why_not_fetched)
        reason = await asyncio.to_thread(self.refusal, spec, digest)
        if reason is not None:
            raise SnapshotError(reason)
        self._push_later(digest)
        await asyncio.to_thread(self._cache.touch, digest)
        progress(1.0)
        return digest

    async def seal_adapters(self, spec: FunctionSpec, *, snapshot: str) -> Mapping[str, str]:
        """The function's adapters, always from their sources. Raises SnapshotError."""
        return await self._sealer.seal_adapters(spec, snapshot=snapshot)

    def refusal(self, spec: FunctionSpec, digest: str) -> str | None:
        """Why this snapshot, as it is in the cache, cannot be the function's; None: it can."""
        if spec.digest not in (None, digest):
            return (
                f"{spec.model}: sealed it is {digest}, but the function's digest is {spec.digest}; "
                "give the model that was meant, or change digest"
            )
        try:
            folder = self._cache.path(digest)
            read_manifest(folder)  # a later version may have another format
            if self._trusted:
                check_signature(folder, self._trusted)
        except (NotFound, SnapshotError) as error:
            return error.message
        return None

    async def stop(self) -> None:
        """End the uploads that run; a later deploy goes on with them."""
        tasks = list(self._pushes)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _seal(
        self, spec: FunctionSpec, progress: Callable[[float], None], why_not_fetched: str | None
    ) -> str:
        try:
            return await self._sealer.seal(spec, progress)
        except SnapshotError as error:
            if why_not_fetched is None:
                raise
            raise type(error)(
                f"{error.message} (and it was not fetched: {why_not_fetched})"
            ) from None

    async def _pull(self, digest: str, progress: Callable[[float], None]) -> str | None:
        """Fetch from the store; why that was not possible, or None."""
        _log.info("fetching %s from %s", digest, self._store)
        progress(0.0)
        try:
            await self._transfer("pull", digest, progress)
        except GlowplugError as error:
            _log.warning("%s was not fetched: %s", digest, error.message)
            return error.message
        self._stored.add(digest)
        return None

    def _push_later(self, digest: str) -> None:
        if self._store is not None and digest not in self._stored:
            self._stored.add(digest)
            task = asyncio.create_task(self._push(digest), name=f"push {digest}")
            self._pushes.add(task)
            task.add_done_callback(self._pushes.discard)

    async def _push(self, digest: str) -> None:
        """A push that fails costs only that other nodes cannot fetch it."""
        async with self._one_push:
            try:
                changed = await self._transfer("push", digest, lambda _: None)
            except GlowplugError as error:
                self._stored.discard(digest)
                _log.warning("%s was not pushed: %s", digest, error.message)
            else:
                if changed:
                    _log.info("pushed %s to %s", digest, self._store)

    async def _transfer(
        self, direction: str, digest: str, progress: Callable[[float], None]
    ) -> bool:
        if self._store is None:
            raise SnapshotError("there is no snapshot store; give glowplug serve --store")
        arguments = [direction, str(self._cache.root.absolute()), digest, str(self._store)]
        if self._store.endpoint_url is not None:
            arguments.append(self._store.endpoint_url)
        try:
            outcome = await run_job("snapshot.store_process", arguments, progress)
        except JobCrashed as error:
            cause, errors = error.args
            _log.error("%s of %s failed: %s\n%s", direction, digest, cause, errors)
            raise SnapshotError(f"{digest}: {direction} failed, {cause}") from None
        return bool(outcome["changed"])
