"""Glowplug's own policy in the simulator: plan() itself, and what the reconciler does around it."""

from collections.abc import Callable, Sequence

from glowplug.spec import FunctionSpec
from scaler.outlook import Outlook
from scaler.plan import Counts, Decision, Demand, learn, plan
from scaler.rates import Shared
from scaler.simulate.replay import Now


class Planned:
    """A ScalingPolicy. `outlook(function, now_s)` is what lies ahead of it."""

    def __init__(
        self,
        specs: Sequence[FunctionSpec],
        *,
        from_s: float,
        outlook: Callable[[int, float], Outlook],
    ) -> None:
        self._specs = specs
        self._outlook = outlook
        self._shared = Shared(since_s=from_s, at_s=from_s)
        self._decisions: list[Decision | None] = [None] * len(specs)

    def decide(self, now_s: float, function: int, now: Now) -> tuple[int, float]:
        """See ScalingPolicy."""
        last = self._decisions[function]
        demand = Demand(
            in_flight=now.in_flight,
            queued=now.queued,
            arrivals=0 if last and last.history.busy else now.arrivals,
            last_active_s=now_s if last and last.history.busy else None,
        )
        decision = plan(
            now_s,
            {"f": demand},
            history={"f": last.history} if last else {},
            specs={"f": self._specs[function]},
            fleet={"f": Counts(starting=now.starting, ready=now.ready)},
            outlook={"f": self._outlook(function, now_s)},
            shared=self._shared,
        )["f"]
        if decision.span is not None:
            self._shared = learn(self._shared, now_s, (decision,))
        self._decisions[function] = decision
        return decision.desired, decision.recheck_s
