"""What others do: policies beside which plan() is measured, each written from its published rule.

All count demand as requests in flight and queued. Knative's is in scaler/simulate/knative.py, what
cannot be done better in scaler/simulate/oracles.py.
"""

import math
from bisect import bisect_right

from scaler.simulate.replay import Now

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


class KedaCooldown(FixedKeepAlive):
    """KEDA: to zero `cooldownPeriod` = 300 s after its trigger was last active; above one replica
    an HPA follows the demand. The HTTP add-on pushes its trigger: no polling adds to it."""

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
    in minutes up to 4 hours. Unload, load again at 90% of their 5th percentile (its bin's start; at
    0, stay), leave at 110% of their 99th (its bin's end). Where the counts of the bins vary little
    (CV < 2: nothing stands out), or most idle times are longer than the histogram, stay for all of
    its range. The paper forecasts those longer ones by ARIMA; this is the plain histogram."""

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
        head = bisect_right(sums, self.HEAD * total - 1e-9)  # the first bin to reach it, its start
        tail = bisect_right(sums, self.TAIL * total - 1e-9) + 1  # the same, its end
        return 60.0 * head * (1 - self.MARGIN), 60.0 * tail * (1 + self.MARGIN)

    def _learn(self, function: int, idle_s: float) -> None:
        minute = int(idle_s // 60)
        if minute >= self.RANGE_MINUTES:
            self._beyond[function] = self._beyond.get(function, 0) + 1
        else:
            self._counts.setdefault(function, [0] * self.RANGE_MINUTES)[minute] += 1
