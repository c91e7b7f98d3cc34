"""Sealing: seals models in the background, one at a time, and records how it ended.

On the event loop; the work itself is the handed-in Sealer's. The reconciler says in every round
which functions need it; a function that is changed or deleted meanwhile is dropped.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from glowplug.contracts import Function, Registry, Sealer
from glowplug.errors import GlowplugError
from glowplug.spec import FunctionSpec

_ATTEMPTS = 3  # of a seal that fails in an unexpected way; a bad model fails at once
_MAX_FAILURE_CHARS = 2000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How sealing ended: with a snapshot, or with why there is none."""

    snapshot: str | None = None
    failure: str | None = None
    adapters: Mapping[str, str] | None = None  # name: digest; None with a failure


class Sealing:
    """The seals that run or wait."""

    def __init__(
        self,
        *,
        sealer: Sealer,
        registry: Registry,
        progress: Callable[[str, float], None],
        working: Callable[[str], None],
        sealed: Callable[[FunctionSpec, Outcome], None],
        retry_s: float,
    ) -> None:
        """`progress(function, 0.0 to 1.0)`; `working(function)` when its snapshot is not here but
        has to be fetched or sealed; `sealed(spec, outcome)` once it is recorded. `retry_s` is the
        first wait after an unexpected error."""
        self._sealer = sealer
        self._registry = registry
        self._progress = progress
        self._working = working
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
        failure = await self._check(spec)
        if failure is not None:
            await self._finish(spec, Outcome(failure=failure))
            return
        async with self._turn:
            _log.info("%s: sealing %s as revision %s", spec.name, spec.model, spec.revision)
            self._progress(spec.name, 0.0)
            outcome = await self._seal(spec)
        await self._finish(spec, outcome)

    async def _check(self, spec: FunctionSpec) -> str | None:
        """The failure of a model that is not there, which need not wait for its turn to say so."""
        try:
            await self._sealer.check(spec)
        except GlowplugError as error:
            return error.message[:_MAX_FAILURE_CHARS]
        except Exception:  # sealing will say it, after trying again
            _log.exception("%s: its model could not be checked", spec.name)
        return None

    async def _finish(self, spec: FunctionSpec, outcome: Outcome) -> None:
        if outcome.failure is None:
            _log.info("%s: sealed as %s", spec.name, outcome.snapshot)
        else:
            _log.warning("%s: cannot be sealed: %s", spec.name, outcome.failure)
        await self._record(spec, outcome)
        if self._tasks.get(spec.name, ("", None))[1] is asyncio.current_task():
            del self._tasks[spec.name]
        self._sealed(spec, outcome)

    async def _seal(self, spec: FunctionSpec) -> Outcome:
        """The model, then its adapters."""

        def progress(done: float) -> None:
            if self._tasks.get(spec.name, ("", None))[0] == spec.revision:  # not dropped meanwhile
                if done < 1.0:
                    self._working(spec.name)
                self._progress(spec.name, min(1.0, max(0.0, done)))

        attempt = 1
        while True:
            try:
                snapshot = await self._sealer.seal(spec, progress)
                adapters: Mapping[str, str] = {}
                if spec.adapters:
                    adapters = await self._sealer.seal_adapters(spec, snapshot=snapshot)
                return Outcome(snapshot=snapshot, adapters=adapters)
            except GlowplugError as error:
                return Outcome(failure=error.message[:_MAX_FAILURE_CHARS])
            except Exception as error:
                _log.exception("%s: sealing ended unexpectedly", spec.name)
                if attempt == _ATTEMPTS:
                    reason = f"sealing ended unexpectedly ({type(error).__name__}: {error})"
                    return Outcome(failure=reason[:_MAX_FAILURE_CHARS])
            await asyncio.sleep(self._retry_s * 2 ** (attempt - 1))
            attempt += 1

    async def _record(self, spec: FunctionSpec, outcome: Outcome) -> None:
        """Into the registry, however long that takes."""
        wait_s = self._retry_s
        while True:
            try:
                await self._registry.set_sealed(
                    spec.name,
                    spec.revision,
                    snapshot=outcome.snapshot,
                    failure=outcome.failure,
                    adapters=outcome.adapters,
                )
            except Exception:
                _log.exception("%s: the registry did not take the seal's result", spec.name)
                await asyncio.sleep(wait_s)
                wait_s = min(60.0, wait_s * 2)
            else:
                return
