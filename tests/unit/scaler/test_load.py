"""Load: means over windows are integrals, and what is remembered stays small."""

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.load import NO_LOAD, average, observe, replicas_for, window_start_s

fixed = settings(derandomize=True, deadline=None, max_examples=200)

gaps = st.one_of(
    st.floats(0.001, 0.4),  # edges
    st.sampled_from([1.0, 2.0]),  # ticks
    st.floats(3, 90),
    st.floats(1e3, 1e5),  # the simulator's nights
)
observations = st.lists(st.tuples(gaps, st.integers(0, 3000)), min_size=1, max_size=150)


def follow(steps, *, start_s=1000.0):
    """The load after these steps, and the whole step function as (time, demand since)."""
    load, now_s, history = NO_LOAD, start_s, []
    for gap_s, demand in steps:
        now_s += gap_s
        load = observe(load, now_s, demand)
        history.append((now_s, demand))
    return load, history


def integral(history, since_s, until_s):
    total = 0.0
    for index, (time_s, demand) in enumerate(history):
        end_s = history[index + 1][0] if index + 1 < len(history) else math.inf
        total += demand * max(0.0, min(end_s, until_s) - max(time_s, since_s))
    return total


@fixed
@given(observations, st.one_of(st.just(0.0), gaps), st.sampled_from([1.0, 2.5, 6.0, 20.0, 60.0]))
def test_the_average_is_the_integral_over_the_time(steps, later_s, window_s):
    load, history = follow(steps)
    now_s = history[-1][0] + later_s
    since_s = window_start_s(load, now_s, window_s)
    bucket_s = 0.5 if window_s <= 6 else 4.0
    assert now_s - window_s - bucket_s < since_s <= now_s - window_s
    exact = integral(history, since_s, now_s) / (now_s - since_s)
    assert average(load, now_s, window_s) == pytest.approx(exact, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("gap_s", [0.03, 0.21, 0.7, 1.3, 2.9])
@pytest.mark.parametrize("window_s", [1.0, 2.5, 6.0, 20.0, 60.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_average_is_exact_where_many_share_a_bucket(gap_s, window_s, seed):
    random = Random(seed)
    load, history = follow([(gap_s, random.randrange(3000)) for _ in range(200 + seed)])
    now_s = history[-1][0]
    since_s = window_start_s(load, now_s, window_s)
    assert now_s - window_s - (0.5 if window_s <= 6 else 4.0) < since_s <= now_s - window_s
    exact = integral(history, since_s, now_s) / (now_s - since_s)
    assert average(load, now_s, window_s) == pytest.approx(exact, rel=1e-6, abs=1e-6)


@fixed
@given(observations, st.floats(0, 100))
def test_the_window_is_exact_where_observations_are_a_bucket_apart(steps, later_s):
    load, history = follow([(max(gap_s, 4.0), demand) for gap_s, demand in steps])
    now_s = history[-1][0] + later_s
    for window_s in (1.0, 6.0, 60.0):
        assert window_start_s(load, now_s, window_s) == now_s - window_s


def test_a_second_apart_the_short_window_is_exact():
    load, history = follow([(1.0, n * 7 % 50) for n in range(500)])
    now_s = history[-1][0] + 0.25
    assert window_start_s(load, now_s, 6.0) == now_s - 6.0
    assert average(load, now_s, 6.0) == pytest.approx(integral(history, now_s - 6, now_s) / 6)


@fixed
@given(st.lists(st.tuples(gaps, st.integers(0, 3000)), min_size=200, max_size=400))
def test_what_is_remembered_stays_small(steps):
    load, _ = follow(steps)
    assert len(load.times) == len(load.areas) <= 64
    assert list(load.times) == sorted(set(load.times))
    assert list(load.areas) == sorted(load.areas)


def test_a_month_of_changes_costs_no_precision():
    load, now_s, history = NO_LOAD, 0.0, []
    for n in range(20_000):
        now_s += 129.7
        load = observe(load, now_s, 3000 + n % 2)
        history = [*history[-9:], (now_s, 3000 + n % 2)]
    for later_s in (0.0, 30.0, 1e6):
        exact = integral(history, now_s + later_s - 60, now_s + later_s) / 60
        assert average(load, now_s + later_s, 60.0) == pytest.approx(exact, rel=1e-12)
    assert load.areas[-1] < 64 * 130 * 3001  # it is counted from the oldest knot


def test_before_the_first_observation_there_was_nothing():
    load = observe(NO_LOAD, 100.0, 12)
    assert average(load, 100.0, 60.0) == 0.0
    assert average(load, 130.0, 60.0) == 6.0
    assert average(load, 160.0, 60.0) == 12.0
    assert average(NO_LOAD, 5.0, 60.0) == 0.0


def test_what_stays_the_same_is_the_same_value():
    load = observe(NO_LOAD, 100.0, 12)
    assert observe(load, 5000.0, 12) is load
    assert observe(NO_LOAD, 5000.0, 0) is NO_LOAD


def test_a_peak_between_two_looks_is_counted_in_full():
    load = observe(NO_LOAD, 10.0, 1)
    for n in range(100):  # 100 requests for 2 ms each, within a fifth of a second
        load = observe(load, 11.0 + n * 0.002, 40)
        load = observe(load, 11.0 + n * 0.002 + 0.001, 1)
    looked_s = 12.0
    assert average(load, looked_s, 2.0) == pytest.approx((2 * 1 + 100 * 0.001 * 39) / 2)


def test_a_clock_that_goes_backwards_stands_still():
    load = observe(observe(NO_LOAD, 100.0, 10), 110.0, 20)
    back = observe(load, 50.0, 30)
    assert back.times == load.times
    assert average(back, 110.0, 10.0) == 10.0
    assert average(back, 115.0, 10.0) == 20.0
    assert average(back, 105.0, 1.0) >= 0


@pytest.mark.parametrize(
    ("requests", "target", "replicas"),
    [(0, 11, 0), (-1e-9, 11, 0), (0.01, 11, 1), (11, 11, 1), (11.0000001, 11, 1), (11.1, 11, 2)],
)
def test_rounding_asks_for_no_replica(requests, target, replicas):
    assert replicas_for(requests, target) == replicas
