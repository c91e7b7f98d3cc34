"""Glowplug's own policy in the simulator: plan() itself, and what the reconciler does around it."""

from collections.abc import Callable, Sequence

from glowplug.spec import FunctionSpec
from scaler.outlook import Outlook, next_edge
from scaler.plan import Counts, Decision, Demand, learn, plan
from scaler.rates import Shared
from scaler.simulate.replay import Now

# What lies ahead of a function now, and how many seconds that holds.
Foretell = Callable[[int, float], tuple[Outlook, float]]


class Planned:
    """A ScalingPolicy."""

    def __init__(self, specs: Sequence[FunctionSpec], *, from_s: float, foretell: Foretell) -> None:
        self._specs = specs
        self._foretell = foretell
        self._shared = Shared(since_s=from_s, at_s=from_s)
        self._decisions: list[Decision | None] = [None] * len(specs)

    def decide(self, now_s: float, function: int, now: Now) -> tuple[int, float]:
        """See ScalingPolicy."""
        last = self._decisions[function]
        was_busy = last is not None and last.history.busy
        outlook, holds_s = self._foretell(function, now_s)
        decision = plan(
            now_s,
            {
                "f": Demand(
                    in_flight=now.in_flight,
                    queued=now.queued,
                    arrivals=0 if was_busy else now.arrivals,
                    last_active_s=now_s if was_busy else None,
                    load=now.load,
                )
            },
            history={"f": last.history} if last else {},
            specs={"f": self._specs[function]},
            fleet={"f": Counts(starting=now.starting, ready=now.ready)},
            outlook={"f": outlook},
            shared=self._shared,
        )["f"]
        if decision.span is not None:
            self._shared = learn(self._shared, now_s, (decision,))
        self._decisions[function] = decision
        if decision.desired == 0:
            # Production learns from an idle time at each of its steps, also at zero; here at its
            # end: that takes half the time, and costs the policy 0.1%.
            return 0, min(next_edge(outlook.floors, now_s) - now_s, holds_s)
        return decision.desired, min(decision.recheck_s, holds_s)


def always(outlook: Outlook) -> Foretell:
    """The same for all functions at all times."""
    return lambda function, now_s: (outlook, float("inf"))
