"""Sealing: seals models in the background, one at a time, and records how it ended.

On the event loop; the work itself is the handed-in Sealer's. The reconciler says in every round
which functions need it; a function that is changed or deleted meanwhile is dropped.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from glowplug.contracts import Function, Registry, Sealer
from glowplug.errors import GlowplugError
from glowplug.spec import FunctionSpec

_ATTEMPTS = 3  # of a seal that fails in an unexpected way; a bad model fails at once
_MAX_FAILURE_CHARS = 2000

_log = logging.getLogger(__name__)


class Sealing:
    """The seals that run or wait."""

    def __init__(
        self,
        *,
        sealer: Sealer,
        registry: Registry,
        progress: Callable[[str, float], None],
        sealed: Callable[[FunctionSpec, str | None, str | None], None],
        retry_s: float,
    ) -> None:
        """`progress(function, 0.0 to 1.0)`; `sealed(spec, snapshot, failure)` once it is recorded,
        one of the two being None. `retry_s` is the first wait after an unexpected error."""
        self._sealer = sealer
        self._registry = registry
        self._progress = progress
        self._sealed = sealed
        self._retry_s = retry_s
        self._turn = asyncio.Lock()  # sealing takes much memory and I/O
        self._tasks: dict[str, tuple[str, asyncio.Task[None]]] = {}  # function: revision, task

    def ensure(self, functions: Iterable[Function]) -> None:
        """Seal what is not sealed and has not failed; stop what is not asked for any more."""
        wanted = {
            function.spec.name: function.spec
            for function in functions
            if function.snapshot is None and function.failure is None
        }
        for name, (revision, task) in list(self._tasks.items()):
            if name not in wanted or wanted[name].revision != revision:
                task.cancel()
                del self._tasks[name]
        for name, spec in wanted.items():
            if name not in self._tasks:
                task = asyncio.create_task(self._run(spec), name=f"seal {name}")
                self._tasks[name] = (spec.revision, task)

    async def stop(self) -> None:
        """Cancel all."""
        tasks = [task for _, task in self._tasks.values()]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, spec: FunctionSpec) -> None:
        async with self._turn:
            _log.info("%s: sealing %s as revision %s", spec.name, spec.model, spec.revision)
            self._progress(spec.name, 0.0)
            snapshot, failure = await self._seal(spec)
        if failure is None:
            _log.info("%s: sealed as %s", spec.name, snapshot)
        else:
            _log.warning("%s: cannot be sealed: %s", spec.name, failure)
        await self._record(spec, snapshot, failure)
        if self._tasks.get(spec.name, ("", None))[1] is asyncio.current_task():
            del self._tasks[spec.name]
        self._sealed(spec, snapshot, failure)

    async def _seal(self, spec: FunctionSpec) -> tuple[str | None, str | None]:
        """Snapshot or failure."""

        def progress(done: float) -> None:
            if self._tasks.get(spec.name, ("", None))[0] == spec.revision:  # not dropped meanwhile
                self._progress(spec.name, min(1.0, max(0.0, done)))

        attempt = 1
        while True:
            try:
                return await self._sealer.seal(spec, progress), None
            except GlowplugError as error:
                return None, error.message[:_MAX_FAILURE_CHARS]
            except Exception as error:
                _log.exception("%s: sealing ended unexpectedly", spec.name)
                if attempt == _ATTEMPTS:
                    reason = f"sealing ended unexpectedly ({type(error).__name__}: {error})"
                    return None, reason[:_MAX_FAILURE_CHARS]
            await asyncio.sleep(self._retry_s * 2 ** (attempt - 1))
            attempt += 1

    async def _record(self, spec: FunctionSpec, snapshot: str | None, failure: str | None) -> None:
        """Into the registry, however long that takes."""
        wait_s = self._retry_s
        while True:
            try:
                await self._registry.set_sealed(
                    spec.name, spec.revision, snapshot=snapshot, failure=failure
                )
            except Exception:
                _log.exception("%s: the registry did not take the seal's result", spec.name)
                await asyncio.sleep(wait_s)
                wait_s = min(60.0, wait_s * 2)
            else:
                return
