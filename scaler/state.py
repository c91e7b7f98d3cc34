"""What the scaler knows of functions and replicas: written by the reconciler, read by Endpoints.

Plain data on one event loop; nothing here waits or decides.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from glowplug.contracts import Assignment, Function, Replica, ReplicaState, StartKind
from scaler.breaker import Breaker
from scaler.budget import Share
from scaler.plan import Decision

_ORDER = list(ReplicaState)
STARTS_KEPT = 50


@dataclass(kw_only=True)
class Tracked:
    """One function with what became of it."""

    function: Function
    decision: Decision | None = None
    share: Share | None = None  # of a budget that is short; None: all it wants
    breaker: Breaker = field(default_factory=Breaker)
    sealing_progress: float | None = None  # 0.0 to 1.0 while sealing
    last_start_ms: Mapping[str, float] = field(default_factory=dict)
    context: tuple[str, int | None] = ("", None)  # a revision, and its replicas' max_context
    starts_s: deque[float] = field(default_factory=lambda: deque(maxlen=STARTS_KEPT))
    recovering: bool = False  # its snapshot was lost, and no replica has been ready since
    got: bool = False  # its snapshot was not here for the start that is wanted now

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.spec.name

    @property
    def revision(self) -> str:
        """The current revision."""
        return self.function.revision

    @property
    def max_context(self) -> int | None:
        """Tokens of one sequence, once a replica of the current revision has said it."""
        revision, tokens = self.context
        return tokens if revision == self.revision else None

    @property
    def allowed(self) -> int:
        """Replicas of those wanted that the budget has room for."""
        return self.desired if self.share is None else min(self.desired, self.share.replicas)

    @property
    def desired(self) -> int:
        """Replicas wanted by the last decision."""
        return self.decision.desired if self.decision else 0


@dataclass(kw_only=True)
class Entry:
    """One replica, from the moment it is asked for until it is gone."""

    replica: Replica
    since_s: float  # the scaler's clock when it was asked for or first seen
    pending: asyncio.Task[None] | None = None  # the assignment, until the fleet has taken it
    released: bool = False  # by us: its end is no failure
    unreleased: bool = False  # the fleet did not hear of the release: tell it again
    ready_at_s: float | None = None  # the scaler's clock
    told_to_sleep: bool = False  # since its function was last active
    cold: bool = False  # its snapshot was got first, which its fleet does not know

    @property
    def live(self) -> bool:
        """It takes requests, now or soon."""
        return self.replica.state in (ReplicaState.STARTING, ReplicaState.READY)

    @property
    def ready(self) -> bool:
        """It answers requests."""
        return self.replica.state is ReplicaState.READY

    @property
    def starting(self) -> bool:
        """It is asked for or starts."""
        return self.replica.state is ReplicaState.STARTING


class ReplicaTable:
    """All replicas that are not gone, by id; a replica's state only moves forward."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._of: dict[str, dict[str, Entry]] = {}  # the same entries by function
        self.on_change: Callable[[str], None] = lambda _: None  # a function's replicas or states

    def get(self, replica: str) -> Entry | None:
        """The replica's entry, unless it is gone."""
        return self._entries.get(replica)

    def of(self, function: str) -> list[Entry]:
        """The function's replicas, oldest first."""
        return sorted(self._of.get(function, {}).values(), key=lambda entry: entry.since_s)

    def at_zero(self, function: str) -> bool:
        """Whether none of its replicas takes requests, now or soon."""
        return not any(entry.live for entry in self._of.get(function, {}).values())

    def loading(self, function: str) -> tuple[int, int]:
        """How many of its replicas have never been ready, and how many have."""
        entries = self._of.get(function, {}).values()
        loading = sum(entry.ready_at_s is None for entry in entries)
        return loading, len(entries) - loading

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def expect(self, assignment: Assignment, *, now_s: float, cold: bool) -> Entry:
        """Add a replica that is about to be asked for; it counts as starting from now on. `cold`:
        its snapshot had to be fetched or sealed first."""
        replica = Replica(
            id=assignment.replica,
            function=assignment.function,
            revision=assignment.revision,
            state=ReplicaState.STARTING,
            url="",  # not known yet
            capacity=assignment.max_seqs,
            start_kind=StartKind.SNAPSHOT,
        )
        entry = self._add(replica, now_s)
        entry.cold = cold
        return entry

    def adopt(self, replica: Replica, *, now_s: float) -> Entry:
        """Add a replica that runs already."""
        return self._add(replica, now_s)

    def update(self, entry: Entry, replica: Replica, *, now_s: float) -> bool:
        """Take over the fleet's view; False when it is older than ours and so ignored."""
        if _ORDER.index(replica.state) < _ORDER.index(entry.replica.state):
            return False
        entry.replica = replace(replica, start_kind=StartKind.COLD) if entry.cold else replica
        if entry.ready and entry.ready_at_s is None:
            entry.ready_at_s = now_s
        self.on_change(replica.function)
        return True

    def release(self, entry: Entry) -> None:
        """From now on it is draining and its end is expected."""
        entry.released = True
        entry.replica = replace(entry.replica, state=ReplicaState.DRAINING)

    def remove(self, replica: str) -> None:
        """It is gone."""
        entry = self._entries.pop(replica, None)
        if entry is not None:
            of_function = self._of[entry.replica.function]
            del of_function[replica]
            if not of_function:
                del self._of[entry.replica.function]
            self.on_change(entry.replica.function)

    def _add(self, replica: Replica, now_s: float) -> Entry:
        entry = Entry(replica=replica, since_s=now_s)
        if entry.ready:
            entry.ready_at_s = now_s
        self._entries[replica.id] = entry
        self._of.setdefault(replica.function, {})[replica.id] = entry
        self.on_change(replica.function)
        return entry


class State:
    """All functions and all replicas."""

    def __init__(self) -> None:
        self.functions: dict[str, Tracked] = {}
        self.replicas = ReplicaTable()
