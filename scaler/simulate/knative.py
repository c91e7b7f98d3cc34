"""Knative's autoscaler, from its published rule, to be measured beside plan()."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from scaler.simulate.replay import Now

Seen = deque[tuple[float, int]]  # (since, demand), oldest first


@dataclass(slots=True)
class _Revision:
    """What is remembered of one function."""

    seen: Seen = field(default_factory=deque)
    wanted: int = 0
    tick_s: float = -math.inf  # when it is decided again
    zero_s: float = -math.inf  # since when nothing runs
    panic_s: float | None = None  # the last moment over the threshold
    most: int = 0  # wanted in this panic


class KnativeAutoscaler:
    """Knative's KPA: averages over a stable window of 60 s and a panic window of 6 s, tick 2 s.

        want = clamp(ceil(average / target), floor(ready / 2), ceil(1000 × ready)), ready ≥ 1

    Panic when the panic window asks for twice what is ready; in it the count is the higher of the
    two windows' and never falls, and it ends when the last such moment is longer ago than the
    stable window. To zero when the stable window saw nothing: the activator is on the path already,
    so the grace period of 30 s, an upper bound on that change, does not add to it. From zero the
    activator pokes the autoscaler at once.

    Sources: Knative serving, pkg/autoscaler/scaling/autoscaler.go and, for the windows,
    pkg/autoscaler/aggregation/bucketing.go: an average is over the time since the first report, at
    most the window, and starts anew after a window without reports, as at zero. Averages are by
    time, where Knative has buckets of a second.
    """

    TICK_S, STABLE_S, PANIC_S, PANIC_AT = 2.0, 60.0, 6.0, 2.0
    MAX_UP, MAX_DOWN = 1000.0, 2.0

    def __init__(self, *, target: float) -> None:
        self._target = target
        self._revisions: dict[int, _Revision] = {}

    def decide(self, now_s: float, function: int, now: Now) -> tuple[int, float]:
        """See ScalingPolicy."""
        revision = self._revisions.setdefault(function, _Revision())
        at_zero = now.ready + now.starting == 0
        if at_zero and now_s - revision.zero_s >= self.STABLE_S:
            revision.seen.clear()
        self._record(revision.seen, now_s, now.in_flight + now.queued)
        if at_zero and not now.queued:
            return 0, math.inf
        if at_zero or now_s >= revision.tick_s - 1e-9:
            revision.wanted = max(int(at_zero), self._scale(revision, now_s, now.ready))
            revision.tick_s = now_s + self.TICK_S
            if revision.wanted == 0:
                revision.zero_s = now_s
                return 0, math.inf
        return revision.wanted, revision.tick_s - now_s

    def want(self, average: float, *, ready: int) -> int:
        """Replicas that an average asks for, within the rate limits."""
        low, high = math.floor(ready / self.MAX_DOWN), math.ceil(self.MAX_UP * ready)
        return min(max(math.ceil(average / self._target), low), high)

    def _record(self, seen: Seen, now_s: float, demand: int) -> None:
        if not seen or seen[-1][1] != demand:
            seen.append((now_s, demand))
        while len(seen) > 1 and seen[1][0] <= now_s - self.STABLE_S:
            seen.popleft()

    def _scale(self, revision: _Revision, now_s: float, ready: int) -> int:
        ready = max(1, ready)
        stable = average(revision.seen, now_s, self.STABLE_S)
        panic = average(revision.seen, now_s, self.PANIC_S)
        if math.ceil(panic / self._target) / ready >= self.PANIC_AT:
            revision.panic_s = now_s
        elif revision.panic_s is not None and now_s - revision.panic_s > self.STABLE_S:
            revision.panic_s, revision.most = None, 0
        wanted = self.want(stable, ready=ready)
        if revision.panic_s is None:
            return wanted
        revision.most = max(revision.most, wanted, self.want(panic, ready=ready))
        return revision.most


def average(seen: Sequence[tuple[float, int]] | Seen, now_s: float, window_s: float) -> float:
    """Of the demand over the last `window_s`, or since the first entry."""
    from_s = max(seen[0][0], now_s - window_s)
    if now_s <= from_s:
        return seen[-1][1]
    total, until_s = 0.0, now_s
    for since_s, demand in reversed(seen):
        total += demand * (until_s - max(since_s, from_s))
        until_s = since_s
        if since_s <= from_s:
            break
    return total / (now_s - from_s)
