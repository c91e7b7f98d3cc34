"""What cannot be done better."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glowplug.spec import FunctionSpec
from scaler.outlook import Outlook
from scaler.simulate.baselines import FixedKeepAlive, LastValue
from scaler.simulate.glowplug import Planned, always
from scaler.simulate.knative import KnativeAutoscaler
from scaler.simulate.oracles import Clairvoyant, JustInTime, KnownRate, idle_cost
from scaler.simulate.traffic import poisson
from tests.unit.scaler.simulate.worlds import run, traffic

COSTS_S = st.sampled_from([1.0, 30.0, 60.0, 300.0])
GAPS_S = st.lists(st.floats(0.001, 2000), min_size=1, max_size=40)


def planned(cost_s):
    spec = FunctionSpec(name="f", model="m", max_replicas=4, cold_start_cost_s=cost_s)
    foretell = always(Outlook(start_s=0.0))
    return Planned([spec], from_s=0.0, foretell=foretell)


def test_idle_cost_by_hand():
    # A start, idle for 10 s, overlapping, idle for 70 s of which the cold start costs 60.
    each = traffic([5, 20, 21, 100], [5.0, 10.0, 2.0, 1.0])
    assert idle_cost(each, 60.0, until_s=1000) == 60 + 10 + 60


@settings(derandomize=True, deadline=None, max_examples=150)
@given(gaps_s=GAPS_S, cost_s=COSTS_S, service_s=st.sampled_from([0.0, 1.0, 20.0]))
def test_the_clairvoyant_costs_the_least(gaps_s, cost_s, service_s):
    arrivals, at_s = array("d"), 0.0
    for gap_s in gaps_s:
        at_s += gap_s
        arrivals.append(at_s)
    each = traffic(arrivals, service_s)
    # Requests fit in one replica; starts are instant; the end is that of the last request.
    options = {"until_s": at_s + 1e-6, "capacity": 1000}
    least = run(each, Clairvoyant([each], cost_s, per_replica=1000), **options).cost(cost_s)
    assert least == pytest.approx(idle_cost(each, cost_s, until_s=at_s + 1e-6), abs=1e-3)
    for policy in (
        FixedKeepAlive(0, per_replica=1000),
        FixedKeepAlive(60, per_replica=1000),
        FixedKeepAlive(3600, per_replica=1000),
        LastValue(cost_s, per_replica=1000),
        KnativeAutoscaler(target=1000),
        planned(cost_s),
    ):
        # What a policy keeps at the very end, when nothing comes any more, only adds to its cost.
        assert run(each, policy, **options).cost(cost_s) >= least - 1e-3


def test_just_in_time_nobody_waits_but_the_first():
    each = traffic([10.0 * k**2 for k in range(1, 20)], 1.0)
    outcome = run(each, JustInTime([each], 3.0, per_replica=11), start_s=3.0)
    assert (outcome.cold_starts, outcome.starts) == (1, 19)
    # A start each; it is ready 0.01 s early.
    assert outcome.wasted_s == pytest.approx(19 * 3.0, abs=19 * 0.02)


def test_the_known_rate_keeps_while_a_call_is_likely_enough():
    # 100 s in which a call is likely enough, then as many in which it is not.
    each = traffic([10.0, 150.0, 250.0], 1.0)
    rates = [[1 / 50, 1 / 200, 1 / 50]]
    policy = KnownRate(rates, 60.0, from_s=0.0, step_s=100.0, per_replica=11)
    outcome = run(each, policy, until_s=300)
    # It learns of its function by its first request.
    assert outcome.cold_starts == 2  # at 10 s and at 150 s
    assert outcome.wasted_s == pytest.approx((100 - 10 - 1) + (300 - 200 - 1), abs=0.1)


@settings(derandomize=True, deadline=None, max_examples=10)
@given(share=st.sampled_from([0.2, 0.7, 1.5, 5.0]), seed=st.integers(0, 5))
def test_on_noise_the_known_rate_is_the_better_of_keeping_and_leaving(share, seed):
    cost_s = 60.0
    rate = share / cost_s
    (each,) = poisson(rate, functions=1, until_s=500 / rate, seed=f"{seed}", service_s=0.01)
    until_s = each.arrivals_s[-1] + 1e-6
    policy = KnownRate([[rate]], cost_s, from_s=0.0, step_s=1e9, per_replica=11)
    known = run(each, policy, until_s=until_s).cost(cost_s)
    keep = run(each, FixedKeepAlive(1e9, per_replica=11), until_s=until_s).cost(cost_s)
    leave = run(each, FixedKeepAlive(0, per_replica=11), until_s=until_s).cost(cost_s)
    assert known == pytest.approx(keep if share > 1 else leave)
