"""What cannot be done: policies that know what no policy can know. They bound what is possible."""

import math
from bisect import bisect_right
from collections.abc import Sequence

from scaler.simulate.replay import FunctionTraffic, Now


class Clairvoyant:
    """Knows every arrival: a replica stays exactly when the next idle time costs less than a start.
    What it starts again it starts for the request, and pays for."""

    def __init__(
        self, traffic: Sequence[FunctionTraffic], cold_start_cost_s: float, *, per_replica: int
    ) -> None:
        self._traffic = traffic
        self._cost_s = cold_start_cost_s
        self._per_replica = per_replica

    def decide(self, now_s: float, function: int, now: Now) -> tuple[int, float]:
        """See ScalingPolicy."""
        if now.in_flight + now.queued:
            return _busy(now, self._per_replica), math.inf
        keep = _next_s(self._traffic[function], now_s) - now_s <= self._cost_s
        return (now.ready + now.starting if keep else 0), math.inf


# A replica that is ready at the moment of the request is too late for it.
_EARLY_S = 0.01


class JustInTime:
    """Knows every arrival, and starts a replica `start_s` ahead of it: nobody waits, and what is
    wasted is one start, or the idle time if that is shorter."""

    def __init__(
        self, traffic: Sequence[FunctionTraffic], start_s: float, *, per_replica: int
    ) -> None:
        self._traffic = traffic
        self._start_s = start_s + _EARLY_S
        self._per_replica = per_replica

    def decide(self, now_s: float, function: int, now: Now) -> tuple[int, float]:
        """See ScalingPolicy."""
        if now.in_flight + now.queued:
            return _busy(now, self._per_replica), math.inf
        left_s = _next_s(self._traffic[function], now_s) - now_s
        if left_s <= self._start_s + 1e-3:
            return max(1, now.ready + now.starting), math.inf
        return 0, left_s - self._start_s


class KnownRate:
    """Knows the true rate of arrivals, constant over steps, but not the arrivals: the best that can
    be foretold of Poisson traffic. One replica while rate × cost of a cold start > 1."""

    def __init__(
        self,
        rates: Sequence[Sequence[float]],  # of each function, per second and step
        cold_start_cost_s: float,
        *,
        from_s: float,
        step_s: float,
        per_replica: int,
    ) -> None:
        self._rates = rates
        self._cost_s = cold_start_cost_s
        self._from_s = from_s
        self._step_s = step_s
        self._per_replica = per_replica

    def decide(self, now_s: float, function: int, now: Now) -> tuple[int, float]:
        """See ScalingPolicy."""
        step = int((now_s - self._from_s) // self._step_s)
        rates = self._rates[function]
        keep = rates[min(step, len(rates) - 1)] * self._cost_s > 1
        if now.in_flight + now.queued:
            return _busy(now, self._per_replica), math.inf
        left_s = self._from_s + (step + 1) * self._step_s - now_s
        return int(keep), left_s + 1e-3


def idle_cost(traffic: FunctionTraffic, cold_start_cost_s: float, *, until_s: float) -> float:
    """What no policy can go under that starts replicas for requests, and at once: for every idle
    time the cheaper of staying and of a cold start. Of one function whose requests all fit in one
    replica; the first start is counted, what follows the last request is not."""
    cost_s, busy_until_s = 0.0, -math.inf
    for arrival_s, service_s in zip(traffic.arrivals_s, traffic.service_s, strict=True):
        if arrival_s >= until_s:
            break
        if arrival_s > busy_until_s:
            cost_s += min(arrival_s - busy_until_s, cold_start_cost_s)
        busy_until_s = max(busy_until_s, arrival_s + service_s)
    return cost_s


def _busy(now: Now, per_replica: int) -> int:
    return max(math.ceil((now.in_flight + now.queued) / per_replica), now.ready + now.starting)


def _next_s(traffic: FunctionTraffic, now_s: float) -> float:
    upcoming = bisect_right(traffic.arrivals_s, now_s)
    return traffic.arrivals_s[upcoming] if upcoming < len(traffic.arrivals_s) else math.inf
