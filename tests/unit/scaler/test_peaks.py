"""Quantiles of past peaks, by the kind of day that foretells best, in local time."""

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.local_time import BIN_S, BINS_PER_DAY, BINS_PER_WEEK
from scaler.peaks import Peaks

MONDAY = int(datetime(2026, 1, 5, tzinfo=UTC).timestamp() // BIN_S)


def learned(peak, days, *, quantile=0.5, over=0, timezone="UTC"):
    peaks = Peaks(timezone, quantile=quantile, over=over, ahead=2)
    for k in range(days * BINS_PER_DAY):
        peaks.observe(MONDAY + k, peak(*divmod(k, BINS_PER_DAY)))
    return peaks


def test_the_median_of_the_days_at_that_time():
    heights = [9, 1, 5, 7, 3]
    peaks = learned(lambda day, time: heights[day] if time == 100 else 0, 5)
    assert peaks.expected(MONDAY + 5 * BINS_PER_DAY + 100) == 5
    assert peaks.expected(MONDAY + 5 * BINS_PER_DAY + 101) == 0


@pytest.mark.parametrize(("quantile", "height"), [(0.1, 1), (0.5, 5), (0.9, 9), (0.99, 9)])
def test_a_higher_quantile_is_ready_for_more(quantile, height):
    heights = [9, 1, 5, 7, 3]
    peaks = learned(lambda day, time: heights[day], 5, quantile=quantile)
    assert peaks.expected(MONDAY + 5 * BINS_PER_DAY + 7) == height


def test_weekdays_and_weekends_are_told_apart_after_two_weeks():
    peaks = learned(lambda day, time: 40 if day % 7 < 5 else 4, 28)
    assert peaks.expected(MONDAY + 28 * BINS_PER_DAY + 9) == 40
    assert peaks.expected(MONDAY + 33 * BINS_PER_DAY + 9) == 4


def test_one_day_of_the_week_is_told_apart():
    peaks = learned(lambda day, time: 40 if day % 7 == 2 and time < 20 else 1, 28)
    assert peaks.expected(MONDAY + 30 * BINS_PER_DAY + 9) == 40
    assert peaks.expected(MONDAY + 29 * BINS_PER_DAY + 9) == 1


def test_what_one_replica_takes_is_not_foretold():
    assert learned(lambda day, time: 8, 3, over=8).expected(MONDAY + 3 * BINS_PER_DAY) == 0
    assert learned(lambda day, time: 9, 3, over=8).expected(MONDAY + 3 * BINS_PER_DAY) == 9


def test_a_bin_that_comes_twice_counts_with_its_higher_peak():
    zone = "Europe/Berlin"
    first = int(datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp() // BIN_S)  # 02:30, then again
    for heights in ((30, 6), (6, 30)):
        peaks = Peaks(zone, quantile=0.5, over=0, ahead=2)
        for k in range(first - 24, first + BINS_PER_DAY):
            peaks.observe(k, heights[0] if k == first else heights[1] if k == first + 12 else 0)
        assert peaks.expected(first + BINS_PER_DAY + 12) == 30


def test_a_day_without_the_bin_does_not_count_as_quiet():
    zone = "Europe/Berlin"
    start = int(datetime(2026, 3, 27, 23, tzinfo=UTC).timestamp() // BIN_S)  # Saturday 00:00
    change = start + BINS_PER_DAY + 24  # Sunday: two o'clock is three
    peaks = Peaks(zone, quantile=0.4, over=0, ahead=2)
    for k in range(start, start + 3 * BINS_PER_DAY - 12):
        local = (k - start + (12 if k >= change else 0)) % BINS_PER_DAY
        peaks.observe(k, 20 if local == 30 else 0)
    tuesday = start + 3 * BINS_PER_DAY - 12
    assert peaks.expected(tuesday + 30) == 20


@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    heights=st.lists(st.integers(0, 100_000), min_size=1, max_size=900),
    quantile=st.floats(0.01, 0.99),
    ahead=st.integers(0, 2 * BINS_PER_WEEK),
)
def test_it_is_always_a_peak_that_was_seen_or_none(heights, quantile, ahead):
    peaks = Peaks("Europe/Berlin", quantile=quantile, over=0, ahead=2)
    for k, height in enumerate(heights):
        peaks.observe(MONDAY + k, height)
    answer = peaks.expected(MONDAY + len(heights) + ahead)
    assert answer == 0 or answer in {min(height, 65_534) for height in heights}
