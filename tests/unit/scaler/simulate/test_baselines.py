"""The other policies that plan() is measured beside, by example."""

import math

import pytest

from scaler.simulate.baselines import FixedKeepAlive, HybridHistogram, KedaCooldown, LastValue
from scaler.simulate.replay import Now
from tests.unit.scaler.simulate.worlds import run, traffic

IDLE = Now(ready=1)
AT_ZERO = Now()
BUSY = Now(in_flight=1, ready=1)


@pytest.mark.parametrize(("keep_s", "cold", "wasted_s"), [(0, 3, 0), (30, 2, 80), (100, 1, 220)])
def test_fixed(keep_s, cold, wasted_s):
    # Idle for 20 s, for 100 s, and after the last.
    each = traffic([0, 30, 140], 10)
    outcome = run(each, FixedKeepAlive(keep_s, per_replica=11))
    assert (outcome.cold_starts, outcome.starts) == (cold, cold)
    assert outcome.wasted_s == pytest.approx(wasted_s)
    assert outcome.replica_s == pytest.approx(wasted_s + 30)


def test_fixed_follows_the_demand_up():
    policy = FixedKeepAlive(30, per_replica=11)
    assert policy.decide(0, 0, Now(queued=1))[0] == 1
    assert policy.decide(0, 0, Now(queued=12))[0] == 2
    assert policy.decide(0, 0, Now(in_flight=3, ready=2))[0] == 2


def test_keda_goes_to_zero_after_its_cooldown():
    policy = KedaCooldown(per_replica=11)
    assert policy.decide(0, 0, BUSY)[0] == 1
    assert policy.decide(10, 0, IDLE) == (1, 300)
    assert policy.decide(309.9, 0, IDLE)[0] == 1
    assert policy.decide(310, 0, IDLE) == (0, math.inf)
    outcome = run(traffic([0, 299, 900], 0), KedaCooldown(per_replica=11), until_s=2000)
    assert outcome.cold_starts == 2
    assert outcome.wasted_s == pytest.approx(299 + 300 + 300)


def test_last_value_keeps_what_was_worth_it():
    policy = LastValue(60, per_replica=11)
    idle_s = []
    now_s = 0.0
    for gap_s in (50, 70, 20):
        policy.decide(now_s, 0, BUSY)
        replicas, after_s = policy.decide(now_s, 0, IDLE)
        idle_s.append(after_s if replicas else 0)
        now_s += gap_s
    policy.decide(now_s, 0, BUSY)
    idle_s.append(policy.decide(now_s, 0, IDLE)[1])
    # Nothing known; then 1.1 times 50 s; 70 s is not worth it; 1.1 times 20 s.
    assert idle_s == pytest.approx([0, 55, 0, 22])


def learned(*idle_minutes):
    """A histogram that has seen idle times of so many minutes, half a minute into the bin."""
    policy, now_s = HybridHistogram(per_replica=11), 0.0
    for minutes in idle_minutes:
        policy.decide(now_s, 0, IDLE)
        now_s += 60 * (minutes + 0.5)
        policy.decide(now_s, 0, BUSY)
    return policy


EVERYTHING = (0, 4 * 3600)


def test_without_history_the_histogram_keeps_everything():
    assert HybridHistogram(per_replica=11).window(0) == EVERYTHING


def test_one_bin_unloads_until_its_start_less_the_margin():
    # All in the bin [10 min, 11 min): from 10 min less 10% until 11 min and 10%.
    assert learned(*[10] * 20).window(0) == pytest.approx((540, 726))


def test_head_and_tail_are_percentiles():
    # 100 idle times: 5 of 2 min, 90 of 20 min, 4 of 50 min, 1 of 100 min. The fifth percentile is
    # in the bin of 2 min, the 99th in that of 50 min.
    history = [2] * 5 + [20] * 90 + [50] * 4 + [100]
    assert learned(*history).window(0) == pytest.approx((60 * 2 * 0.9, 60 * 51 * 1.1))
    # One less of the short ones, and the head is 20 min; one more of the long ones, and the tail
    # is 100 min.
    history = [2] * 4 + [20] * 90 + [50] * 4 + [100] * 2
    assert learned(*history).window(0) == pytest.approx((60 * 20 * 0.9, 60 * 101 * 1.1))


def test_a_head_of_under_a_minute_does_not_unload():
    assert learned(*[0] * 50).window(0)[0] == 0


def test_where_nothing_stands_out_it_keeps_everything():
    # The counts of 240 bins: k ones among zeros have CV = sqrt(240 / k - 1), which is 2 at k = 48.
    assert learned(*range(47)).window(0) != EVERYTHING
    assert learned(*range(49)).window(0) == EVERYTHING


def test_where_most_is_beyond_the_range_it_keeps_everything():
    assert learned(*[10] * 5, *[300] * 5).window(0) != EVERYTHING
    assert learned(*[10] * 5, *[300] * 6).window(0) == EVERYTHING


def test_the_histogram_unloads_then_prewarms_then_leaves():
    policy = learned(*[10] * 20)
    now_s = 1e6
    assert policy.decide(now_s, 0, IDLE) == (0, pytest.approx(540))
    assert policy.decide(now_s + 540, 0, AT_ZERO) == (1, pytest.approx(186))
    assert policy.decide(now_s + 726, 0, IDLE) == (0, math.inf)


def test_a_regular_function_is_warm_when_it_is_called():
    arrivals = [630.0 * k for k in range(100)]
    outcome = run(traffic(arrivals), HybridHistogram(per_replica=11), until_s=arrivals[-1] + 1)
    assert outcome.cold_starts == 1
    # Nine of every ten and a half minutes without a replica.
    assert outcome.replica_s == pytest.approx(630.0 + 90.0 * 98, rel=0.01)
