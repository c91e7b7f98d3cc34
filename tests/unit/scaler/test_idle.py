"""The idle policy: when a replica without requests goes, and when plan() has to be asked again."""

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glowplug.spec import FunctionSpec
from scaler.idle import WAIT_WEIGHT, cold_start_cost
from scaler.outlook import Outlook
from scaler.plan import Counts, Demand, learn, plan
from scaler.rates import Season, Shared
from scaler.simulate.baselines import FixedKeepAlive
from scaler.simulate.glowplug import Planned, always
from scaler.simulate.replay import replay
from scaler.simulate.traffic import poisson

KEEPS_S = (0, 30, 60, 300, 600, 1200, 3600)


def make_spec(**changes):
    return FunctionSpec(**{"name": "f", "model": "m", "max_replicas": 4, **changes})


class Plans:
    """plan() for one function, on a fleet that does at once what it says."""

    def __init__(self, spec, outlook):
        self.spec, self.outlook = spec, outlook
        self.shared = Shared(since_s=0.0, at_s=0.0)
        self.last, self.ready = None, 0

    def look(self, now_s, demand=None, *, ready=None):
        """The decision at this moment, without consequences."""
        return plan(
            now_s,
            {"f": demand or Demand()},
            history={"f": self.last.history} if self.last else {},
            specs={"f": self.spec},
            fleet={"f": Counts(ready=self.ready if ready is None else ready)},
            outlook={"f": self.outlook},
            shared=self.shared,
        )["f"]

    def decide(self, now_s, demand=None):
        self.last = self.look(now_s, demand)
        self.shared = learn(self.shared, now_s, [self.last])
        self.ready = self.last.desired
        return self.last

    def call(self, now_s):
        """A request that takes no time."""
        self.decide(now_s, Demand(queued=1, arrivals=1))
        return self.decide(now_s)

    def idle(self, now_s, until_s):
        """Ask whenever it wants to be asked: (when, decision) until then."""
        while (now_s := now_s + max(self.last.recheck_s, 1e-3)) < until_s:
            yield now_s, self.decide(now_s)


def seasons():
    rates = st.lists(st.sampled_from([1e-5, 1e-3, 0.05]), min_size=12, max_size=12)
    return st.none() | rates.map(a_season)


def a_season(rates):
    sums = [0.0]
    for rate in rates:
        sums.append(sums[-1] + rate)
    return Season(start_s=0.0, step_s=300.0, rates=rates, sums=sums)


def test_a_cold_start_is_worth_a_hundred_times_its_length():
    outlook = Outlook(start_s=0.5)
    assert cold_start_cost(make_spec(), outlook) == WAIT_WEIGHT * 0.5
    assert cold_start_cost(make_spec(cold_start_cost_s=7), outlook) == 7


# `recheck_s` says for how long a decision holds. In a second nothing is late, by design.
LATE_S = 1.0


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    gaps_s=st.lists(st.sampled_from([1.0, 7.0, 20.0, 60.0, 200.0, 900.0]), max_size=15),
    cost_s=st.sampled_from([10.0, 60.0, 300.0]),
    season=seasons(),
    start_s=st.sampled_from([0.1, 5.0]),
    share=st.floats(0, 1),
)
def test_a_decision_holds_until_it_wants_to_be_asked_again(gaps_s, cost_s, season, start_s, share):
    plans = Plans(
        make_spec(cold_start_cost_s=cost_s),
        Outlook(start_s=start_s, season=season),
    )
    now_s = 0.0
    for gap_s in [*gaps_s, 5000.0]:
        plans.call(now_s)
        asked_s = now_s
        for then_s, decision in plans.idle(now_s, now_s + gap_s):
            held_s = share * min(decision.recheck_s, now_s + gap_s - then_s)
            between = plans.look(then_s + held_s)
            if between.desired != decision.desired:
                again = plans.look(then_s + max(0.0, held_s - LATE_S))
                assert again.desired == decision.desired, (
                    f"idle for {then_s - now_s:.1f} s it was {decision.desired} for "
                    f"{decision.recheck_s:.1f} s more, but {between.desired} after {held_s:.1f} s"
                )
            asked_s = then_s
        assert asked_s - now_s <= gap_s
        now_s += gap_s


def idle_until_zero(plans, now_s):
    for then_s, decision in plans.idle(now_s, now_s + 1e6):
        if decision.desired == 0:
            return then_s - now_s
    return math.inf


def test_a_fixed_limit_is_kept_to_the_moment():
    plans = Plans(make_spec(idle_s=42), Outlook(start_s=1.0))
    for now_s in (0.0, 100.0, 200.0):
        plans.call(now_s)
        assert idle_until_zero(plans, now_s) == pytest.approx(42, abs=0.01)


def test_a_function_called_once_is_let_go_near_to_what_a_start_costs():
    # Ski rental: nothing is known of it.
    for cost_s in (30.0, 300.0):
        plans = Plans(make_spec(cold_start_cost_s=cost_s), Outlook(start_s=0.1))
        plans.call(0.0)
        assert idle_until_zero(plans, 0.0) <= 1.5 * cost_s


def test_the_more_a_cold_start_costs_the_longer_it_stays():
    rng = Random(1)
    gaps_s = [rng.expovariate(1 / 100) * rng.choice([0.1, 1, 5]) for _ in range(100)]
    stays_s = []
    for cost_s in (5.0, 50.0, 500.0, 5000.0):
        plans, now_s = Plans(make_spec(cold_start_cost_s=cost_s), Outlook(start_s=0.1)), 0.0
        for gap_s in gaps_s:
            plans.call(now_s)
            for _ in plans.idle(now_s, now_s + gap_s):
                pass
            now_s += gap_s
        plans.call(now_s)
        stays_s.append(idle_until_zero(plans, now_s))
    assert stays_s == sorted(stays_s)
    assert stays_s[-1] > 4 * stays_s[0]


def test_a_replica_stays_for_two_starts_at_least():
    # Or it would do nothing but start.
    plans, now_s = Plans(make_spec(cold_start_cost_s=1), Outlook(start_s=20.0)), 0.0
    for _ in range(20):
        plans.call(now_s)
        stays_s = idle_until_zero(plans, now_s)
        assert stays_s == pytest.approx(40, abs=0.01)
        now_s += 5000


@pytest.mark.parametrize("cost_s", [30.0, 60.0, 300.0])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.8, 1.0, 1.3, 2.0, 3.0, 10.0])
def test_on_poisson_noise_it_costs_little_more_than_the_best_fixed_limit(share, cost_s):
    rate, gaps = share / cost_s, 600
    until_s = gaps / rate
    traffic = poisson(
        rate, functions=4, until_s=until_s, seed=f"noise/{share}/{cost_s}", service_s=0.5
    )

    def cost(policy):
        outcomes = replay(traffic, policy, start_time=lambda: 0.1, until_s=until_s)
        return sum(outcome.cost(cost_s) for outcome in outcomes)

    foretell = always(Outlook(start_s=0.1))
    specs = [make_spec(cold_start_cost_s=cost_s)] * len(traffic)
    ours = cost(Planned(specs, from_s=0.0, foretell=foretell))
    best = min(cost(FixedKeepAlive(keep_s, per_replica=11)) for keep_s in KEEPS_S)
    assert ours <= 1.05 * best
