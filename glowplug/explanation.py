"""Why a function has the replicas it has: what was decided and what happened, and what comes next.

Plain values at which the scaler, the control API and `glowplug why` meet. Times are Unix time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from glowplug.contracts import PrewarmRun

KEPT = 100  # events of one function; older ones are dropped


class Cause(StrEnum):
    """Why the number of wanted replicas changed. A metric's label: these and no others."""

    REQUESTS = "requests"  # what is queued and in flight needs more
    FEWER = "fewer"  # it needed no more for long enough
    IDLE = "idle"  # no request for long enough
    PREWARM = "prewarm"  # a scheduled one
    FORECAST = "forecast"  # calls are expected
    LIMITS = "limits"  # min_replicas or max_replicas
    FAILING = "failing"  # its replicas do not start
    WITHDRAWN = "withdrawn"  # who waited has left before a replica was there
    FOUND = "found"  # running, when the server started


class EventKind(StrEnum):
    """What is told of a function."""

    DESIRED = "desired"  # another number of replicas is wanted
    PREWARM_LAUNCHED = "prewarm_launched"
    PREWARM_ENDED = "prewarm_ended"
    DEPLOYED = "deployed"
    SEALED = "sealed"
    SEAL_FAILED = "seal_failed"
    STARTING = "starting"  # a replica, as all that follow
    READY = "ready"
    START_FAILED = "start_failed"
    SLEPT = "slept"
    WOKE = "woke"
    RELEASED = "released"  # it finishes what it has begun
    ENDED = "ended"  # after that
    DIED = "died"
    BREAKER_OPENED = "breaker_opened"  # callers are refused until the next try
    SHORT = "short"  # of the replicas that it wants the budget has no room for all
    SERVER_STARTED = "server_started"


@dataclass(frozen=True, kw_only=True)
class FloorInput:
    """So many replicas at least, at that time. `until_s` is None where no end is known."""

    replicas: int
    until_s: float | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class BreakerInput:
    """Starts that failed in a row; `retry_in_s` is 0 where one may be tried now."""

    failures: int
    deaths: int  # replicas that died soon after they were ready
    open: bool  # callers are refused
    retry_in_s: float
    cause: str | None


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a decision was made from."""

    in_flight: int
    queued: int
    arrivals: int  # since the decision before
    starting: int
    ready: int
    outdated: int  # replicas of other revisions
    needed: int  # replicas, by requests alone
    idle_s: float  # 0 where it has requests
    next_call_s: float | None  # expected in so many seconds, as learned
    cold_start_cost_s: float | None  # replica-seconds, where the idle time is learned
    idle_limit_s: float | None  # of a fixed idle time
    floors: Sequence[FloorInput] = ()  # that are on
    breaker: BreakerInput | None = None  # None: starts work


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that was decided or happened."""

    id: int  # from 1 on for each function
    at_s: float
    kind: EventKind
    reason: str  # one short sentence
    before: int | None = None  # replicas wanted, of DESIRED
    after: int | None = None
    cause: Cause | None = None  # of DESIRED
    replica: str | None = None  # whose event it is
    inputs: Inputs | None = None  # of DESIRED


@dataclass(frozen=True, kw_only=True)
class NextChange:
    """What follows if nothing comes in between."""

    at_s: float
    in_s: float
    desired: int
    cause: Cause
    reason: str


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """How a function is now, what is next, and what was, the newest first."""

    at_s: float
    desired: int
    reason: str  # why so many
    verdict: str  # what becomes of them, in one sentence
    inputs: Inputs | None  # of the last decision; None before the first
    next_change: NextChange | None  # None: nothing changes by itself, as far as looked ahead
    next_prewarm: PrewarmRun | None
    events: Sequence[Event]


def not_decided(at_s: float) -> Explanation:
    """Of a function that is new."""
    return Explanation(
        at_s=at_s,
        desired=0,
        reason="not decided yet",
        verdict="not decided yet",
        inputs=None,
        next_change=None,
        next_prewarm=None,
        events=(),
    )


class Explanations(Protocol):
    """Explains functions; the scaler implements it."""

    def explain(self, function: str, *, limit: int) -> Explanation:
        """With `limit` events at most. Raises NotFound."""
        ...


def rough(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 90:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * 86_400 else f"{seconds / 86_400:.0f} days"
