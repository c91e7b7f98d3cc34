"""Decisions: what was decided of each function and what became of it, the last hundred events.

On the event loop. The reconciler tells every decision, the launcher what replicas do. A decision
that changes nothing costs a comparison; words and inputs are made for those that do.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from glowplug.contracts import Function
from glowplug.explanation import KEPT, Cause, Event, EventKind, Inputs
from scaler.basis import cause_of, inputs_of
from scaler.outlook import Floor, Outlook, Source
from scaler.plan import Decision
from scaler.state import Tracked

MAX_REASON_CHARS = 500
MAX_UNWRITTEN = 10_000


class DecisionLog:
    """Keeps the last events of each function. `kept` are those of the server before."""

    def __init__(
        self,
        kept: Mapping[str, Iterable[Event]] | None = None,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`wall` is Unix time; the events of `kept` are in the order of their ids."""
        self._wall = wall
        self._rings = {name: deque(events, KEPT) for name, events in (kept or {}).items()}
        self._floors: dict[str, frozenset[str]] = {}  # reasons of the scheduled ones that are on
        self._open: set[str] = set()  # functions whose breaker was opened and not closed since
        self._changes: dict[str, Counter[Cause]] = {}
        self._unwritten: deque[tuple[str, Event]] = deque(maxlen=MAX_UNWRITTEN)
        self._forgotten: set[str] = set()  # deleted since the last write

    @property
    def functions(self) -> set[str]:
        """Those that have events."""
        return set(self._rings)

    def of(self, function: str, limit: int = KEPT) -> Sequence[Event]:
        """Its last events, the newest first."""
        return list(islice(reversed(self._rings.get(function, ())), limit))

    def changes(self, function: str) -> Mapping[Cause, int]:
        """How often another number of replicas was wanted, since this server started."""
        return self._changes.get(function, {})

    def deployed(self, function: Function, *, starting: bool = False) -> None:
        """It is new or changed, or was there when the server, now `starting`, began."""
        name = function.spec.name
        if starting:
            self._add(name, EventKind.SERVER_STARTED, f"revision {function.revision} is deployed")
        else:
            why = f"revision {function.revision}, generation {function.generation}"
            self._add(name, EventKind.DEPLOYED, why)

    def note(
        self, function: str, kind: EventKind, reason: str, *, replica: str | None = None
    ) -> None:
        """Something has happened; of what is not deployed nothing is kept."""
        ring = self._rings.get(function)
        if ring is None:
            return
        if kind is EventKind.RELEASED and reason == _last_decision(ring):
            reason = ""  # it was said already
        self._add(function, kind, reason, replica=replica)

    def decided(self, tracked: Tracked, decision: Decision, now_s: float) -> None:
        """A decision at `now_s` on plan's clock; `tracked` still has the one before."""
        name, basis = tracked.name, decision.basis
        if basis is not None and (basis.outlook.floors or name in self._floors):
            self._prewarms(name, basis.outlook, now_s)
        if decision.desired != tracked.desired:
            self._changed(tracked, decision, now_s)
        self._breaker(tracked, now_s)

    def forget(self, function: str) -> None:
        """It is deleted."""
        for of_functions in (self._rings, self._floors, self._changes):
            of_functions.pop(function, None)
        self._open.discard(function)
        kept = (each for each in self._unwritten if each[0] != function)
        self._unwritten = deque(kept, MAX_UNWRITTEN)
        self._forgotten.add(function)

    def take_unwritten(self) -> tuple[set[str], list[tuple[str, Event]]]:
        """For the file: functions to drop, then events to add."""
        taken = self._forgotten, list(self._unwritten)
        self._forgotten = set()
        self._unwritten.clear()
        return taken

    def give_back(self, forgotten: set[str], events: Iterable[tuple[str, Event]]) -> None:
        """These could not be written; the next `take_unwritten` has them again."""
        old = (each for each in events if each[0] not in self._forgotten)
        self._unwritten = deque([*old, *self._unwritten], MAX_UNWRITTEN)
        self._forgotten |= forgotten

    def _changed(self, tracked: Tracked, decision: Decision, now_s: float) -> None:
        name, basis, before = tracked.name, decision.basis, tracked.desired
        inputs = cause = None
        if basis is not None:
            ahead_s = self._wall() - now_s
            inputs = inputs_of(basis, tracked.breaker, now_s=now_s, ahead_s=ahead_s)
            cause = cause_of(basis, tracked.function.spec, decision.desired)
            if tracked.decision is None and decision.desired == basis.before:
                cause = Cause.FOUND
            self._changes.setdefault(name, Counter())[cause] += 1
        self._add(
            name,
            EventKind.DESIRED,
            decision.reason.removesuffix(f": {before} → {decision.desired}"),
            before=before,
            after=decision.desired,
            cause=cause,
            inputs=inputs,
        )

    def _prewarms(self, name: str, outlook: Outlook, now_s: float) -> None:
        on = [floor for floor in outlook.floors if _is_on(floor, now_s)]
        reasons = frozenset(floor.reason for floor in on)
        before = self._floors.get(name, frozenset())
        for reason in sorted(before - reasons):
            self._add(name, EventKind.PREWARM_ENDED, reason)
        for floor in on:
            if floor.reason not in before:
                self._add(name, EventKind.PREWARM_LAUNCHED, f"{floor.reason} → {floor.replicas}")
        if reasons:
            self._floors[name] = reasons
        else:
            self._floors.pop(name, None)

    def _breaker(self, tracked: Tracked, now_s: float) -> None:
        """Told once, until starts work again."""
        name, breaker = tracked.name, tracked.breaker
        if breaker.is_open(now_s):
            if name not in self._open:
                self._open.add(name)
                count = max(breaker.failures, breaker.deaths)
                why = f"{count} failures in a row, callers are refused meanwhile: {breaker.cause}"
                self._add(name, EventKind.BREAKER_OPENED, why)
        elif name in self._open and not breaker.failing:
            self._open.discard(name)

    def _add(
        self,
        function: str,
        kind: EventKind,
        reason: str,
        *,
        before: int | None = None,
        after: int | None = None,
        cause: Cause | None = None,
        replica: str | None = None,
        inputs: Inputs | None = None,
    ) -> None:
        ring = self._rings.get(function)
        if ring is None:
            ring = self._rings[function] = deque(maxlen=KEPT)
        event = Event(
            id=ring[-1].id + 1 if ring else 1,
            at_s=self._wall(),
            kind=kind,
            reason=reason[:MAX_REASON_CHARS],
            before=before,
            after=after,
            cause=cause,
            replica=replica,
            inputs=inputs,
        )
        ring.append(event)
        self._unwritten.append((function, event))


def _last_decision(events: Sequence[Event]) -> str | None:
    """plan()'s whole sentence."""
    last = next((each for each in reversed(events) if each.kind is EventKind.DESIRED), None)
    return f"{last.reason}: {last.before} → {last.after}" if last else None


def _is_on(floor: Floor, now_s: float) -> bool:
    return floor.source is Source.SCHEDULE and floor.from_s <= now_s < floor.until_s
