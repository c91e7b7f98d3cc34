"""What others do, and what cannot be done better: policies beside which plan() is measured.

Each is written from its published rule. All count demand as requests in flight and queued.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

from scaler.simulate.replay import FunctionTraffic, Now

_ASK_NEVER = math.inf


class FixedKeepAlive:
    """A replica stays for `keep_s` after its last request, as Lambda, Cloud Run, Modal and Ollama
    do it. Replicas follow the demand at once."""

    def __init__(self, keep_s: float, *, per_replica: int) -> None:
        self._keep_s = keep_s
        self._per_replica = per_replica
        self._idle_since_s: dict[int, float] = {}

    def decide(self, now_s: float, function: int, now: Now) -> tuple[int, float]:
        """See ScalingPolicy."""
        demand = now.in_flight + now.queued
        if demand:
            self._idle_since_s.pop(function, None)
            wanted = max(math.ceil(demand / self._per_replica), now.ready + now.starting)
            return wanted, _ASK_NEVER
        since_s = self._idle_since_s.setdefault(function, now_s)
        left_s = self._keep_s - (now_s - since_s)
        if left_s <= 1e-9:
            return 0, _ASK_NEVER
        return now.ready + now.starting, left_s


class KnativeAutoscaler:
    """Knative's KPA: averages over a stable window of 60 s and a panic window of 6 s, tick 2 s.

        want = clamp(ceil(average / target), floor(ready / 2), ceil(1000 × ready)), ready ≥ 1

    Panic when the panic window wants twice what is ready; while in it the count never falls, and it
    ends one stable window after the last such moment. To zero when the stable window saw nothing:
    the activator is on the path already, so the grace period of 30 s, an upper bound on that
    change, does not add to it. From zero the activator pokes the autoscaler at once.

    Source: Knative serving, "About autoscaling" and pkg/autoscaler/scaling/autoscaler.go; a period
    is averaged by time, where Knative scrapes once a second.
    """

    TICK_S, STABLE_S, PANIC_S, PANIC_AT = 2.0, 60.0, 6.0, 2.0
    MAX_UP, MAX_DOWN = 1000.0, 2.0

    def __init__(self, *, target: float) -> None:
        self._target = target
        self._seen: dict[int, deque[tuple[float, float]]] = {}  # (since, demand), oldest first
        self._panic: dict[int, tuple[float, int]] = {}  # (last moment over, most wanted)

    def decide(self, now_s: float, function: int, now: Now) -> tuple[int, float]:
        """See ScalingPolicy."""
        seen = self._seen.setdefault(function, deque())
        seen.append((now_s, now.in_flight + now.queued))
        while len(seen) > 1 and seen[1][0] <= now_s - self.STABLE_S:
            seen.popleft()
        have = now.ready + now.starting
        if have == 0:
            return (1, self.TICK_S) if now.queued else (0, _ASK_NEVER)
        stable = average(seen, now_s, self.STABLE_S)
        panic = average(seen, now_s, self.PANIC_S)
        ready = max(1, now.ready)
        wanted = self._panicking(now_s, function, stable, panic, ready=ready)
        return wanted, self.TICK_S if wanted or now.in_flight else _ASK_NEVER

    def want(self, average: float, *, ready: int) -> int:
        """Replicas that an average asks for, within the rate limits."""
        low, high = math.floor(ready / self.MAX_DOWN), math.ceil(self.MAX_UP * ready)
        return min(max(math.ceil(average / self._target), low), high)

    def _panicking(
        self, now_s: float, function: int, stable: float, panic: float, *, ready: int
    ) -> int:
        if math.ceil(panic / self._target) / ready >= self.PANIC_AT:
            most = max(self._panic.get(function, (0.0, 0))[1], ready)
            self._panic[function] = (now_s, most)
        if function not in self._panic:
            return self.want(stable, ready=ready)
        since_s, most = self._panic[function]
        if now_s - since_s > self.STABLE_S:
            del self._panic[function]
            return self.want(stable, ready=ready)
        most = max(most, self.want(panic, ready=ready))
        self._panic[function] = (since_s, most)
        return most


def average(
    seen: Sequence[tuple[float, float]] | deque[tuple[float, float]], now_s: float, window_s: float
) -> float:
    """Of the demand over the last `window_s`; before the first entry there was none."""
    total, until_s = 0.0, now_s
    for since_s, demand in reversed(seen):
        from_s = max(since_s, now_s - window_s)
        total += demand * max(0.0, until_s - from_s)
        until_s = from_s
        if since_s <= now_s - window_s:
            break
    return total / window_s


class KedaCooldown(FixedKeepAlive):
    """KEDA: to zero 300 s after the last request; between, an HPA that follows the demand."""

    def __init__(self, *, per_replica: int) -> None:
        super().__init__(300.0, per_replica=per_replica)


class LastValue:
    """The next idle time is taken to be as long as the last one: kept if that was worth it."""

    def __init__(self, cold_start_cost_s: float, *, per_replica: int) -> None:
        self._cost_s = cold_start_cost_s
        self._per_replica = per_replica
        self._idle_since_s: dict[int, float] = {}
        self._last_s: dict[int, float] = {}

    def decide(self, now_s: float, function: int, now: Now) -> tuple[int, float]:
        """See ScalingPolicy."""
        demand = now.in_flight + now.queued
        if demand:
            since_s = self._idle_since_s.pop(function, None)
            if since_s is not None:
                self._last_s[function] = now_s - since_s
            return max(math.ceil(demand / self._per_replica), now.ready + now.starting), _ASK_NEVER
        since_s = self._idle_since_s.setdefault(function, now_s)
        last_s = self._last_s.get(function, math.inf)
        left_s = (1.1 * last_s if last_s <= self._cost_s else 0.0) - (now_s - since_s)
        if left_s <= 1e-9:
            return 0, _ASK_NEVER
        return now.ready + now.starting, left_s


class HybridHistogram:
    """Serverless in the Wild (Shahrad et al., ATC 2020): a histogram of each function's idle times
    in minutes up to 4 hours. Unload, load again at 90% of their 5th percentile, stay until 110% of
    their 99th. Where the counts of the bins vary little (CV < 2), or most idle times are longer
    than the histogram, stay for all of its range."""

    RANGE_MINUTES, CV = 240, 2.0
    HEAD, TAIL, MARGIN = 0.05, 0.99, 0.1

    def __init__(self, *, per_replica: int) -> None:
        self._per_replica = per_replica
        self._idle_since_s: dict[int, float] = {}
        self._counts: dict[int, list[int]] = {}
        self._beyond: dict[int, int] = {}

    def decide(self, now_s: float, function: int, now: Now) -> tuple[int, float]:
        """See ScalingPolicy."""
        demand = now.in_flight + now.queued
        if demand:
            since_s = self._idle_since_s.pop(function, None)
            if since_s is not None:
                self._learn(function, now_s - since_s)
            return max(math.ceil(demand / self._per_replica), now.ready + now.starting), _ASK_NEVER
        since_s = self._idle_since_s.setdefault(function, now_s)
        from_s, until_s = self.window(function)
        idle_s = now_s - since_s
        if idle_s < from_s - 1e-9:
            return 0, from_s - idle_s
        if idle_s < until_s - 1e-9:
            return max(1, now.ready + now.starting), until_s - idle_s
        return 0, _ASK_NEVER

    def window(self, function: int) -> tuple[float, float]:
        """Idle seconds from which and until which a replica is there."""
        counts = self._counts.get(function)
        everything = (0.0, 60.0 * self.RANGE_MINUTES)
        if counts is None:
            return everything
        total = sum(counts)
        mean = total / len(counts)
        deviation = math.sqrt(sum((count - mean) ** 2 for count in counts) / len(counts))
        if self._beyond.get(function, 0) > total or total == 0 or deviation / mean < self.CV:
            return everything
        sums, so_far = [], 0
        for count in counts:
            so_far += count
            sums.append(so_far)
        head = bisect_right(sums, self.HEAD * total)  # rounded down to the bin's start
        tail = bisect_right(sums, self.TAIL * total - 1e-9) + 1  # up to its end
        return 60.0 * head * (1 - self.MARGIN), 60.0 * tail * (1 + self.MARGIN)

    def _learn(self, function: int, idle_s: float) -> None:
        minute = int(idle_s // 60)
        if minute >= self.RANGE_MINUTES:
            self._beyond[function] = self._beyond.get(function, 0) + 1
        else:
            self._counts.setdefault(function, [0] * self.RANGE_MINUTES)[minute] += 1


class Clairvoyant:
    """An oracle that knows every arrival: a replica stays exactly when the next idle time costs
    less than a start. What it starts again it starts for the request, and pays for."""

    def __init__(
        self, traffic: Sequence[FunctionTraffic], cold_start_cost_s: float, *, per_replica: int
    ) -> None:
        self._traffic = traffic
        self._cost_s = cold_start_cost_s
        self._per_replica = per_replica

    def decide(self, now_s: float, function: int, now: Now) -> tuple[int, float]:
        """See ScalingPolicy."""
        demand = now.in_flight + now.queued
        if demand:
            return max(math.ceil(demand / self._per_replica), now.ready + now.starting), _ASK_NEVER
        arrivals_s = self._traffic[function].arrivals_s
        upcoming = bisect_right(arrivals_s, now_s)
        next_s = arrivals_s[upcoming] if upcoming < len(arrivals_s) else math.inf
        keep = next_s - now_s <= self._cost_s
        return (now.ready + now.starting if keep else 0), _ASK_NEVER
