"""Endpoints in memory and shorthands for the unit tests of the activator."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from activator.dispatch import Lane
from activator.queue import Priority
from activator.ticket import Ticket
from glowplug.contracts import (
    FunctionState,
    FunctionStatus,
    Replica,
    ReplicaState,
    StartKind,
)
from glowplug.errors import NotFound
from glowplug.spec import QueueLimits


class MemoryEndpoints:
    """Implements glowplug.contracts.Endpoints for one function, f."""

    def __init__(self) -> None:
        self.listed: dict[str, Replica] = {}
        self.state: FunctionState | None = FunctionState.ZERO
        self.reason: str | None = None
        self.last_start_ms: dict[str, float] = {}
        self._subscribers: list[Callable[[str], None]] = []

    def replicas(self, function: str) -> Sequence[Replica]:
        return list(self.listed.values()) if function == "f" else []

    def status(self, function: str) -> FunctionStatus:
        if function != "f" or self.state is None:
            raise NotFound("no such function")
        return FunctionStatus(
            state=self.state,
            reason=self.reason,
            sealing_progress=0.4 if self.state is FunctionState.SEALING else None,
            snapshot=None,
            desired=len(self.listed),
            desired_reason="",
            replicas=list(self.listed.values()),
            in_flight=0,
            queued=0,
            last_start_ms=self.last_start_ms,
        )

    def subscribe(self, changed: Callable[[str], None]) -> None:
        self._subscribers.append(changed)

    def changed(self) -> None:
        for changed in self._subscribers:
            changed("f")

    def put(self, name: str, state: ReplicaState, *, capacity: int = 16) -> None:
        """List a replica, or change its state, and tell the subscribers."""
        known = self.listed.get(name)
        self.listed[name] = (
            replace(known, state=state)
            if known
            else Replica(
                id=name,
                function="f",
                revision="0123456789",
                state=state,
                url=f"http://{name}",
                capacity=capacity,
                start_kind=StartKind.SNAPSHOT,
            )
        )
        self.changed()

    def drop(self, name: str) -> None:
        """List a replica no longer and tell the subscribers."""
        del self.listed[name]
        self.changed()

    def fail(self, reason: str) -> None:
        """The function has failed."""
        self.state, self.reason = FunctionState.FAILED, reason
        self.changed()


class World:
    """A lane over memory endpoints."""

    def __init__(self) -> None:
        self.endpoints = MemoryEndpoints()
        self.changes = 0
        self.limits = QueueLimits()

    def lane(self) -> Lane:
        lane = Lane("f", endpoints=self.endpoints, changed=self._count)
        self.endpoints.subscribe(lambda _function: lane.refresh())
        return lane

    def enter(self, lane: Lane, tenant: str = "t", *, size_bytes: int = 10) -> Ticket:
        return lane.enter(
            tenant=tenant, priority=Priority.NORMAL, size_bytes=size_bytes, limits=self.limits
        )

    def _count(self, _function: str) -> None:
        self.changes += 1


@pytest.fixture
def world() -> World:
    return World()
