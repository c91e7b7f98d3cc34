"""Replay: what a scaling policy makes of recorded traffic, in virtual time.

Event by event: requests arrive and end, replicas become ready, policies ask to be called again.
Every function has its own replicas; a replica serves `capacity` requests at once, first come first
served, and those over it wait. Requests are packed: as few replicas are busy as hold them.

The cost of a policy is J = wasted accelerator-seconds + λ × cold starts, where

- wasted is the time that replicas exist, starts included, less the time that they work;
- a cold start is an event: a request that finds no replica ready, with all that wait behind it.
"""

import heapq
import math
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scaler.load import NO_LOAD, Load, observe

_ARRIVAL, _END, _READY, _CHECK = range(4)


@dataclass(frozen=True, kw_only=True)
class FunctionTraffic:
    """The requests of one function: the one that arrives at arrivals_s[i] takes service_s[i]."""

    name: str
    arrivals_s: "array[float]"  # sorted
    service_s: "array[float]"
    timezone: str = "UTC"


@dataclass(slots=True)
class Now:
    """What a policy sees of one function."""

    in_flight: int = 0
    queued: int = 0
    arrivals: int = 0  # since it was asked last
    ready: int = 0
    starting: int = 0
    load: Load = NO_LOAD  # up to the last change of in_flight + queued


class ScalingPolicy(Protocol):
    """Decides for one function at a time, in order of time."""

    def decide(self, now_s: float, function: int, now: Now) -> tuple[int, float]:
        """Replicas wanted, and how many seconds later to ask again if there is no news.

        It is asked when a request finds the function idle or finds no room, when the last one has
        ended, and when a replica became ready.
        """
        ...


@dataclass(kw_only=True)
class Outcome:
    """What became of one function."""

    requests: int = 0
    wakes: int = 0  # requests that found the function idle: each could be a cold start
    cold_requests: int = 0  # that waited for a start
    cold_starts: int = 0  # events
    starts: int = 0  # with those that nobody waited for
    replica_s: float = 0.0
    wasted_s: float = 0.0
    waits_s: list[float] = field(default_factory=list)  # of the requests that waited

    def cost(self, cold_start_cost_s: float) -> float:
        """J, in accelerator-seconds."""
        return self.wasted_s + cold_start_cost_s * self.cold_starts


class _Function:
    """One function's replicas and requests."""

    __slots__ = ("changed_s", "check", "cold", "now", "outcome", "queue", "traffic", "upcoming")

    def __init__(self, traffic: FunctionTraffic, from_s: float) -> None:
        self.traffic = traffic
        self.upcoming = 0  # the next request to arrive
        self.now = Now()
        self.queue: deque[tuple[float, float]] = deque()  # (arrival, service)
        self.outcome = Outcome()
        self.changed_s = from_s
        self.check = 0.0  # the last check asked for; older ones are stale
        self.cold = False  # a request waits for the first replica


def replay(
    traffic: Sequence[FunctionTraffic],
    policy: ScalingPolicy,
    *,
    start_time: Callable[[], float],
    until_s: float,
    from_s: float = 0.0,
    capacity: int = 16,
    count_from_s: float = -math.inf,
) -> list[Outcome]:
    """Run the policy from `from_s` to `until_s`. `start_time()` draws what the next start takes.

    Only what happens from `count_from_s` on is in the outcomes: before it, a policy may learn.
    """
    run = _Run(
        traffic,
        policy,
        start_time=start_time,
        from_s=from_s,
        until_s=until_s,
        capacity=capacity,
        count_from_s=count_from_s,
    )
    run.to_the_end()
    return [function.outcome for function in run.functions]


class _Run:
    def __init__(
        self,
        traffic: Sequence[FunctionTraffic],
        policy: ScalingPolicy,
        *,
        start_time: Callable[[], float],
        from_s: float,
        until_s: float,
        capacity: int,
        count_from_s: float,
    ) -> None:
        self.functions = [_Function(each, from_s) for each in traffic]
        self._policy = policy
        self._start_time = start_time
        self._until_s = until_s
        self._capacity = capacity
        self._count_from_s = count_from_s
        self._events: list[tuple[float, int, int, int, float]] = []
        self._serial = 0  # events of one moment happen in the order in which they were found

    def to_the_end(self) -> None:
        happen = {
            _ARRIVAL: self._arrival,
            _END: self._end,
            _READY: self._ready,
            _CHECK: self._check,
        }
        for index, function in enumerate(self.functions):
            if function.traffic.arrivals_s:
                self._push(function.traffic.arrivals_s[0], _ARRIVAL, index)
        while self._events:
            now_s, _, kind, index, value = heapq.heappop(self._events)
            function = self.functions[index]
            if kind != _CHECK or value == function.check:
                self._settle(function, now_s)
                happen[kind](function, index, now_s)
                now = function.now
                now.load = observe(now.load, now_s, now.in_flight + now.queued)
        for function in self.functions:
            self._settle(function, self._until_s)

    def _arrival(self, function: _Function, index: int, now_s: float) -> None:
        now, outcome = function.now, function.outcome
        service_s = function.traffic.service_s[function.upcoming]
        function.upcoming += 1
        if function.upcoming < len(function.traffic.arrivals_s):
            self._push(function.traffic.arrivals_s[function.upcoming], _ARRIVAL, index)
        was_idle = now.in_flight + now.queued == 0
        now.arrivals += 1
        if now_s >= self._count_from_s:
            outcome.requests += 1
            outcome.wakes += was_idle
            outcome.cold_requests += now.ready == 0
            outcome.cold_starts += now.ready == 0 and not function.cold
        function.cold = now.ready == 0
        if now.in_flight < now.ready * self._capacity:
            now.in_flight += 1
            self._push(now_s + service_s, _END, index)
        else:
            now.queued += 1
            function.queue.append((now_s, service_s))
        if was_idle or now.queued:
            self._decide(function, index, now_s)

    def _end(self, function: _Function, index: int, now_s: float) -> None:
        function.now.in_flight -= 1
        self._serve(function, index, now_s)
        if function.now.in_flight == 0:
            self._decide(function, index, now_s)

    def _ready(self, function: _Function, index: int, now_s: float) -> None:
        function.now.starting -= 1
        function.now.ready += 1
        function.cold = False
        self._serve(function, index, now_s)
        self._decide(function, index, now_s)

    def _check(self, function: _Function, index: int, now_s: float) -> None:
        self._decide(function, index, now_s)

    def _decide(self, function: _Function, index: int, now_s: float) -> None:
        now = function.now
        wanted, recheck_s = self._policy.decide(now_s, index, now)
        now.arrivals = 0
        for _ in range(wanted - now.ready - now.starting):
            now.starting += 1
            function.outcome.starts += now_s >= self._count_from_s
            self._push(now_s + self._start_time(), _READY, index)
        surplus = now.ready + now.starting - wanted
        if surplus > 0:  # what starts or works goes on
            now.ready -= min(surplus, now.ready - self._busy(now))
        function.check += 1
        if recheck_s < math.inf:
            self._push(now_s + max(recheck_s, 1e-3), _CHECK, index, function.check)

    def _serve(self, function: _Function, index: int, now_s: float) -> None:
        now = function.now
        while function.queue and now.in_flight < now.ready * self._capacity:
            arrived_s, service_s = function.queue.popleft()
            now.in_flight += 1
            now.queued -= 1
            if arrived_s >= self._count_from_s:
                function.outcome.waits_s.append(now_s - arrived_s)
            self._push(now_s + service_s, _END, index)

    def _settle(self, function: _Function, now_s: float) -> None:
        """Account for the time since the function's last change."""
        since_s = max(function.changed_s, self._count_from_s)
        if now_s > since_s:
            now = function.now
            exist = now.ready + now.starting
            function.outcome.replica_s += exist * (now_s - since_s)
            function.outcome.wasted_s += (exist - self._busy(now)) * (now_s - since_s)
        function.changed_s = now_s

    def _busy(self, now: Now) -> int:
        return min(now.ready, -(-now.in_flight // self._capacity))

    def _push(self, at_s: float, kind: int, index: int, value: float = 0.0) -> None:
        if at_s < self._until_s:
            self._serial += 1
            heapq.heappush(self._events, (at_s, self._serial, kind, index, value))
