"""Costs counted by hand, walking forward without a look ahead, and the verdict."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.backtest import Cost, backtest, cost
from scaler.forecast import Terms
from scaler.local_time import BIN_MINUTES, BINS_PER_DAY
from scaler.minutes import Minute

DAY = 1440
BIN = 1000  # a bin in UTC; its first minute is 5000
TERMS = Terms(
    timezone="UTC", target=4, max_replicas=9, idle_s=120.0, cold_start_s=10.0, worth_s=300.0
)


def costed(needs, floors=(), *, lead_s=0.0, **changes):
    """(unused seconds, cold starts) of needs at minutes from 5000 on."""
    needs = [(BIN * BIN_MINUTES + minute, replicas) for minute, replicas in needs]
    result = cost(needs, floors, replace(TERMS, **changes), first_bin=BIN, lead_s=lead_s)
    return result.unused_s, result.cold_starts


def test_nothing_costs_nothing():
    assert costed([]) == (0, 0)


def test_a_request_costs_its_start_and_the_idle_time_after_it():
    assert costed([(0, 1)]) == (10 + 120, 1)


def test_a_request_within_the_idle_time_is_warm():
    assert costed([(0, 1), (3, 1)]) == (10 + 120 + 120, 1)
    assert costed([(0, 1), (4, 1)]) == (2 * (10 + 120), 2)


def test_idle_times_under_a_minute_count_as_one():
    assert costed([(0, 1), (2, 1)], idle_s=1.0) == (10 + 60 + 60, 1)


def test_each_replica_more_is_a_cold_start_of_its_own():
    assert costed([(0, 3), (1, 1)]) == (3 * (10 + 120), 3)


def test_a_floor_makes_the_request_warm_and_costs_its_unused_time():
    assert costed([(3, 1)], [1]) == (180 + 120, 0)  # asked for until minute 5, up until 6


def test_a_floor_that_nobody_needs_is_unused_with_its_start():
    assert costed([], [0, 1, 1, 0], lead_s=30.0) == (30 + 600, 0)


def test_floors_side_by_side_are_launched_once():
    assert costed([], [1, 0, 1], lead_s=30.0) == (2 * 330, 0)
    assert costed([], [1, 2, 1], lead_s=30.0) == (30 + 900 + 30 + 300, 0)


def test_a_floor_does_not_shorten_the_idle_time():
    assert costed([(4, 1)], [1, 0]) == (240 + 120, 0)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(
    needs=st.dictionaries(st.integers(0, 99), st.integers(1, 5), max_size=30),
    floors=st.lists(st.integers(0, 5), min_size=20, max_size=20),
    lead_s=st.floats(0, 300),
)
def test_floors_never_add_cold_starts_nor_save_time(needs, floors, lead_s):
    needs = sorted(needs.items())
    unused_s, cold = costed(needs)
    with_floors_s, with_floors_cold = costed(needs, floors, lead_s=lead_s)
    assert with_floors_cold <= cold
    saved_starts_s = TERMS.cold_start_s * (cold - with_floors_cold)
    assert with_floors_s >= unused_s - saved_starts_s - 1e-6
    assert unused_s >= 0


def regular(days, *, at=(600,), until_day=None):
    """A request at these minutes of each day."""
    return [
        Minute(minute=day * DAY + minute, arrivals=1, peak=1)
        for day in range(until_day or days)
        for minute in at
    ]


def test_what_is_foretold_does_not_depend_on_what_comes_later():
    minutes = regular(12, at=range(600, 700, 3))
    whole, _ = backtest(minutes, TERMS, until_minute=12 * DAY)
    for until in (8 * DAY, 9 * DAY + 605, 11 * DAY + 1):
        cut, _ = backtest(
            [each for each in minutes if each.minute < until], TERMS, until_minute=until
        )
        foretold = {each.foretold.utc_bin: each.foretold for each in whole.past}
        same = [each.foretold for each in cut.past if each.foretold.utc_bin in foretold]
        assert len(same) > BINS_PER_DAY
        assert all(foretold[each.utc_bin] == each for each in same)


def test_a_bin_is_foretold_from_two_bins_before():
    minutes = regular(9)
    _, forecast = backtest(minutes, TERMS, until_minute=9 * DAY)
    tested, _ = backtest(minutes, TERMS, until_minute=9 * DAY + 10)
    assert tested.past[-1].foretold == forecast.bin(9 * DAY // BIN_MINUTES + 1)


def test_the_last_week_is_tested_bin_by_bin():
    tested, _ = backtest(regular(20), TERMS, until_minute=20 * DAY)
    assert len(tested.past) == 7 * BINS_PER_DAY
    assert tested.past[0].foretold.utc_bin == 13 * BINS_PER_DAY
    assert sum(each.arrivals for each in tested.past) == 7
    assert tested.nothing == Cost(unused_s=7 * 130.0, cold_starts=7, worth_s=300.0)


def test_bursts_at_fixed_times_pay():
    tested, _ = backtest(regular(14, at=(600, 800, 1000)), TERMS, until_minute=14 * DAY)
    assert tested.forecast.cold_starts < tested.nothing.cold_starts / 3
    assert tested.pays


def test_last_value_is_late_for_bursts():
    tested, _ = backtest(regular(14), TERMS, until_minute=14 * DAY)
    assert tested.last.cold_starts == tested.nothing.cold_starts
    assert tested.last.unused_s > tested.nothing.unused_s


@pytest.mark.parametrize("per_hour", [0.2, 1, 3, 8])
def test_on_noise_it_never_costs_more_than_a_twentieth_more_than_doing_nothing(per_hour):
    rng = random.Random(int(per_hour * 10))
    minutes = [
        Minute(minute=minute, arrivals=1, peak=1)
        for minute in range(28 * DAY)
        if rng.random() < per_hour / 60
    ]
    tested, _ = backtest(minutes, TERMS, until_minute=28 * DAY)
    assert tested.forecast.total_s < 1.05 * tested.nothing.total_s


def test_what_ended_long_ago_is_no_longer_expected():
    minutes = regular(60, at=range(600, 660), until_day=20)
    tested, forecast = backtest(minutes, TERMS, until_minute=50 * DAY)
    assert not tested.pays
    assert forecast.floors(50 * DAY * 60.0, ahead_s=86_400) == ()


def test_only_eight_weeks_are_learned_from():
    minutes = regular(70)
    _, forecast = backtest(minutes, TERMS, until_minute=70 * DAY)
    assert forecast.bins == 56 * BINS_PER_DAY - 600 // BIN_MINUTES


@pytest.mark.parametrize("minutes", [[], regular(1)])
def test_too_little_to_test(minutes):
    tested, forecast = backtest(minutes, TERMS, until_minute=DAY)
    assert tested.past == ()
    assert not tested.pays
    assert not forecast.ready
    assert tested.forecast.total_s == 0


def test_less_than_a_day_foretold_is_no_verdict():
    minutes = regular(2, at=range(0, DAY, 10))
    tested, _ = backtest(minutes, TERMS, until_minute=2 * DAY - 60)
    assert 0 < len(tested.past) < BINS_PER_DAY
    assert not tested.pays
