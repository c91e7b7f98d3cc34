"""Budget: who gets replicas, and whose sleep or go, while accelerators are short. Pure.

Each replica that a function wants is ranked: those that have something to do before those that are
idle, in both by the function's priority, then by what it is for.

1. Requests that wait or are being worked on. Between functions of one priority replicas are dealt
   out in rounds, everybody's first before anybody's second (max-min fairness). In a round those
   that work come before those that wait, unless these have waited for a turn's length and the
   others have worked for one: then they take turns, the longest wait first. So nobody of the same
   priority starves. A turn is 30 s, or half of the shortest start timeout of those who wait, but
   5 s at least.
2. Floors: min_replicas, prewarms, forecasts. In rounds too.
3. Idle replicas: by the value of keeping them per byte.

Down this list everything gets its place as long as there is room; what does not fit is passed over
for what does. Idle replicas that exist count as asleep at first and are woken with what is left,
down the same list: sleeping costs little, so nobody's idle replica goes, and no start is denied,
while others' idle ones could sleep.

A replica that works is never taken for a floor, for an idle replica, or because the budget became
smaller; it is told to drain only where another function's waiting requests rank higher, and
finishes what it has begun. A start waits until what makes room for it has ended. So there is never
more than the budget, unless more was already running.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TURN_S = 30.0  # half of the default start timeout: those who wait still get their turn
SHORTEST_TURN_S = 5.0  # starts and drains should not take all of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What there is for all functions together; None: as much as they like."""

    replicas: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one function wants and has."""

    function: str
    desired: int  # by its plan
    need: int = 0  # of these: requests wait for them or are worked on
    floor: int = 0  # of these: wanted ahead of demand
    running: int = 0  # it has: starting, ready and asleep, not draining
    busy: int = 0  # of these: work on requests or start
    asleep: int = 0  # of these
    draining: int = 0  # it still has beside them
    priority: int = 0
    replica_bytes: int = 0  # memory of one: measured, or estimated before the first start
    asleep_bytes: int | None = None  # None: it cannot sleep
    value: float = 0.0  # of keeping an idle one: cold starts avoided, times their cost, per second
    waited_s: float = 0.0  # its longest waiting request
    turn_s: float = TURN_S  # the longest turn of others after which it still gets its own in time
    worked_s: float = math.inf  # how long its latest replica has been ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one function gets."""

    replicas: int  # of those desired; what runs beyond drains and ends
    starts: int  # of those that do not run yet: these now, the rest when there is room
    asleep: int = 0  # of its idle ones: so many must sleep
    reason: str | None = None  # why it is less than it wants


@dataclass(frozen=True, slots=True)
class _Unit:
    """One replica of a claim, in the order in which they are dealt out."""

    rank: tuple[float | str, ...]
    claim: Claim
    ordinal: int  # from 1: busy ones first, then others that run, then new ones
    waits: bool  # requests wait for it, and it does not run
    least_bytes: int  # asleep, where it can be

    @property
    def busy(self) -> bool:
        return self.ordinal <= self.claim.busy

    @property
    def runs(self) -> bool:
        return self.ordinal <= self.claim.running


class _Room:
    """What is left of a budget. Negative where more runs already."""

    def __init__(self, budget: Budget) -> None:
        self.replicas = math.inf if budget.replicas is None else budget.replicas
        self.memory_bytes = math.inf if budget.memory_bytes is None else budget.memory_bytes

    def has(self, memory_bytes: int, *, replicas: int = 1) -> bool:
        return replicas <= self.replicas and memory_bytes <= self.memory_bytes

    def take(self, memory_bytes: int, *, replicas: int = 1) -> None:
        self.replicas -= replicas
        self.memory_bytes -= memory_bytes


def share(claims: Sequence[Claim], budget: Budget) -> dict[str, Share]:
    """What each gets, by function."""
    room = _Room(budget)
    for claim in claims:
        most = max(claim.desired, claim.running) + claim.draining
        room.take(most * claim.replica_bytes, replicas=most)
    if room.replicas >= 0 and room.memory_bytes >= 0:
        return {claim.function: _all(claim) for claim in claims}  # it is not short

    turn_s = _turn_s(claims)
    units = sorted(
        (unit for claim in claims for unit in _units(claim, turn_s)), key=lambda unit: unit.rank
    )
    granted = {claim.function: 0 for claim in claims}
    left = _deal(units, granted, budget)
    asleep = _wake(units, granted, left)
    starts = _starts(units, granted, asleep, claims=claims, budget=budget)
    return {
        claim.function: Share(
            replicas=granted[claim.function],
            starts=starts[claim.function],
            asleep=asleep[claim.function],
            reason=_reason(
                claim,
                units,
                granted,
                starts=starts[claim.function],
                asleep=asleep[claim.function],
                budget=budget,
            ),
        )
        for claim in claims
    }


def _all(claim: Claim) -> Share:
    return Share(replicas=claim.desired, starts=max(0, claim.desired - claim.running))


def _turn_s(claims: Iterable[Claim]) -> float:
    """How long a turn is while these share: as long as all who wait for a replica can bear."""
    waiting = (claim.turn_s for claim in claims if claim.need > claim.running)
    return max(SHORTEST_TURN_S, min(TURN_S, min(waiting, default=TURN_S)))


def _units(claim: Claim, turn_s: float) -> Iterable[_Unit]:
    per_byte = claim.value / max(1, claim.replica_bytes)
    for ordinal in range(1, claim.desired + 1):
        runs, busy = ordinal <= claim.running, ordinal <= claim.busy
        serves = busy or ordinal <= claim.need
        can_sleep = runs and not serves and claim.asleep_bytes is not None
        order: tuple[float, ...]
        if serves:
            kind, order = 1, (ordinal, _turn(claim, turn_s, runs=runs), -claim.waited_s, -per_byte)
        elif ordinal <= claim.floor:
            kind, order = 2, (ordinal, -per_byte)
        else:
            kind, order = 3, (-per_byte, ordinal)
        yield _Unit(
            rank=(
                int(kind == 3),
                -claim.priority,
                kind,
                *order,
                0 if runs else 1,
                claim.function,
                ordinal,
            ),
            claim=claim,
            ordinal=ordinal,
            waits=serves and not runs,
            least_bytes=_asleep_bytes(claim) if can_sleep else claim.replica_bytes,
        )


def _turn(claim: Claim, turn_s: float, *, runs: bool) -> int:
    """Within a round: who has just begun, who has waited long, who works, who waits."""
    if runs:
        return 0 if claim.worked_s < turn_s else 2
    return 1 if claim.waited_s >= turn_s else 3


def _asleep_bytes(claim: Claim) -> int:
    return claim.replica_bytes if claim.asleep_bytes is None else claim.asleep_bytes


def _deal(units: Sequence[_Unit], granted: dict[str, int], budget: Budget) -> _Room:
    """Write how many each gets into `granted`; the room that is left while what can sleeps."""
    kept = _still_working(units, budget)
    room = _Room(budget)
    for unit in units:
        if unit.busy and unit.ordinal <= kept[unit.claim.function]:
            granted[unit.claim.function] += 1
            room.take(unit.least_bytes)
    for unit in units:
        is_next = unit.ordinal == granted[unit.claim.function] + 1
        if not unit.busy and is_next and room.has(unit.least_bytes):
            granted[unit.claim.function] += 1
            room.take(unit.least_bytes)
    return room


def _still_working(units: Sequence[_Unit], budget: Budget) -> dict[str, int]:
    """How many busy replicas each keeps: those with a place of their own, and those that no waiting
    request outranks."""
    room = _Room(budget)
    kept = {unit.claim.function: 0 for unit in units}
    others_wait: set[str] = set()  # functions whose waiting requests were ranked so far
    for unit in units:
        function = unit.claim.function
        has_room = room.has(unit.least_bytes)
        outranked = bool(others_wait - {function})
        if unit.busy and unit.ordinal == kept[function] + 1 and (has_room or not outranked):
            kept[function] += 1
        if has_room:
            room.take(unit.least_bytes)
        if unit.waits and _Room(budget).has(unit.least_bytes):
            others_wait.add(function)
    return kept


def _wake(units: Sequence[_Unit], granted: dict[str, int], left: _Room) -> dict[str, int]:
    """How many of each must sleep: those for whom nothing is left."""
    asleep = dict.fromkeys(granted, 0)
    for unit in units:
        more_bytes = unit.claim.replica_bytes - unit.least_bytes
        if more_bytes > 0 and unit.ordinal <= granted[unit.claim.function]:
            if left.has(more_bytes, replicas=0):
                left.take(more_bytes, replicas=0)
            else:
                asleep[unit.claim.function] += 1
    return asleep


def _starts(
    units: Sequence[_Unit],
    granted: dict[str, int],
    asleep: dict[str, int],
    *,
    claims: Sequence[Claim],
    budget: Budget,
) -> dict[str, int]:
    """What can start beside all that is still there, also what drains or has yet to fall asleep."""
    room = _Room(budget)
    for claim in claims:
        stay = min(claim.running, granted[claim.function])
        awake = max(claim.running - claim.asleep, stay - asleep[claim.function])
        room.take(
            (awake + claim.draining) * claim.replica_bytes
            + (claim.running - awake) * _asleep_bytes(claim),
            replicas=claim.running + claim.draining,
        )
    starts = dict.fromkeys(granted, 0)
    for unit in units:
        function = unit.claim.function
        if not unit.runs and unit.ordinal <= granted[function] and room.has(unit.least_bytes):
            starts[function] += 1
            room.take(unit.least_bytes)
    return starts


def _reason(
    claim: Claim,
    units: Sequence[_Unit],
    granted: dict[str, int],
    *,
    starts: int,
    asleep: int,
    budget: Budget,
) -> str | None:
    short = f"the budget of {_size(budget)} is short"
    replicas = granted[claim.function]
    if replicas < claim.desired:
        return f"{short}: {_kept_for(claim, units, granted)}"
    if starts < replicas - claim.running:
        return f"{short}: it starts when others have ended"
    return f"{short}: {asleep} of its idle replicas sleep" if asleep else None


def _kept_for(claim: Claim, units: Sequence[_Unit], granted: dict[str, int]) -> str:
    """Those that ranked before the first one that it does not get."""
    before: list[Claim] = []
    for unit in units:
        if unit.claim is claim and unit.ordinal > granted[claim.function]:
            break
        others = unit.claim is not claim and unit.claim not in before
        if others and unit.ordinal <= granted[unit.claim.function]:
            before.append(unit.claim)
    if not before:
        return f"there is room for {granted[claim.function]} of {claim.desired}"
    first = before[0]
    more = f" and {len(before) - 1} more" if len(before) > 1 else ""
    return f"kept for '{first.function}' (priority {first.priority}){more}"


def _size(budget: Budget) -> str:
    parts = []
    if budget.replicas is not None:
        parts.append(f"{budget.replicas} replica{'' if budget.replicas == 1 else 's'}")
    if budget.memory_bytes is not None:
        parts.append(f"{budget.memory_bytes / 2**30:.3g} GiB")
    return " and ".join(parts)
