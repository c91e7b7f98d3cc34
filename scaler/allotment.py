"""Allotment: what each function claims of a budget that all share, from the reconciler's state.

scaler/budget.py says who gets what; here is what it is told. Which replicas work is not known here,
so as many as there are requests in flight count as working.
"""

from collections.abc import Callable, Iterable

from scaler.budget import Claim
from scaler.demand import DemandTable
from scaler.state import ReplicaTable, Tracked


def claims(
    functions: Iterable[Tracked],
    *,
    replicas: ReplicaTable,
    demand: DemandTable,
    weights_bytes: Callable[[str], int],
    now_s: float,
) -> list[Claim]:
    """One for each function that has been decided on; `weights_bytes` is of a snapshot's digest."""
    return [
        _claim(tracked, replicas, demand, weights_bytes, now_s)
        for tracked in functions
        if tracked.decision is not None and tracked.decision.basis is not None
    ]


def _claim(
    tracked: Tracked,
    replicas: ReplicaTable,
    demand: DemandTable,
    weights_bytes: Callable[[str], int],
    now_s: float,
) -> Claim:
    spec, snapshot, decision = tracked.function.spec, tracked.function.snapshot, tracked.decision
    assert decision is not None and decision.basis is not None  # noqa: S101 - the caller's filter
    basis = decision.basis
    entries = replicas.of(tracked.name)
    live = [entry for entry in entries if entry.live]
    ready = [entry for entry in live if entry.ready]
    in_flight, queued = demand.in_flight(tracked.name), demand.queued(tracked.name)
    weights = 0 if snapshot is None else weights_bytes(snapshot)
    return Claim(
        function=tracked.name,
        desired=decision.desired,
        need=min(decision.desired, basis.need) if in_flight + queued else 0,
        floor=max(spec.min_replicas, 0 if basis.floor is None else basis.floor.replicas),
        running=len(live),
        busy=len(live) - len(ready) + min(len(ready), in_flight),
        asleep=sum(entry.replica.asleep for entry in ready),
        draining=len(entries) - len(live),
        priority=spec.priority,
        replica_bytes=weights + spec.kv_cache_bytes,
        asleep_bytes=weights,
        value=basis.verdict.cost_s * basis.verdict.rate,
        waited_s=basis.demand.oldest_wait_s,
        turn_s=spec.start_timeout_s / 2,
        worked_s=min((now_s - (entry.ready_at_s or now_s) for entry in ready), default=0.0),
    )
