"""An hour of the scaler with a scheduled peak, beside what the simulator says of the same hour.

The scaler is the real one, with its registry, fleet and activators stood in for: requests wait in
the order in which they came, and each goes to the least busy ready replica that has room. The real
server lives through a whole day in tests/integration/test_compressed_day.py.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from random import Random

import pytest
from same_inputs import simulated

from glowplug.spec import FunctionSpec

AT_8 = datetime.fromisoformat("2028-06-05T08:00+02:00").timestamp()
PEAK_S, PEAK_END_S = AT_8 + 1200, AT_8 + 2100
NIGHT_S, END_S = AT_8 + 3000, AT_8 + 3600
MAX_SEQS = 4
SETTINGS = {
    "max_seqs": MAX_SEQS,
    "max_replicas": 4,
    "predictive": "off",
    "schedules": [
        {
            "name": "peak",
            "cron": "20 8 * * *",
            "duration": "16m",
            "timezone": "Europe/Berlin",
            "min_replicas": 2,
        }
    ],
}
IDLE = {"fixed": {"idle_s": 60}, "learned": {"cold_start_cost_s": 45}}


def calls(rng):
    """(arrival, service time) of each request."""

    def poisson(from_s, until_s, gap_s):
        while (from_s := from_s + rng.expovariate(1 / gap_s)) < until_s:
            yield from_s

    times_s = [
        *poisson(AT_8 + 30, PEAK_S - 120, 90),
        *poisson(PEAK_S, PEAK_END_S, 0.8),
        *poisson(PEAK_END_S + 120, NIGHT_S - 420, 90),
    ]
    return [(time_s, min(20.0, rng.lognormvariate(1.0, 0.6))) for time_s in times_s]


@dataclass
class World:
    """Requests and replicas around a House. What happens is a (time, function to call)."""

    house: object
    rng: Random
    starts_s: list = field(default_factory=list)
    queue: deque = field(default_factory=deque)  # service times of those that wait
    busy: dict = field(default_factory=dict)  # requests by replica
    cold_s: list = field(default_factory=list)  # arrivals that found no replica ready
    events: list = field(default_factory=list)
    serial: count = field(default_factory=count)  # of one moment, in the order of their making

    def at(self, time_s, happens, *arguments):
        heapq.heappush(self.events, (time_s, next(self.serial), happens, arguments))

    @property
    def now_s(self):
        return self.house.clock() + self.house.ahead_s

    async def live(self, requests, until_s):
        for arrival_s, service_s in requests:
            self.at(arrival_s, self.arrive, service_s)
        self.at(self.now_s, self.tick)
        while self.events[0][0] < until_s:
            time_s, _, happens, arguments = heapq.heappop(self.events)
            self.house.clock.now_s = max(self.house.clock(), time_s - self.house.ahead_s)
            await happens(*arguments)
            self.follow_fleet()

    async def tick(self):
        self.at(self.now_s + 1.0, self.tick)
        await self.house.tick(0.0)

    async def arrive(self, service_s):
        if not self.ready():
            self.cold_s.append(self.now_s)
        self.queue.append(service_s)
        await self.serve(arrived=1)

    async def end(self, replica):
        self.busy[replica] -= 1
        await self.serve()

    async def become_ready(self, replica):
        if replica in self.house.fleet.replicas:
            self.house.fleet.ready(replica)
            await self.house.settle()
            await self.serve()

    async def serve(self, arrived=0):
        while self.queue and (replica := min(self.ready(), key=self.load, default=None)):
            if self.load(replica) >= MAX_SEQS:
                break
            self.busy[replica] = self.load(replica) + 1
            self.at(self.now_s + self.queue.popleft(), self.end, replica)
        in_flight = sum(self.busy.values())
        await self.house.report(in_flight=in_flight, queued=len(self.queue), arrived=arrived)

    def ready(self):
        replicas = self.house.scaler.endpoints.replicas("f")
        return [each.id for each in replicas if each.state == "ready"]

    def load(self, replica):
        return self.busy.get(replica, 0)

    def follow_fleet(self):
        """What was asked for starts, and what was let go ends with its last request."""
        for assignment in self.house.fleet.assignments[len(self.starts_s) :]:
            self.starts_s.append(self.rng.uniform(2.0, 6.0))
            self.at(self.now_s + self.starts_s[-1], self.become_ready, assignment.replica)
        for replica, _ in self.house.fleet.released:
            if replica in self.house.fleet.replicas and not self.load(replica):
                self.house.fleet.gone(replica)


@pytest.mark.parametrize(("idle", "seed"), [("fixed", 0), ("learned", 0), ("learned", 1)])
def test_a_compressed_hour(run, idle, seed):
    async def scenario(house):
        house.ahead_s = AT_8 - house.clock()
        rng = Random(seed)
        requests = calls(rng)
        await house.deploy(**SETTINGS, **IDLE[idle])
        world = World(house, rng)
        await world.live(requests, NIGHT_S)
        used_s, _ = house.scaler.metrics.usage.of("f")
        assert house.fleet.replicas == {}
        await world.live([], END_S)
        assert house.scaler.metrics.usage.of("f")[0] == used_s  # at zero all the time

        said = simulated(
            [FunctionSpec(name="f", model="m.gguf", **SETTINGS, **IDLE[idle])],
            {"f": requests},
            starts_s={"f": world.starts_s},
            from_s=AT_8,
            until_s=END_S,
        )["f"]
        assert not [time_s for time_s in world.cold_s if PEAK_S <= time_s < PEAK_END_S]
        assert len(world.cold_s) == said.cold_requests > 0
        assert abs(len(world.starts_s) - said.starts) <= 1
        assert used_s == pytest.approx(said.replica_s, rel=0.03)

    run(scenario)
