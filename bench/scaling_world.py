"""One traffic, the policies that are tried on it, and what each made of it."""

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from glowplug.spec import FunctionSpec
from scaler.plan import target_per_replica
from scaler.simulate import seasonal
from scaler.simulate.baselines import FixedKeepAlive, HybridHistogram, KedaCooldown, LastValue
from scaler.simulate.glowplug import Foretell, Planned
from scaler.simulate.knative import KnativeAutoscaler
from scaler.simulate.oracles import Clairvoyant, JustInTime, KnownRate
from scaler.simulate.replay import FunctionTraffic, Outcome, ScalingPolicy, replay

KEEPS_S = (0, 30, 60, 300, 600, 1200, 3600)
FIXED = tuple(f"fixed {keep_s} s" for keep_s in KEEPS_S)
# With a star: what no policy can do.
OURS, KPA, CLAIRVOYANT, KNOWN_RATE = "glowplug", "KPA", "clairvoyant*", "known rate*"

SPEC = FunctionSpec(name="f", model="m", max_replicas=64)
CAPACITY = SPEC.max_seqs  # sequences of one replica
PER_REPLICA = target_per_replica(SPEC)  # what it should have of them


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one policy made of one traffic. `cost_s` is what it takes a cold start to be worth; None
    where it does not ask."""

    part: str
    traffic: str
    seed: int
    policy: str
    cost_s: float | None
    wasted_s: list[float]  # of each function
    cold_starts: list[int]  # of each function
    wakes: int
    requests: int
    cold_requests: int
    starts: int
    replica_s: float
    waits_s: "array[float]" = field(repr=False)  # of the requests that waited

    def costs(self, cost_s: float) -> list[float]:
        """J of each function."""
        pairs = zip(self.wasted_s, self.cold_starts, strict=True)
        return [wasted_s + cost_s * cold for wasted_s, cold in pairs]


@dataclass(frozen=True, kw_only=True)
class World:
    """One traffic, and how long starts take."""

    part: str
    name: str
    seed: int
    traffic: list[FunctionTraffic]
    starts_s: Sequence[float]  # measured ones, to draw from
    until_s: float
    from_s: float = 0.0
    count_from_s: float = -math.inf

    @property
    def cautious_start_s(self) -> float:
        """The 95th percentile (nearest rank), as scaler/outlooks.py takes it."""
        return sorted(self.starts_s)[math.ceil(0.95 * len(self.starts_s)) - 1]

    def run(self, name: str, policy: ScalingPolicy, cost_s: float | None = None) -> Run:
        """Replay."""
        rng = Random(f"starts/{self.part}/{self.name}/{self.seed}")
        outcomes = replay(
            self.traffic,
            policy,
            start_time=lambda: rng.choice(self.starts_s),
            from_s=self.from_s,
            until_s=self.until_s,
            count_from_s=self.count_from_s,
            capacity=CAPACITY,
        )
        return self._figures(name, outcomes, cost_s)

    def ours(self, cost_s: float | None, foretell: Foretell, *, name: str = OURS) -> Run:
        """Replay through plan()."""
        spec = SPEC.model_copy(update={"cold_start_cost_s": cost_s})
        policy = Planned([spec] * len(self.traffic), from_s=self.from_s, foretell=foretell)
        return self.run(name, policy, cost_s)

    def simple(self) -> Iterator[Run]:
        """Of the policies that learn nothing and do not ask what a cold start is worth."""
        yield self.run(KPA, KnativeAutoscaler(target=0.7 * CAPACITY))
        yield self.run("KEDA", KedaCooldown(per_replica=PER_REPLICA))
        yield from self.fixed()
        just_in_time = JustInTime(self.traffic, max(self.starts_s), per_replica=PER_REPLICA)
        yield self.run("just in time*", just_in_time)

    def fixed(self) -> Iterator[Run]:
        """Of every fixed keep-alive."""
        for name, keep_s in zip(FIXED, KEEPS_S, strict=True):
            yield self.run(name, FixedKeepAlive(keep_s, per_replica=PER_REPLICA))

    def instant(self) -> Run:
        """The lower bound: replicas that come and go in no time, exactly while they work."""
        outcomes = replay(
            self.traffic,
            FixedKeepAlive(0, per_replica=PER_REPLICA),
            start_time=lambda: 0.0,
            from_s=self.from_s,
            until_s=self.until_s,
            count_from_s=self.count_from_s,
            capacity=CAPACITY,
        )
        for outcome in outcomes:
            outcome.wasted_s, outcome.cold_starts, outcome.cold_requests = 0.0, 0, 0
        return self._figures("instant*", outcomes, None)

    def clairvoyant(self, cost_s: float) -> Run:
        """The oracle that the bars name."""
        policy = Clairvoyant(self.traffic, cost_s, per_replica=PER_REPLICA)
        return self.run(CLAIRVOYANT, policy, cost_s)

    def hybrid(self) -> Run:
        """Serverless in the Wild."""
        return self.run("hybrid histogram", HybridHistogram(per_replica=PER_REPLICA))

    def last_value(self, cost_s: float) -> Run:
        """As long as last time."""
        return self.run("last value", LastValue(cost_s, per_replica=PER_REPLICA), cost_s)

    def known_rate(self, rates: Sequence[Sequence[float]], cost_s: float, *, step_s: float) -> Run:
        """The unreachable bound of who knows the true rates, from START_S on."""
        policy = KnownRate(
            rates, cost_s, from_s=seasonal.START_S, step_s=step_s, per_replica=PER_REPLICA
        )
        return self.run(KNOWN_RATE, policy, cost_s)

    def _figures(self, name: str, outcomes: Sequence[Outcome], cost_s: float | None) -> Run:
        return Run(
            part=self.part,
            traffic=self.name,
            seed=self.seed,
            policy=name,
            cost_s=cost_s,
            wasted_s=[each.wasted_s for each in outcomes],
            cold_starts=[each.cold_starts for each in outcomes],
            wakes=sum(each.wakes for each in outcomes),
            requests=sum(each.requests for each in outcomes),
            cold_requests=sum(each.cold_requests for each in outcomes),
            starts=sum(each.starts for each in outcomes),
            replica_s=sum(each.replica_s for each in outcomes),
            waits_s=array("d", (wait_s for each in outcomes for wait_s in each.waits_s)),
        )
