"""The contracts in memory: the test deploys functions and plays the scaler."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from glowplug.contracts import (
    DemandReport,
    Function,
    FunctionState,
    FunctionStatus,
    Replica,
    ReplicaState,
    StartKind,
)
from glowplug.errors import NotFound
from glowplug.spec import FunctionSpec


class MemoryRegistry:
    """Implements glowplug.contracts.Registry."""

    def __init__(self) -> None:
        self.rows: dict[str, Function] = {}
        self.broken = False
        self._subscribers: list[Callable[[str], None]] = []

    async def list(self) -> Sequence[Function]:
        return [self.rows[name] for name in sorted(self.rows)]

    async def get(self, name: str) -> Function:
        await asyncio.sleep(0)
        if self.broken:
            raise RuntimeError("the disk is on fire")
        if name not in self.rows:
            raise NotFound(f"no row {name}")
        return self.rows[name]

    async def put(self, spec: FunctionSpec) -> Function:
        await asyncio.sleep(0)
        before = self.rows.get(spec.name)
        self.rows[spec.name] = Function(
            spec=spec,
            generation=before.generation + 1 if before else 1,
            created_s=before.created_s if before else 1_700_000_000.0,
            updated_s=1_700_000_001.0,
        )
        self._changed(spec.name)
        return self.rows[spec.name]

    async def change(self, name: str, change: Callable[[FunctionSpec], FunctionSpec]) -> Function:
        row = await self.get(name)
        self.rows[name] = replace(row, spec=change(row.spec), generation=row.generation + 1)
        self._changed(name)
        return self.rows[name]

    async def delete(self, name: str) -> None:
        await self.get(name)
        del self.rows[name]
        self._changed(name)

    async def set_sealed(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError

    def subscribe(self, changed: Callable[[str], None]) -> None:
        self._subscribers.append(changed)

    def _changed(self, name: str) -> None:
        for changed in self._subscribers:
            changed(name)


class MemoryEndpoints:
    """Implements glowplug.contracts.Endpoints; the test plays the scaler."""

    def __init__(self, registry: MemoryRegistry) -> None:
        self._registry = registry
        self.listed: dict[str, Replica] = {}
        self.failed: dict[str, str] = {}
        self._subscribers: list[Callable[[str], None]] = []

    def replicas(self, function: str) -> Sequence[Replica]:
        return [each for each in self.listed.values() if each.function == function]

    def status(self, function: str) -> FunctionStatus:
        if function not in self._registry.rows:
            raise NotFound(f"no function {function}")
        replicas = self.replicas(function)
        state = FunctionState.STARTING if replicas else FunctionState.ZERO
        if any(each.state is ReplicaState.READY for each in replicas):
            state = FunctionState.READY
        if function in self.failed:
            state = FunctionState.FAILED
        return FunctionStatus(
            state=state,
            reason=self.failed.get(function),
            sealing_progress=None,
            snapshot=None,
            desired=len(replicas),
            desired_reason="the test says so",
            replicas=replicas,
            in_flight=0,
            queued=0,
            last_start_ms={},
        )

    def subscribe(self, changed: Callable[[str], None]) -> None:
        self._subscribers.append(changed)

    def changed(self, function: str) -> None:
        for changed in self._subscribers:
            changed(function)

    def fail(self, function: str, reason: str) -> None:
        self.failed[function] = reason
        self.changed(function)

    def put(
        self,
        url: str,
        state: ReplicaState,
        *,
        name: str = "r1",
        function: str = "smollm2",
        capacity: int = 16,
        stages_ms: Mapping[str, float] | None = None,
    ) -> None:
        known = self.listed.get(name)
        self.listed[name] = (
            replace(known, state=state, stages_ms=stages_ms or known.stages_ms)
            if known
            else Replica(
                id=name,
                function=function,
                revision="0123456789",
                state=state,
                url=url,
                capacity=capacity,
                start_kind=StartKind.SNAPSHOT,
                stages_ms=stages_ms or {},
            )
        )
        self.changed(function)

    def drop(self, name: str = "r1") -> None:
        self.changed(self.listed.pop(name).function)


class Sink:
    """Implements glowplug.contracts.DemandSink, and waits for what is reported."""

    def __init__(self) -> None:
        self.reports: list[DemandReport] = []
        self._waiting: list[tuple[Callable[[DemandReport], bool], asyncio.Future[None]]] = []

    def report(self, demand: DemandReport) -> None:
        self.reports.append(demand)
        for wanted, found in self._waiting:
            if not found.done() and wanted(demand):
                found.set_result(None)

    @property
    def last(self) -> DemandReport:
        return self.reports[-1]

    async def until(self, wanted: Callable[[DemandReport], bool]) -> DemandReport:
        """Wait until the last report is as wanted."""
        if not self.reports or not wanted(self.last):
            found: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((wanted, found))
            await found
        return self.last

    async def until_queued(self, count: int) -> None:
        await self.until(lambda demand: demand.queued == count)

    async def until_in_flight(self, count: int) -> None:
        await self.until(lambda demand: demand.in_flight == count)

    async def until_idle(self) -> None:
        await self.until(lambda demand: demand.in_flight == demand.queued == 0)
