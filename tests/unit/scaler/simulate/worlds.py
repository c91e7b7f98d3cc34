"""Traffic and policies that the simulator's tests share."""

from array import array

from hypothesis import strategies as st

from scaler.simulate.replay import FunctionTraffic, replay


def traffic(arrivals_s, service_s=0.0, name="f"):
    """One function; `service_s` of every request, or one of each."""
    if not isinstance(service_s, list):
        service_s = [float(service_s)] * len(arrivals_s)
    return FunctionTraffic(
        name=name, arrivals_s=array("d", map(float, arrivals_s)), service_s=array("d", service_s)
    )


def run(each, policy, *, start_s=0.0, until_s=10_000.0, **more):
    """The outcome of one function."""
    (outcome,) = replay([each], policy, start_time=lambda: start_s, until_s=until_s, **more)
    return outcome


class Script:
    """Wants what it is told: [(from, replicas), …], whatever happens. Keeps what it saw."""

    def __init__(self, *steps):
        self._steps = steps
        self.seen = []

    def decide(self, now_s, function, now):
        self.seen.append((now_s, now.in_flight, now.queued, now.ready, now.starting))
        wanted = 0
        for from_s, replicas in self._steps:
            if from_s <= now_s + 1e-9:
                wanted = replicas
        ahead = [from_s - now_s for from_s, _ in self._steps if from_s > now_s + 1e-9]
        return wanted, min(ahead, default=float("inf"))


# Whole seconds, so that a count by the second is exact.
SECONDS = st.lists(st.tuples(st.integers(0, 120), st.integers(1, 20)), min_size=1, max_size=25).map(
    sorted
)
