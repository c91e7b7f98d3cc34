"""Explain: why a function has the replicas it has, and what comes next. On the event loop."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from glowplug.contracts import PrewarmRun
from glowplug.explanation import Cause, Explanation, NextChange, not_decided, rough
from scaler import rollout
from scaler.basis import Basis, inputs_of
from scaler.decisions import DecisionLog
from scaler.demand import DemandTable
from scaler.foresight import Ahead, foresee
from scaler.plan import Decision
from scaler.rates import Shared
from scaler.registry import unknown_function
from scaler.state import State, Tracked


class ScalerExplanations:
    """Implements glowplug.explanation.Explanations."""

    def __init__(
        self,
        state: State,
        *,
        demand: DemandTable,
        decisions: DecisionLog,
        prewarms: Callable[[Tracked], Sequence[PrewarmRun]],
        shared: Callable[[], Shared],
        now: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        """`shared` is what the reconciler has learned over all functions up to now."""
        self._state = state
        self._demand = demand
        self._decisions = decisions
        self._prewarms = prewarms
        self._shared = shared
        self._now = now
        self._wall = wall

    def explain(self, function: str, *, limit: int) -> Explanation:
        """With `limit` events at most. Raises NotFound."""
        tracked = self._state.functions.get(function)
        if tracked is None:
            raise unknown_function(function)
        decision, wall_s = tracked.decision, self._wall()
        runs = self._prewarms(tracked)
        next_prewarm = next((run for run in runs if not run.active), None)
        if decision is None or decision.basis is None:
            events = self._decisions.of(function, limit)
            return replace(not_decided(wall_s), next_prewarm=next_prewarm, events=events)
        now_s = self._now()
        ahead = self._ahead(tracked, decision, decision.basis, now_s)
        basis = ahead.now.basis or decision.basis
        return Explanation(
            at_s=wall_s,
            desired=decision.desired,
            reason=decision.reason,
            verdict=verdict_of(tracked, basis, ahead, now_s),
            inputs=inputs_of(basis, tracked.breaker, now_s=now_s, ahead_s=wall_s - now_s),
            next_change=_next_change(decision, ahead, now_s=now_s, wall_s=wall_s),
            next_prewarm=next_prewarm,
            events=self._decisions.of(function, limit),
        )

    def _ahead(self, tracked: Tracked, decision: Decision, basis: Basis, now_s: float) -> Ahead:
        """What follows the last decision, with the demand and the replicas of now."""
        name = tracked.name
        demand = replace(
            basis.demand,
            in_flight=self._demand.in_flight(name),
            queued=self._demand.queued(name),
            last_active_s=self._demand.last_active_s(name),
            load=self._demand.load(name),
        )
        counts = rollout.count(
            self._state.replicas.of(name), tracked.revision, failing=basis.counts.failing
        )
        return foresee(
            now_s,
            spec=tracked.function.spec,
            demand=demand,
            history=decision.history,
            counts=counts,
            outlook=basis.outlook,
            shared=self._shared(),
        )


def verdict_of(tracked: Tracked, basis: Basis, ahead: Ahead, now_s: float) -> str:
    """What becomes of the replicas, in one sentence."""
    desired, change, demand = tracked.desired, ahead.change, basis.demand
    if (hindered := _hindered(tracked, basis, now_s)) is not None:
        return hindered
    when = rough(ahead.until_s - now_s)
    if change is not None:
        why = _bare(change)
        if change.desired > desired:
            return f"{desired} → {change.desired} in {when}: {why}"
        until = "as long as nobody calls" if not demand.total else "with the requests of now"
        kept = f"kept for {when} more {until}"
        held = _held(tracked, basis)
        return f"{kept}{f', as {held}' if held else ''}; then {desired} → {change.desired}: {why}"
    if desired == 0:
        return "at zero until somebody calls"
    held = _held(tracked, basis) or "a call is likely enough"
    span = "" if math.isinf(ahead.until_s) else f" for {when} or more"
    return f"kept{span}, as {held}"


def _hindered(tracked: Tracked, basis: Basis, now_s: float) -> str | None:
    """Why none can start now, whatever is wanted."""
    breaker, function, share = tracked.breaker, tracked.function, tracked.share
    if not basis.counts.ready and not basis.counts.outdated:
        if function.failure is not None:
            return f"its model cannot be sealed ({function.failure})"
        if function.snapshot is None:
            return "its model is being sealed" + (", then it starts" if tracked.desired else "")
        if share is not None and share.reason and not basis.counts.starting:
            return share.reason
    if breaker.is_open(now_s):
        wait = rough(breaker.retry_at_s - now_s)
        return f"its replicas do not start ({breaker.cause}); the next try is in {wait}"
    return None


def _held(tracked: Tracked, basis: Basis) -> str:
    """What the replicas are kept for now."""
    demand, floor, verdict = basis.demand, basis.floor, basis.verdict
    if demand.total:
        return f"{demand.in_flight} requests are in flight and {demand.queued} queued"
    if floor is not None and floor.replicas >= tracked.desired:
        return floor.reason
    if 0 < tracked.desired <= tracked.function.spec.min_replicas:
        return f"min_replicas is {tracked.function.spec.min_replicas}"
    if verdict.limit_s is not None:
        return f"the idle time is {verdict.limit_s:g} s"
    if verdict.rate * verdict.cost_s > 1:
        return (
            f"the next call is expected in {rough(1 / verdict.rate)} and a cold start costs "
            f"{verdict.cost_s:.3g} replica-seconds"
        )
    return "it has only just become idle" if verdict.rate > 0 else ""


def _next_change(
    decision: Decision, ahead: Ahead, *, now_s: float, wall_s: float
) -> NextChange | None:
    if ahead.change is None:
        return None
    in_s = max(0.0, ahead.until_s - now_s)
    return NextChange(
        at_s=wall_s + in_s,
        in_s=round(in_s, 3),
        desired=ahead.change.desired,
        cause=ahead.cause or Cause.FEWER,
        reason=_bare(ahead.change),
    )


def _bare(decision: Decision) -> str:
    """Its reason without the numbers that are said beside it."""
    return decision.reason.rpartition(": ")[0] or decision.reason
