"""The load that the simulator tells a policy: exact, as a server knows it from the reports."""

from array import array
from random import Random

import pytest

from scaler.load import area_at
from scaler.simulate.replay import FunctionTraffic, replay


class Keep:
    """Wants so many replicas for ever, and keeps what it is told of the load."""

    def __init__(self, replicas):
        self.replicas = replicas
        self.areas = []

    def decide(self, now_s, function, now):
        self.areas.append((now_s, area_at(now.load, now_s)))
        return self.replicas, 1.7


@pytest.mark.parametrize("replicas", [1, 3])
def test_the_load_is_the_time_that_requests_were_there(replicas):
    rng = Random(3)
    arrivals_s = sorted(rng.uniform(0.0, 40.0) for _ in range(30))
    service_s = [rng.uniform(0.1, 6.0) for _ in arrivals_s]
    traffic = FunctionTraffic(
        name="f", arrivals_s=array("d", arrivals_s), service_s=array("d", service_s)
    )
    policy = Keep(replicas)
    (outcome,) = replay(
        [traffic], policy, start_time=lambda: 2.0, until_s=300.0, from_s=0.0, capacity=2
    )
    assert outcome.requests == 30
    until_s, area = policy.areas[-1]
    assert until_s > 250.0
    waited_s = sum(outcome.waits_s)
    assert area == pytest.approx(sum(service_s) + waited_s)
    assert len(policy.areas) > 100
