"""plan(): how many replicas each function should have, and why. Pure: no clock, no I/O, no state.

The reconciler calls it on every tick and every edge, the simulator in virtual time. Everything it
knows comes in as arguments, and what it wants to remember goes out in `Decision.history`.

- What the demand itself asks for: scaler/reactive.py, over windows.
- 1 → 0 only by the idle policy, scaler/idle.py; then no window counts.
- Never under the highest floor of its outlook: scheduled prewarms and forecasts only raise.
- Always within min_replicas and max_replicas.
- Replicas sleep after `sleep_s` without a request, if that is set: they keep their process and give
  their KV memory back. They wake by themselves. Under a floor they stay awake.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from glowplug.spec import FunctionSpec
from scaler import idle
from scaler.basis import Basis
from scaler.idle import Verdict
from scaler.load import NO_LOAD, Load, observe
from scaler.outlook import Outlook, highest, next_edge
from scaler.rates import Pattern, Season, Shared, Span
from scaler.reactive import AT_REST, Pace, found_running, want

_NOTHING_AHEAD = Outlook()
_BUSY = Verdict(over=False)
_JUST_IDLE = Verdict(over=False, recheck_s=1.0)


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What the activators have for one function. Times are time.monotonic()."""

    in_flight: int = 0
    queued: int = 0
    arrivals: int = 0  # since the last plan; also counts those that left again
    oldest_wait_s: float = 0.0  # of those queued
    last_active_s: float | None = None
    # Over the last minute, where every report was followed.
    load: Load | None = field(default=None, compare=False)
    service_s: float | None = None  # mean time of a request at a replica, where it is known

    @property
    def total(self) -> int:
        """Requests that a replica works on or should work on."""
        return self.in_flight + self.queued


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The replicas of one function that take requests; draining ones are not counted."""

    starting: int = 0  # of the current revision, those just asked for included
    ready: int = 0  # of the current revision
    outdated: int = 0  # of other revisions, until the current one is ready
    failing: bool = False  # the last start failed, or its model cannot be sealed


@dataclass(frozen=True, kw_only=True)
class History:
    """What plan remembers of one function from call to call."""

    desired: int
    reason: str  # of the last change of `desired`
    last_active_s: float
    started: bool  # a replica has existed since the function last was at zero
    load: Load = NO_LOAD
    pace: Pace = AT_REST
    pattern: Pattern | None = None  # of its calls, once there was one
    busy: bool = False


@dataclass(frozen=True, kw_only=True)
class Decision:
    """How many replicas, and why it came to that: one short sentence for people."""

    desired: int
    reason: str
    history: History
    sleep: bool = False  # those that stay have been idle long enough to sleep
    span: Span | None = None  # of idleness that has passed, for `learn`
    recheck_s: float = math.inf  # without news nothing changes before that time, from now
    basis: Basis | None = None  # what it was made from


def target_per_replica(spec: FunctionSpec) -> int:
    """Requests that one replica should have at once: 70% of max_seqs, at least one."""
    return max(1, (7 * spec.max_seqs + 5) // 10)


def plan(
    now_s: float,
    demand: Mapping[str, Demand],
    *,
    history: Mapping[str, History],
    specs: Mapping[str, FunctionSpec],
    fleet: Mapping[str, Counts],
    outlook: Mapping[str, Outlook] | None = None,
    shared: Shared | None = None,
) -> dict[str, Decision]:
    """Decide for every function in `specs`.

    `history` is what the last plan returned; a function without one is new, or the scaler was
    restarted: then what runs is taken as what was wanted. Functions without demand, replicas or
    anything ahead may be missing from the other mappings.
    """
    outlook = outlook or {}
    shared = shared or Shared(since_s=now_s, at_s=now_s)
    return {
        name: _decide(
            now_s,
            spec,
            demand=demand.get(name, Demand()),
            history=history.get(name),
            counts=fleet.get(name, Counts()),
            outlook=outlook.get(name, _NOTHING_AHEAD),
            shared=shared,
        )
        for name, spec in specs.items()
    }


def learn(shared: Shared, now_s: float, decisions: Iterable[Decision]) -> Shared:
    """What the functions have in common, after a plan at `now_s`; the next plan takes it."""
    for decision in decisions:
        if decision.span is not None:
            shared = shared.learn(now_s, decision.span)
    return shared


def _decide(
    now_s: float,
    spec: FunctionSpec,
    *,
    demand: Demand,
    history: History | None,
    counts: Counts,
    outlook: Outlook,
    shared: Shared,
) -> Decision:
    # During a roll both revisions run, each standing for the same requests: never their sum.
    running = max(counts.starting + counts.ready, counts.outdated)
    history = history or _found(now_s, running)
    # What ran and died is wanted back while the function is not idle; what never ran is not.
    started = running > 0 or (history.started and not counts.failing)
    before = history.desired if started else 0

    active = demand.total > 0 or demand.arrivals > 0
    last_active_s = now_s if active else _latest(now_s, history, demand)
    idle_s = now_s - last_active_s
    pattern, span = _pattern(now_s, demand, history, shared=shared, season=outlook.season)
    verdict = _BUSY if demand.total else _JUST_IDLE
    if not active:
        verdict = idle.judge(
            now_s,
            spec,
            idle_s=idle_s,
            running=running > 0,
            pattern=pattern,
            shared=shared,
            outlook=outlook,
        )
    floor = highest(outlook.floors, now_s)

    load = observe(history.load if demand.load is None else demand.load, now_s, demand.total)
    wanted = want(
        load,
        now_s,
        demand=demand,
        counts=counts,
        spec=spec,
        target=target_per_replica(spec),
        before=before,
        pace=history.pace,
        is_idle=verdict.over,
        service_s=demand.service_s,
        start_s=outlook.start_s,
    )
    desired = wanted.replicas
    if floor is not None:
        desired = max(desired, floor.replicas)
    desired = min(max(desired, spec.min_replicas), spec.max_replicas)

    reason = history.reason
    if desired != history.desired:
        why = wanted.reason
        if before == 0 and desired == 0:
            why = "no request waits any more"
            if counts.failing:
                why = "its replicas fail and no request waits"
        elif desired < before and before > spec.max_replicas:
            why = f"max_replicas is {spec.max_replicas}"
        elif desired < before and verdict.over:
            why = idle.why_over(verdict, idle_s)
        elif wanted.replicas < desired and floor is not None and floor.replicas >= desired:
            why = floor.reason
        elif wanted.replicas < desired:
            why = f"min_replicas is {spec.min_replicas}"
        reason = f"{why}: {history.desired} → {desired}"
    recheck_s = min(verdict.recheck_s, next_edge(outlook.floors, now_s) - now_s, wanted.recheck_s)
    return Decision(
        desired=desired,
        reason=reason,
        history=History(
            desired=desired,
            reason=reason,
            last_active_s=last_active_s,
            started=started and desired > 0,
            load=load,
            pace=wanted.pace,
            pattern=pattern,
            busy=demand.total > 0,
        ),
        span=span,
        recheck_s=recheck_s,
        sleep=not active and floor is None and spec.sleep_s is not None and idle_s >= spec.sleep_s,
        basis=Basis(demand, counts, idle_s, before, wanted.replicas, outlook, floor, verdict),
    )


def _found(now_s: float, running: int) -> History:
    """Of a function that is new, or that the scaler finds after a restart."""
    return History(
        desired=running,
        reason=f"found running: {running}" if running else "nobody has called it yet",
        last_active_s=now_s,
        started=running > 0,
        pace=found_running(now_s, running),
    )


def _pattern(
    now_s: float, demand: Demand, history: History, *, shared: Shared, season: Season | None
) -> tuple[Pattern | None, Span | None]:
    """The pattern of its calls brought up to now, and the idleness that was learned from."""
    pattern, called = history.pattern, demand.total > 0 or demand.arrivals > 0
    if pattern is None:
        if not called:
            return None, None
        clock_s = shared.clock(now_s)
        return Pattern(since_s=now_s, settled_s=now_s, settled_clock_s=clock_s), None
    if history.busy:
        return (pattern if demand.total else pattern.idle_from(now_s, shared)), None
    if called or pattern.due(now_s):
        return pattern.settle(now_s, shared, season, ended=called)
    return pattern, None


def _latest(now_s: float, history: History, demand: Demand) -> float:
    """The last activity; a reporter's clock may be ahead of ours, never of what we answer."""
    reported_s = -math.inf if demand.last_active_s is None else demand.last_active_s
    return min(now_s, max(history.last_active_s, reported_s))
