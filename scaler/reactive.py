"""Reactive: how many replicas the demand itself asks for, and why. Pure; called by plan().

D = requests in flight + queued, over windows (scaler/load.py). T = requests that one replica should
have at once, C = max_seqs, N = replicas that start or are ready.

- Stable: ceil(mean D of 60 s / T).
- Panic (Knative's): ceil(mean D of a short window / T) when that is 2·N or more, or when the mean
  was more than N replicas can run at once, so that somebody waited. Then the short window counts
  and nothing is lowered, until neither was so for 60 s. The short window is twice a start: to wait
  longer than a start takes would cost more than to start for nothing. It is 6 s at most, and 1 s
  at least, the time between two looks.
- Queue: as many as work off what is queued in 30 s: ceil(queued · mean service time / (C · 30 s)).
- From zero: max(1, activation_replicas, ceil(queued / T)) at once, also for requests that came and
  left since the last look; while none is ready yet ceil(D / T) at once, too. More than one are held
  like in a panic.
- Else up to max(2·N, N + 1) within a second, however often it is asked.
- Down by half at most within a second, never while a replica is starting; to one only when one was
  enough for 60 s; to zero only when the caller says that the function is idle: then no window
  holds.
- Never over max_replicas. Floors (min_replicas, prewarms, forecasts) are the caller's.
"""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from glowplug.spec import FunctionSpec
from scaler.load import PANIC_S, STABLE_S, Load, average, replicas_for

if TYPE_CHECKING:
    from scaler.plan import Counts, Demand

PANIC_AT = 2  # times what runs
DRAIN_S = 30.0  # a queue should be worked off in this time
SHORTEST_PANIC_S = 1.0

# Looks come every second, give or take what a loop takes.
_SECOND_S = 0.95
_LATE_S = 10.0


@dataclass(frozen=True, slots=True)
class Pace:
    """What `want` remembers of one function from call to call. Times are those of `now_s`."""

    held: int = 0  # not fewer than these
    held_until_s: float = -math.inf
    crowded_s: float = -math.inf  # when one replica was last not enough
    raised_s: float = -math.inf  # when this second's raise began,
    raise_limit: int = 0  # and how far it may go
    lowered_s: float = -math.inf


AT_REST = Pace()


@dataclass(frozen=True, slots=True)
class Want:
    """How many replicas, why it is another number than before (else empty), and what to hand to the
    next call."""

    replicas: int
    reason: str
    pace: Pace
    panic: bool = False  # what is there is held
    recheck_s: float = math.inf  # without news nothing changes before that time, from now


_NONE = Want(0, "", AT_REST)
_KEEP_ONE = Want(1, "", AT_REST)
_KEEP_ONE_FOR_NOW = Want(1, "", AT_REST, recheck_s=1.0)


def found_running(now_s: float, running: int) -> Pace:
    """After a restart what runs is taken for needed, until a window is full; the first reports of
    demand may come late."""
    return _holding(now_s, running, now_s + STABLE_S + _LATE_S)


def _holding(now_s: float, replicas: int, until_s: float) -> Pace:
    if replicas <= 1:
        return AT_REST
    return Pace(held=replicas, held_until_s=until_s, crowded_s=now_s)


def panic_window_s(start_s: float | None) -> float:
    """The short window of a function whose starts take `start_s`; None: not known yet."""
    return PANIC_S if start_s is None else max(SHORTEST_PANIC_S, min(PANIC_S, 2 * start_s))


def want(
    load: Load,
    now_s: float,
    *,
    demand: "Demand",
    counts: "Counts",
    spec: FunctionSpec,
    target: int,
    before: int,
    pace: Pace = AT_REST,
    is_idle: bool = False,
    service_s: float | None = None,
    start_s: float | None = None,
    drain_s: float = DRAIN_S,
) -> Want:
    """Replicas for this demand; `load` has observed it already.

    `target` is T, `before` what was wanted last (0 where that never came to be), `service_s` the
    mean time of a request at a replica, `start_s` that of a start, both None while not known;
    `drain_s` may be shorter where callers have less time left.
    """
    running = max(counts.starting + counts.ready, counts.outdated)
    if before == 0 and running == 0:
        return _from_zero(now_s, demand=demand, counts=counts, spec=spec, target=target)
    if spec.max_replicas == before == 1:
        # Nothing to count: it stays until the function is idle, and a start is never called off.
        return _NONE if is_idle and not counts.starting else _KEEP_ONE
    if is_idle:
        return _idle(now_s, counts=counts, before=before, pace=pace, most=spec.max_replicas)

    window_s = panic_window_s(start_s)
    recent = average(load, now_s, window_s)
    mean = average(load, now_s, STABLE_S)
    if (
        before == running == counts.ready == 1
        and max(recent, mean, demand.total) <= target
        and not demand.queued
        and now_s >= pace.held_until_s
    ):
        # The common case: nothing to work out. No mean grows by more than the demand of now.
        is_settled = now_s >= _settled_s(load, AT_REST, target)
        lasts = is_settled or max(recent, mean) + demand.total <= target
        return _KEEP_ONE if lasts else _KEEP_ONE_FOR_NOW

    activating = counts.ready == 0 and counts.outdated == 0
    asks = _Asks(
        stable=replicas_for(mean, target),
        fast=replicas_for(recent, target),
        recent=recent,
        window_s=window_s,
        queue=_to_drain(demand.queued, service_s, spec.max_seqs, drain_s),
        waiting=replicas_for(demand.total, target) if activating else 0,
    )
    held = pace.held if now_s < pace.held_until_s else 0
    panics = asks.fast >= PANIC_AT * max(running, 1) or recent > max(running, 1) * spec.max_seqs
    need = max(1, asks.stable, asks.queue, asks.waiting)
    if panics or held:
        need = max(need, asks.fast, held)
    asked, need = need, min(need, spec.max_replicas)
    if asks.fast > 1 or demand.total > target:
        pace = replace(pace, crowded_s=now_s)
    if need == 1 and before > 1 and now_s - pace.crowded_s < STABLE_S:
        need = min(2, spec.max_replicas)

    replicas = need
    base = max(before, running)
    if need > base and not activating:
        pace = _raising(pace, now_s, base=base)
        replicas = min(need, max(pace.raise_limit, base))
    elif need < before:
        lowered = _lowered(need, now_s, before=before, counts=counts, lowered_s=pace.lowered_s)
        replicas = min(lowered, spec.max_replicas)  # which may have been changed
    if replicas < before:
        pace = replace(pace, lowered_s=now_s)
    if panics or (activating and replicas > base):
        pace = replace(pace, held=max(held, replicas), held_until_s=now_s + STABLE_S)
    elif held:
        pace = replace(pace, held=max(held, replicas))
    reason = _why(asks, demand, need=need, target=target, before=before, replicas=replicas)
    return Want(
        replicas,
        reason + _capped(asked, spec) if replicas > before else reason,
        pace,
        panic=now_s < pace.held_until_s,
        recheck_s=1.0 if need != replicas or now_s < _settled_s(load, pace, target) else math.inf,
    )


def _settled_s(load: Load, pace: Pace, target: int) -> float:
    """From then on the windows hold nothing but the demand of now, and nothing else is held."""
    steady_s = load.times[-1] if load.times else -math.inf
    if load.demand <= target:  # one is enough, when that was so for long enough
        steady_s = max(steady_s, pace.crowded_s)
    return max(pace.held_until_s, steady_s + STABLE_S)


class _Asks(NamedTuple):
    """What each rule asks for: replicas, but for `recent`, which are requests."""

    stable: int
    fast: int
    recent: float
    window_s: float
    queue: int
    waiting: int


def _from_zero(
    now_s: float, *, demand: "Demand", counts: "Counts", spec: FunctionSpec, target: int
) -> Want:
    """Requests in flight at zero are being finished by a draining replica: they ask for nothing."""
    if demand.queued:
        why = f"{_requests(demand.queued)} queued, none running"
    elif demand.arrivals and not counts.failing:
        why = "a request came and left, none running"
    else:
        return _NONE
    asked = max(replicas_for(demand.queued, target), spec.activation_replicas)
    replicas = min(asked, spec.max_replicas)
    if spec.activation_replicas > max(1, replicas_for(demand.queued, target)):
        why += f", activation_replicas is {spec.activation_replicas}"
    why += _capped(asked, spec)
    pace = _holding(now_s, replicas, now_s + STABLE_S)
    return Want(replicas, why, pace, panic=replicas > 1, recheck_s=1.0)


def _idle(now_s: float, *, counts: "Counts", before: int, pace: Pace, most: int) -> Want:
    """Nobody has called for so long that it may go: by halves, but no window holds it."""
    replicas = _lowered(0, now_s, before=before, counts=counts, lowered_s=pace.lowered_s)
    replicas = min(replicas, most)
    if replicas == 0:
        return Want(0, "idle" if before else "", AT_REST)
    if replicas == before:
        return Want(replicas, "", pace, recheck_s=1.0)
    return Want(replicas, "idle", Pace(lowered_s=now_s), recheck_s=1.0)


def _raising(pace: Pace, now_s: float, *, base: int) -> Pace:
    """How far this second's raise may go: set when it begins."""
    if now_s - pace.raised_s < _SECOND_S:
        return pace
    return replace(pace, raised_s=now_s, raise_limit=max(2 * base, base + 1))


def _lowered(need: int, now_s: float, *, before: int, counts: "Counts", lowered_s: float) -> int:
    """How far down from `before`, where `need` would do."""
    if counts.starting or (before > 1 and now_s - lowered_s < _SECOND_S):
        return before
    return max(need, before - before // 2) if before > 1 else need


def _to_drain(queued: int, service_s: float | None, max_seqs: int, drain_s: float) -> int:
    if not queued or service_s is None:
        return 0
    return replicas_for(queued * service_s / max(drain_s, 1.0), max_seqs)


def _why(
    asks: _Asks, demand: "Demand", *, need: int, target: int, before: int, replicas: int
) -> str:
    """For people; empty where nothing changes."""
    if replicas == before:
        return ""
    if replicas < before:
        return f"no more than {need} needed for {STABLE_S:g} s"
    at_once = max(asks.stable, asks.waiting, asks.fast)
    if need > max(at_once, asks.queue):
        why = "what runs is kept"
    elif asks.queue >= at_once:
        why = f"{_requests(demand.queued)} queued would take too long"
    elif asks.waiting >= max(asks.stable, asks.fast):
        why = f"{_requests(demand.total)} at once, {target} per replica"
    elif asks.fast > asks.stable:
        window = f"the last {asks.window_s:.3g} s"
        why = f"{asks.recent:.3g} requests at once in {window}, {target} per replica"
    else:
        why = f"{STABLE_S:g} s with {target} requests a replica ask for {asks.stable}"
    return why if replicas == need else f"{why}, {need} are needed, doubling once a second"


def _capped(asked: int, spec: FunctionSpec) -> str:
    return f" (max_replicas is {spec.max_replicas})" if asked > spec.max_replicas else ""


def _requests(count: int) -> str:
    return f"{count} request" if count == 1 else f"{count} requests"
