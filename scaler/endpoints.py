"""ScalerEndpoints: where requests can go and how each function does, for the activator.

On the event loop. Reads the scaler's state; the reconciler calls `refresh` after each change.
"""

import logging
from collections.abc import Callable, Sequence

from glowplug.contracts import FunctionState, FunctionStatus, PrewarmRun, Replica
from scaler.breaker import OPEN_AFTER, Breaker
from scaler.demand import DemandTable
from scaler.registry import unknown_function
from scaler.state import State, Tracked

_log = logging.getLogger(__name__)


class ScalerEndpoints:
    """Implements glowplug.contracts.Endpoints.

    Requests go to replicas of the current revision once one of them is ready, to those of the
    revisions before until then; replicas that drain get none.
    """

    def __init__(
        self,
        state: State,
        demand: DemandTable,
        *,
        now: Callable[[], float],
        prewarms: Callable[[Tracked], Sequence[PrewarmRun]] = lambda _: (),
    ) -> None:
        """`now` is time.monotonic or a test's clock."""
        self._state = state
        self._demand = demand
        self._now = now
        self._prewarms = prewarms
        self._subscribers: list[Callable[[str], None]] = []
        self._told: dict[str, object] = {}

    def replicas(self, function: str) -> Sequence[Replica]:
        """Starting and ready replicas that take requests, oldest first."""
        tracked = self._state.functions.get(function)
        if tracked is None:
            return []
        live = [
            entry for entry in self._state.replicas.of(function) if entry.live and entry.replica.url
        ]
        current = [entry for entry in live if entry.replica.revision == tracked.revision]
        outdated = [entry for entry in live if entry.replica.revision != tracked.revision]
        chosen = outdated if outdated and not any(entry.ready for entry in current) else current
        return [entry.replica for entry in chosen]

    def status(self, function: str) -> FunctionStatus:
        """The function's state for users. Raises NotFound."""
        tracked = self._state.functions.get(function)
        if tracked is None:
            raise unknown_function(function)
        state, reason = self._describe(tracked)
        return FunctionStatus(
            state=state,
            reason=reason,
            sealing_progress=tracked.sealing_progress,
            snapshot=tracked.function.snapshot,
            desired=tracked.desired,
            desired_reason=_reason(tracked),
            replicas=[
                entry.replica
                for entry in self._state.replicas.of(function)
                if entry.replica.url or entry.released
            ],
            in_flight=self._demand.in_flight(function),
            queued=self._demand.queued(function),
            last_start_ms=tracked.last_start_ms,
            max_context=tracked.max_context,
            prewarms=self._prewarms(tracked),
        )

    def subscribe(self, changed: Callable[[str], None]) -> None:
        """Call `changed(function)` after each change of its replicas or status."""
        self._subscribers.append(changed)

    def refresh(self, function: str) -> None:
        """Tell the subscribers, if what they would see has changed since the last call."""
        seen = self._fingerprint(function)
        if seen == self._told.get(function):
            return
        if seen is None:
            del self._told[function]
        else:
            self._told[function] = seen
        for changed in self._subscribers:
            try:
                changed(function)
            except Exception:
                _log.exception("a subscriber failed on a change of %s", function)

    def _fingerprint(self, name: str) -> object:
        """What subscribers are told of: not the seconds in a reason, nor tenths of a percent."""
        tracked = self._state.functions.get(name)
        if tracked is None:
            return None
        function = tracked.function
        state, _ = self._describe(tracked)
        progress = tracked.sealing_progress
        return (
            state,
            (function.generation, function.updated_s, function.snapshot, function.failure),
            tracked.desired,
            tracked.breaker,
            None if progress is None else int(progress * 100),
            tuple(entry.replica for entry in self._state.replicas.of(name)),
        )

    def _describe(self, tracked: Tracked) -> tuple[FunctionState, str | None]:
        function = tracked.function
        live = [entry for entry in self._state.replicas.of(tracked.name) if entry.live]
        if any(entry.ready for entry in live):
            return FunctionState.READY, self._beside_ready(tracked)
        if function.failure is not None:
            return FunctionState.FAILED, function.failure
        if function.snapshot is None:
            waits = tracked.sealing_progress is None
            return (
                FunctionState.SEALING,
                f"its model {'waits to be' if waits else 'is being'} sealed",
            )
        if tracked.breaker.is_open(self._now()) and not live:
            return FunctionState.FAILED, self._beside_failed(tracked.breaker)
        if live or tracked.desired:
            short = tracked.share.reason if tracked.share and not live else None
            return FunctionState.STARTING, short or self._beside_starting(tracked.breaker)
        return FunctionState.ZERO, self._beside_zero(tracked.breaker)

    def _beside_failed(self, breaker: Breaker) -> str:
        wait_s = max(1.0, breaker.retry_at_s - self._now())
        if breaker.failures >= OPEN_AFTER:
            what = f"{breaker.failures} starts in a row failed"
        else:
            what = f"{breaker.deaths} replicas in a row died when they had just become ready"
        return (
            f"{what}, the last: {breaker.cause}; "
            f"the next is tried in {wait_s:.0f} s at the earliest"
        )

    def _beside_starting(self, breaker: Breaker) -> str:
        if breaker.cause is None:
            return "a replica is starting"
        wait_s = breaker.retry_at_s - self._now()
        when = "now" if wait_s <= 0 else f"in {wait_s:.0f} s"
        return f"starting again {when} after: {breaker.cause}"

    def _beside_zero(self, breaker: Breaker) -> str | None:
        if breaker.failures >= OPEN_AFTER:
            what = f"{breaker.failures} starts failed"
        elif breaker.deaths >= OPEN_AFTER:
            what = f"{breaker.deaths} replicas died when they had just become ready"
        else:
            return None
        return f"the last {what} ({breaker.cause}); the next request tries again"

    def _beside_ready(self, tracked: Tracked) -> str | None:
        """What else is to be said of a function that answers."""
        live = [entry for entry in self._state.replicas.of(tracked.name) if entry.live]
        if any(entry.ready and entry.replica.revision == tracked.revision for entry in live):
            return None
        function = tracked.function
        if function.failure is not None:
            return f"the revision before answers: {tracked.revision} failed: {function.failure}"
        if function.snapshot is None:
            return f"the revision before answers while {tracked.revision} is being sealed"
        if tracked.breaker.cause is not None:
            cause = tracked.breaker.cause
            return f"the revision before answers: {tracked.revision} does not start: {cause}"
        return f"the revision before answers until {tracked.revision} is ready"


def _reason(tracked: Tracked) -> str:
    """Why so many are wanted, and why it gets fewer."""
    if tracked.decision is None:
        return "not decided yet"
    short = tracked.share and tracked.share.reason
    return f"{tracked.decision.reason}; {short}" if short else tracked.decision.reason
