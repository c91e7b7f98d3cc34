"""The data and protocols at which the parts meet.

The parts never import each other: `glowplug serve` (one machine) and the Kubernetes entry points
hand each part the others' implementations. Everything here runs on one asyncio event loop unless
a docstring says otherwise; callbacks are called on that loop and must not block.
"""

import hashlib
import json
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, Protocol

from glowplug.accelerators import AUTO
from glowplug.spec import FunctionSpec, Pooling, Speculation

# Whose request it is: set by the activator from the API key, never passed on from a client. What a
# replica keeps between requests (the prefix cache) it keeps apart by this.
TENANT_HEADER = "x-glowplug-tenant"

# Its class, by name (`normal`): set by the activator, which takes it from X-Priority.
PRIORITY_HEADER = "x-glowplug-priority"

# What the front door and the replicas take of one request; a prompt of a million tokens is about
# 5 MiB.
MAX_BODY_BYTES = 32 * 2**20


class Priority(IntEnum):
    """Classes of requests, the most urgent first."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


class FunctionState(StrEnum):
    """What a function is doing, as users see it."""

    SEALING = "sealing"  # its model is being sealed; requests wait
    FAILED = "failed"  # its model cannot be sealed, or its replicas do not start; see `reason`
    ZERO = "zero"  # no replica; costs nothing
    STARTING = "starting"  # a replica is being started, none is ready
    READY = "ready"  # at least one replica is ready


class ReplicaState(StrEnum):
    """The life of a replica, in order."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"


class StartKind(StrEnum):
    """How a request found its replica (response header `X-Start-Kind`)."""

    WARM = "warm"  # a replica was ready
    SLEEPING = "sleeping"  # a replica was ready, but asleep
    SNAPSHOT = "snapshot"  # a standby restored the snapshot from this node's cache
    CACHE = "cache"  # no standby was ready: a process was started, the snapshot was in the cache
    COLD = "cold"  # the snapshot was fetched or sealed first


@dataclass(frozen=True, kw_only=True)
class Function:
    """A registry row: the spec and what became of its model."""

    spec: FunctionSpec
    generation: int  # counts changes of the spec
    snapshot: str | None = None  # digest, once this revision is sealed
    failure: str | None = None  # why the model could not be sealed
    created_s: float = 0.0  # Unix time
    updated_s: float = 0.0
    adapters: Mapping[str, str] = field(default_factory=dict)  # name: digest, as last sealed

    @property
    def revision(self) -> str:
        """Ten hex digits: the spec's revision and, as they may change under the same name, the
        contents of its adapters."""
        if not self.adapters:
            return self.spec.revision
        contents = json.dumps([self.spec.revision, sorted(self.adapters.items())])
        return hashlib.sha256(contents.encode()).hexdigest()[:10]


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What a pod needs to turn a standby into a replica."""

    replica: str
    function: str
    revision: str
    snapshot: str  # digest
    max_context: int | None
    max_seqs: int
    kv_cache_bytes: int
    speculation: Speculation = "auto"
    prefix_snapshot_bytes: int = 0
    pooling: Pooling = "auto"
    adapters: Mapping[str, str] = field(default_factory=dict)  # name: digest
    adapter_cache_bytes: int = 0  # for those in memory
    accelerator: str = AUTO  # the class of machine it must run on


@dataclass(frozen=True, kw_only=True)
class Replica:
    """One engine process, as its fleet sees it."""

    id: str
    function: str
    revision: str
    state: ReplicaState
    url: str  # http://host:port; connections are accepted from the moment of assignment
    capacity: int  # sequences at once
    start_kind: StartKind
    stages_ms: Mapping[str, float] = field(default_factory=dict)  # of its start, once ready
    max_context: int | None = None  # tokens of one sequence, once ready
    reason: str | None = None  # why it is gone
    snapshot_lost: bool = False  # it is gone as its node has no such snapshot, or a damaged one
    pid: int | None = None
    asleep: bool = False  # ready, without its KV memory; the next request wakes it
    assigned_s: float = 0.0  # time.monotonic()
    ready_s: float | None = None  # time.monotonic()


@dataclass(kw_only=True, slots=True)  # not frozen: that triples the time to make one
class DemandReport:
    """What one activator has for one function at this moment. Never changed once made.

    Counters only grow, from zero on under each identity, so that reports may be lost or repeated.
    """

    function: str
    reporter: str  # whose counters these are: new with every process, and deployment of a name
    sequence: int  # of this reporter: the higher, the later
    in_flight: int  # handed to a replica, not finished
    queued: int
    oldest_wait_s: float
    arrivals: int  # counter
    warms: int = 0  # counter: of the arrivals, those that only asked for a replica to be ready
    finished: int = 0  # counter: that a replica has answered
    service_s: float = 0.0  # counter: these were at a ready replica, together
    peak: int = 0  # the most in flight and queued at once since the last report, warms apart
    last_active_s: float  # time.monotonic() of the last arrival or completion


class Registry(Protocol):
    """The deployed functions. Raises glowplug.errors; writes are durable on return."""

    async def list(self) -> Sequence[Function]:
        """All functions, by name."""
        ...

    async def get(self, name: str) -> Function:
        """Raises NotFound."""
        ...

    async def put(self, spec: FunctionSpec) -> Function:
        """Create or update. Clears `snapshot` and `failure`: deploying again heals what has gone
        missing, and where the snapshot is still there sealing is a look-up. A `spec` that mentions
        no schedules (`model_fields_set`) keeps those there are: InvalidSpec if they do not fit."""
        ...

    async def change(self, name: str, change: Callable[[FunctionSpec], FunctionSpec]) -> Function:
        """Replace the spec by `change(spec)`, of the same name; no other write comes between. What
        is sealed stays where the revision does. Raises NotFound, and what `change` raises."""
        ...

    async def delete(self, name: str) -> None:
        """Raises NotFound."""
        ...

    async def set_sealed(
        self,
        name: str,
        revision: str,
        *,
        snapshot: str | None,
        failure: str | None,
        adapters: Mapping[str, str] | None = None,
    ) -> None:
        """Record how sealing the spec's `revision` ended; ignored where the function has another
        by now. `adapters` None leaves what is known of them."""
        ...

    def subscribe(self, changed: Callable[[str], None]) -> None:
        """Call `changed(name)` after each change of a function."""
        ...


class DemandSink(Protocol):
    """Takes demand reports; the scaler implements it."""

    def report(self, demand: DemandReport) -> None:
        """Replaces the reporter's last report for that function. Never blocks."""
        ...


class Endpoints(Protocol):
    """Where requests of a function can go; the scaler implements it, the activator reads it."""

    def replicas(self, function: str) -> Sequence[Replica]:
        """Starting and ready replicas, oldest first: those of the current revision once one of
        them is ready, those of the revision before until then."""
        ...

    def status(self, function: str) -> "FunctionStatus":
        """Raises NotFound."""
        ...

    def subscribe(self, changed: Callable[[str], None]) -> None:
        """Call `changed(function)` after each change of its replicas or status."""
        ...


class Fleet(Protocol):
    """Where replicas run. Only the scaler calls it."""

    async def list(self) -> Sequence[Replica]:
        """All replicas that are not gone."""
        ...

    async def assign(self, assignment: Assignment) -> Replica:
        """Give a standby (or a new process) the snapshot; returns while it still starts.

        Raises Unavailable when nothing can take it.
        """
        ...

    async def sleep(self, replica: str) -> None:
        """Have an idle replica give its KV memory back; it wakes itself at its next request, and
        one that works does not fall asleep."""
        ...

    async def release(self, replica: str, *, drain_s: float) -> None:
        """Take no new connection, finish what runs within `drain_s`, end the process."""
        ...

    async def prefetch(self, snapshot: str) -> None:
        """Read the snapshot ahead: an assignment is likely soon."""
        ...

    async def set_standbys(self, count: int) -> None:
        """Keep this many standbys ready from now on, on each node; those that are more end.

        Raises ValueError for fewer than 0 or more than glowplug.pod_wire.MAX_STANDBYS.
        """
        ...

    def watch(self) -> AsyncIterator[Replica]:
        """Every change of a replica, as it happens, from the call on; the last one is GONE."""
        ...


class Sealer(Protocol):
    """Turns a model source into a snapshot in the node cache."""

    async def check(self, spec: FunctionSpec) -> None:
        """Raises SnapshotError where it is plain at once that `seal` cannot succeed."""
        ...

    async def seal(self, spec: FunctionSpec, progress: Callable[[float], None]) -> str:
        """Digest of the snapshot; idempotent. `progress` gets 0.0 to 1.0: only 1.0 where the
        snapshot was in the cache, less first where it was fetched or sealed.

        Raises SnapshotError with the reason for the user.
        """
        ...

    async def seal_adapters(self, spec: FunctionSpec, *, snapshot: str) -> Mapping[str, str]:
        """Digests of the function's adapters by name, sealed for the model of this snapshot, which
        stays as it is; idempotent. Raises SnapshotError.
        """
        ...


class SnapshotStore(Protocol):
    """Finds sealed snapshots on this node."""

    def path(self, digest: str) -> Path:
        """The snapshot's folder. Raises NotFound."""
        ...


@dataclass(frozen=True, kw_only=True)
class PrewarmRun:
    """One window of a scheduled prewarm, on or to come. Times are Unix time."""

    name: str
    launch_s: float  # when its replicas are started, as the start time is known now
    ready_by_s: float
    until_s: float
    replicas: int
    timezone: str
    active: bool  # its replicas are wanted now


@dataclass(frozen=True, kw_only=True)
class ImportedHistory:
    """What a file of traffic history had."""

    minutes: int
    arrivals: int
    first: str | None  # minute, as 2026-11-30T14:21Z
    last: str | None


class History(Protocol):
    """Functions' traffic history as CSV files; the scaler implements it."""

    def export(self, function: str, *, since_s: float | None = None) -> AsyncIterator[bytes]:
        """The file, in pieces: of the last `since_s` seconds, or all there is."""
        ...

    async def replace(self, function: str, file: AsyncIterable[bytes]) -> ImportedHistory:
        """Put the file's minutes in place of all there is from its first to its last.

        Raises InvalidRequest with the line that is wrong; nothing is changed then.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class FunctionStatus:
    """What `glowplug describe` and GET /v1/functions/NAME show beside the spec."""

    state: FunctionState
    reason: str | None  # why it is failed, or what it waits for
    sealing_progress: float | None  # 0.0 to 1.0 while sealing
    snapshot: str | None
    desired: int
    desired_reason: str
    replicas: Sequence[Replica]
    in_flight: int
    queued: int
    last_start_ms: Mapping[str, float]  # stages of the last start
    max_context: int | None = None  # tokens that its last replica took of one sequence
    prewarms: Sequence[
        PrewarmRun
    ] = ()  # of each enabled schedule what is on and the next, in order


# What is foretold of a function so many hours ahead, as JSON: the scaler makes it, the control API
# shows it.
ForecastReport = Callable[[Function, int], Awaitable[Mapping[str, Any]]]
