"""Knative's KPA against cases worked out by hand from its published rule.

The target is 10 requests a replica, a tick 2 s, the stable window 60 s, the panic window 6 s. A
fleet of `ready` replicas is told to the policy; nothing of the simulator takes part.
"""

import math

import pytest

from scaler.simulate.knative import KnativeAutoscaler, average
from scaler.simulate.replay import Now
from tests.unit.scaler.simulate.worlds import run, traffic


class Fleet:
    """Replicas are ready as soon as they are wanted, unless `stuck`."""

    def __init__(self, ready=0, *, target=10.0):
        self.kpa = KnativeAutoscaler(target=target)
        self.ready = ready
        self.now_s = 0.0

    def ticks(self, demand, *, seconds, stuck=False):
        """What is wanted at each tick under this demand."""
        wanted = []
        for _ in range(int(seconds / 2)):
            queued = demand if self.ready == 0 else 0
            now = Now(in_flight=demand - queued, queued=queued, ready=self.ready)
            replicas, after_s = self.kpa.decide(self.now_s, 0, now)
            wanted.append(replicas)
            if not stuck:
                self.ready = replicas
            assert after_s == 2.0 or (replicas == 0 and after_s == math.inf)
            self.now_s += 2.0
        return wanted


def test_a_steady_demand_is_divided_by_the_target():
    assert Fleet(3).ticks(30, seconds=200) == [3] * 100
    assert Fleet(4).ticks(31, seconds=200) == [4] * 100


def test_from_zero_the_activator_pokes_it_at_once():
    assert Fleet().ticks(1, seconds=2) == [1]
    # 45 at once: ceil(45 / 10), as the average is over the time since the first report.
    assert Fleet().ticks(45, seconds=2) == [5]


def test_to_zero_when_the_stable_window_saw_nothing():
    fleet = Fleet(1)
    fleet.ticks(1, seconds=10)
    idle = fleet.ticks(0, seconds=66)
    # It was 1 until 10 s, by the last tick at 8 s and the first without at 10 s; at 70 s its last
    # second leaves the window.
    assert idle == [1] * 30 + [0] * 3


def test_the_stable_window_smooths():
    fleet = Fleet(3)
    fleet.ticks(30, seconds=60)
    # 15 from 60 s on: over 60 s the average falls by 0.25 a second, to 20 after 40 s.
    assert fleet.ticks(15, seconds=60) == [3] * 20 + [2] * 10


def test_down_by_half_a_tick_at_most():
    kpa = KnativeAutoscaler(target=10)
    assert [kpa.want(0.0, ready=ready) for ready in (1, 2, 3, 8, 9)] == [0, 1, 1, 4, 4]
    fleet = Fleet(8)
    assert fleet.ticks(1, seconds=10) == [4, 2, 1, 1, 1]


def test_up_by_a_thousand_times_at_most():
    kpa = KnativeAutoscaler(target=1)
    assert kpa.want(5000.0, ready=1) == 1000
    assert kpa.want(5000.0, ready=4) == 4000
    assert kpa.want(5000.0, ready=6) == 5000


def test_panic_begins_when_six_seconds_ask_for_twice_what_is_ready():
    fleet = Fleet(1)
    fleet.ticks(10, seconds=60)
    # 40 from 60 s on. Over 6 s: 10 at 60 s, 20 at 62 s: ceil(20 / 10) / 1 = 2 is panic.
    assert fleet.ticks(40, seconds=10) == [1, 2, 3, 4, 4]


def test_below_twice_there_is_no_panic():
    fleet = Fleet(2)
    fleet.ticks(20, seconds=60)
    # 30 from 60 s on: over 6 s at most 30, ceil(3) / 2 < 2. Over 60 s the average passes 20 at
    # once.
    assert fleet.ticks(30, seconds=6) == [2, 3, 3]


def test_in_panic_the_count_never_falls_and_it_ends_a_stable_window_after():
    fleet = Fleet(1)
    fleet.ticks(10, seconds=60)
    assert fleet.ticks(40, seconds=10)[-1] == 4
    # The last moment over the threshold was 62 s: 20 over 6 s is twice the one that was ready. At
    # 64 s there were two: ceil(30 / 10) / 2 < 2. Panic ends when 62 s is more than 60 s ago: at
    # 124 s. Then the stable window has 10 s of 40 less what is older than 64 s: 6 s of 40 and none
    # after: ceil(4 / 10) = 1, but no less than half of what is ready.
    calm = fleet.ticks(0, seconds=60)
    assert fleet.now_s == 130.0
    assert calm == [4] * 27 + [2, 1, 1]


def test_panic_is_prolonged_while_the_replicas_do_not_come():
    fleet = Fleet(1)
    fleet.ticks(10, seconds=60)
    wanted = fleet.ticks(40, seconds=30, stuck=True)
    assert wanted[-1] == 4
    # Still over at the last tick, 88 s, and for 4 s more: the panic window asks for 4, 3 and 2
    # replicas at 90, 92 and 94 s. Panic ends after 154 s, at 156.
    fleet.ready = 1
    calm = fleet.ticks(0, seconds=70, stuck=True)
    ends = [90.0 + 2 * tick for tick, replicas in enumerate(calm) if replicas < 4]
    assert ends[0] == 156.0


def test_in_panic_the_higher_window_counts():
    fleet = Fleet(10)
    fleet.ticks(100, seconds=60)
    # 0 for 6 s, then nine of the ten are lost while 21 are asked for: over 6 s 7 at 68 s, 14 at
    # 70 s: panic of the one that is ready. The stable window still asks for more.
    fleet.ticks(0, seconds=6, stuck=True)
    fleet.ready = 1
    wanted = fleet.ticks(21, seconds=6, stuck=True)
    stable = [(100 * 54 + 21 * 0) / 60, (100 * 52 + 21 * 2) / 60, (100 * 50 + 21 * 4) / 60]
    assert wanted == [math.ceil(value / 10) for value in stable] == [9, 9, 9]


def test_an_average_is_over_the_time_since_the_first_report():
    assert average([(0.0, 30)], 0.0, 60) == 30
    assert average([(0.0, 30)], 10.0, 60) == 30
    assert average([(0.0, 30), (10.0, 0)], 20.0, 60) == 15
    assert average([(0.0, 30), (10.0, 0)], 60.0, 60) == 5
    assert average([(0.0, 30), (10.0, 0)], 70.0, 60) == 0
    assert average([(0.0, 30), (10.0, 0)], 20.0, 6) == 0


def test_after_a_minute_at_zero_the_average_starts_anew():
    fleet = Fleet()
    fleet.ticks(1, seconds=10)
    fleet.ticks(0, seconds=62)
    assert fleet.ready == 0
    fleet.now_s += 100
    assert fleet.ticks(25, seconds=2) == [3]


@pytest.mark.parametrize("gap_s", [59.0, 70.0])
def test_in_the_simulator_a_replica_stays_a_minute(gap_s):
    outcome = run(traffic([10.0, 10.0 + gap_s], 1.0), KnativeAutoscaler(target=10), until_s=500)
    # Ready at once at 10 s; the tick at 72 s (70 s for the first) finds a minute without demand.
    assert outcome.cold_starts == (1 if gap_s < 60 else 2)
    kept_s = outcome.replica_s - 2.0
    lives = 1 if gap_s < 60 else 2
    idle_s = (gap_s - 1.0 if lives == 1 else 0.0) + 60.0 * lives
    assert idle_s <= kept_s <= idle_s + 2.0 * lives
