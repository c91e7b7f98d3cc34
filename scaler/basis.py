"""What a decision of plan() was made from, kept beside it; its words are made only when asked for.

Pure. plan() is called a million times by the simulator: a Basis is one tuple of values that it has
anyway.
"""

import math
from typing import TYPE_CHECKING, NamedTuple

from glowplug.explanation import BreakerInput, Cause, FloorInput, Inputs
from glowplug.spec import FunctionSpec
from scaler.breaker import Breaker
from scaler.idle import Verdict
from scaler.outlook import Floor, Outlook, Source

if TYPE_CHECKING:
    from scaler.plan import Counts, Demand

_ALWAYS_S = 10 * 365 * 86_400.0  # a floor that lasts longer has no end for people


class Basis(NamedTuple):
    """Of one function at one time."""

    demand: "Demand"
    counts: "Counts"
    idle_s: float
    before: int  # replicas wanted before, 0 where they never came to be
    need: int  # replicas, by requests and idleness alone
    outlook: Outlook
    floor: Floor | None  # the highest that was on
    verdict: Verdict


def cause_of(basis: Basis, spec: FunctionSpec, desired: int) -> Cause:
    """Why another number of replicas is wanted now."""
    if desired > basis.before:
        floor = basis.floor
        if basis.need >= desired:
            return Cause.REQUESTS
        if floor is None or floor.replicas < desired:
            return Cause.LIMITS
        return Cause.PREWARM if floor.source is Source.SCHEDULE else Cause.FORECAST
    if basis.before > spec.max_replicas:
        return Cause.LIMITS
    if basis.before == 0:
        return Cause.FAILING if basis.counts.failing else Cause.WITHDRAWN
    return Cause.IDLE if basis.verdict.over else Cause.FEWER


def inputs_of(basis: Basis, breaker: Breaker, *, now_s: float, ahead_s: float) -> Inputs:
    """For people and scripts; `ahead_s` is how far the wall clock is ahead of plan's."""
    demand, counts, verdict = basis.demand, basis.counts, basis.verdict
    floors = [floor for floor in basis.outlook.floors if floor.from_s <= now_s < floor.until_s]
    is_learned = verdict.limit_s is None and verdict.rate > 0
    return Inputs(
        in_flight=demand.in_flight,
        queued=demand.queued,
        arrivals=demand.arrivals,
        starting=counts.starting,
        ready=counts.ready,
        outdated=counts.outdated,
        needed=basis.need,
        idle_s=_rounded(basis.idle_s),
        next_call_s=_rounded(1 / verdict.rate) if is_learned else None,
        cold_start_cost_s=_rounded(verdict.cost_s) if is_learned else None,
        idle_limit_s=verdict.limit_s,
        floors=[
            FloorInput(
                replicas=floor.replicas,
                until_s=None if floor.until_s - now_s > _ALWAYS_S else floor.until_s + ahead_s,
                reason=floor.reason,
            )
            for floor in floors
        ],
        breaker=_breaker(breaker, now_s),
    )


def _breaker(breaker: Breaker, now_s: float) -> BreakerInput | None:
    if not breaker.failures and not breaker.deaths:
        return None
    return BreakerInput(
        failures=breaker.failures,
        deaths=breaker.deaths,
        open=breaker.is_open(now_s),
        retry_in_s=_rounded(max(0.0, breaker.retry_at_s - now_s)),
        cause=breaker.cause,
    )


def _rounded(seconds: float) -> float:
    """Milliseconds are enough to read; finite, for JSON."""
    return round(seconds, 3) if math.isfinite(seconds) else 0.0
