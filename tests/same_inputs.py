"""The simulator, given what a server was given: the same functions, requests, and times of starts.

Nothing here looks at what the server made of them. Prewarms become floors by the same Outlooks, and
decisions come from the same plan(), in virtual time.
"""

import math
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from glowplug.contracts import Function
from glowplug.spec import FunctionSpec
from scaler.outlook import Outlook
from scaler.outlooks import Outlooks
from scaler.simulate.glowplug import Planned
from scaler.simulate.replay import FunctionTraffic, Now, Outcome, replay
from scaler.state import Tracked


@dataclass
class _Starts:
    """What starts of one function take, in order; when there are more, they take what is usual."""

    tracked: Tracked
    taken_s: deque[float]
    usual_s: float
    under_way: list[tuple[float, float]] = field(default_factory=list)  # (ready at, took)

    def begin(self, now_s: float) -> float:
        took_s = self.taken_s.popleft() if self.taken_s else self.usual_s
        self.under_way.append((now_s + took_s, took_s))
        return took_s

    def learn(self, now_s: float) -> None:
        """The function knows what a start took once it has been ready."""
        ready = [each for each in self.under_way if each[0] <= now_s]
        self.under_way = [each for each in self.under_way if each[0] > now_s]
        self.tracked.starts_s.extend(took_s for _, took_s in sorted(ready))


class _World:
    """A ScalingPolicy: plan() with the outlooks that a reconciler would give it."""

    def __init__(
        self, specs: Sequence[FunctionSpec], starts_s: Mapping[str, Sequence[float]], from_s: float
    ) -> None:
        self._now_s = from_s
        self._function = 0
        self._outlooks = Outlooks(now=lambda: self._now_s, wall=lambda: self._now_s)
        self._starts = [
            _Starts(
                tracked=Tracked(function=Function(spec=spec, generation=1)),
                taken_s=deque(starts_s[spec.name]),
                usual_s=sum(starts_s[spec.name]) / len(starts_s[spec.name]),
            )
            for spec in specs
        ]
        self._planned = Planned(specs, from_s=from_s, foretell=self._foretell)

    def decide(self, now_s: float, function: int, now: Now) -> tuple[int, float]:
        self._now_s, self._function = now_s, function
        return self._planned.decide(now_s, function, now)

    def start_time(self) -> float:
        """Of the function that was decided for last."""
        return self._starts[self._function].begin(self._now_s)

    def _foretell(self, function: int, now_s: float) -> tuple[Outlook, float]:
        starts = self._starts[function]
        starts.learn(now_s)
        return self._outlooks.look([starts.tracked], now_s)[starts.tracked.name], math.inf


def simulated(
    specs: Sequence[FunctionSpec],
    requests: Mapping[str, Iterable[tuple[float, float]]],
    *,
    starts_s: Mapping[str, Sequence[float]],
    from_s: float,
    until_s: float,
) -> dict[str, Outcome]:
    """What becomes of each function between two times. Its requests are (arrival, service time), in
    Unix time and seconds; `starts_s` is what its starts take, one after another."""
    (capacity,) = {spec.max_seqs for spec in specs}
    world = _World(specs, starts_s, from_s)
    traffic = []
    for spec in specs:
        arrivals = sorted(requests[spec.name])
        traffic.append(
            FunctionTraffic(
                name=spec.name,
                arrivals_s=array("d", (arrival_s for arrival_s, _ in arrivals)),
                service_s=array("d", (service_s for _, service_s in arrivals)),
            )
        )
    outcomes = replay(
        traffic,
        world,
        start_time=world.start_time,
        from_s=from_s,
        until_s=until_s,
        capacity=capacity,
    )
    return {spec.name: outcome for spec, outcome in zip(specs, outcomes, strict=True)}
