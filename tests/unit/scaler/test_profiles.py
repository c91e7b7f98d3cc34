"""What profiles learn: rates, hours, single bins, days of the week, the level of a holiday."""

import random
from datetime import UTC, datetime

import pytest

from scaler.local_time import BIN_S, BINS_PER_DAY, BINS_PER_WEEK
from scaler.profiles import Profiles

MONDAY = int(datetime(2026, 1, 5, tzinfo=UTC).timestamp() // BIN_S)
WEEK = BINS_PER_WEEK


def learned(arrivals, weeks=4, *, timezone="UTC"):
    """Profiles that have seen `arrivals(day, bin of the day)` from Monday on, in UTC."""
    profiles = Profiles(timezone)
    for k in range(int(weeks * WEEK)):
        profiles.observe(MONDAY + k, arrivals(*divmod(k, BINS_PER_DAY)))
    return profiles


def noise(per_bin, seed=1):
    rng = random.Random(seed)
    return lambda day, time: int(rng.random() < per_bin)


def test_noise_is_one_number_everywhere():
    profiles = learned(noise(0.1))
    chances = [profiles.expected(MONDAY + 4 * WEEK + k).chance for k in range(WEEK)]
    assert sum(chances) / len(chances) == pytest.approx(0.1, abs=0.02)
    assert sorted(chances)[WEEK // 50] > 0.05
    assert sorted(chances)[-WEEK // 50] < 0.2


def test_silence_is_foretold_and_never_certain():
    profiles = learned(lambda day, time: 0)
    expected = profiles.expected(profiles.next_bin + 5)
    assert 0 < expected.chance < 0.001
    assert 0 <= expected.arrivals < 0.01


def test_a_request_in_every_bin_is_foretold_and_never_certain():
    profiles = learned(lambda day, time: 3)
    expected = profiles.expected(profiles.next_bin)
    assert 0.99 < expected.chance < 1
    assert expected.arrivals == pytest.approx(3, rel=0.05)
    assert expected.hazard < 25


def test_a_nightly_batch_is_foretold_in_its_five_minutes_after_some_nights():
    noisy = noise(0.02)
    profiles = learned(lambda day, time: 40 if time == 27 else noisy(day, time), weeks=1.5)
    night = profiles.next_bin // BINS_PER_DAY * BINS_PER_DAY + BINS_PER_DAY
    batch = profiles.expected(night + 27)
    assert batch.chance > 0.8
    assert batch.arrivals > 20
    assert profiles.expected(night + 26).chance < 0.1
    assert profiles.expected(night + 28).chance < 0.1


def test_a_weekly_batch_is_foretold_on_its_day_only():
    profiles = learned(lambda day, time: 25 if (day % 7, time) == (3, 130) else 0)
    week = MONDAY + 4 * WEEK
    assert profiles.expected(week + 3 * BINS_PER_DAY + 130).chance > 0.6
    for day in (0, 1, 2, 4, 5, 6):
        assert profiles.expected(week + day * BINS_PER_DAY + 130).chance < 0.25


def test_office_hours_are_told_from_weekends():
    rng = random.Random(3)
    profiles = learned(
        lambda day, time: int(day % 7 < 5 and 108 <= time < 204 and rng.random() < 0.6)
    )
    week = MONDAY + 4 * WEEK
    assert profiles.expected(week + 150).chance == pytest.approx(0.6, abs=0.25)
    assert profiles.expected(week + 5 * BINS_PER_DAY + 150).chance < 0.1
    assert profiles.expected(week + 40).chance < 0.1


def test_under_two_weeks_days_are_not_told_apart():
    def of(weeks):
        return learned(lambda day, time: int(day % 7 == 0 and 100 <= time < 200), weeks=weeks)

    young = of(13 / 7)
    saturday = MONDAY + 2 * WEEK + 5 * BINS_PER_DAY + 150
    monday = MONDAY + 2 * WEEK + 150
    assert young.expected(monday).hazard == pytest.approx(young.expected(saturday).hazard, rel=0.2)
    old = of(4)
    assert old.expected(monday + 2 * WEEK).chance > 2 * old.expected(saturday + 2 * WEEK).chance


def test_the_level_falls_on_a_holiday_and_is_forgotten_by_the_next_day():
    rng = random.Random(5)
    holiday = 3 * 7 + 2

    def office(day, time):
        return int(day != holiday and 96 <= time < 216 and rng.random() < 0.7)

    profiles = learned(office, weeks=(holiday + 150 / 288) / 7)
    soon = profiles.expected(profiles.next_bin + 2).chance
    tomorrow = profiles.expected(profiles.next_bin + 2 + BINS_PER_DAY).chance
    assert soon < 0.3
    assert tomorrow > 0.5


def test_the_season_follows_local_time_over_the_change_of_clocks():
    zone = "America/New_York"  # 2026-03-08: two o'clock is three
    start = int(datetime(2026, 2, 9, 5, tzinfo=UTC).timestamp() // BIN_S)  # Monday 00:00 there
    change = start + 4 * WEEK - BINS_PER_DAY + 24
    profiles = Profiles(zone)
    for k in range(start, change + 3 * BINS_PER_DAY):
        local = k - start + (12 if k >= change else 0)
        profiles.observe(k, 30 if local % BINS_PER_DAY == 60 else 0)
    midnight = start + 4 * WEEK + 3 * BINS_PER_DAY - 12
    assert profiles.expected(midnight + 60).chance > 0.8  # five o'clock by the new clock
    assert profiles.expected(midnight + 72).chance < 0.1


def test_drift_is_followed():
    rng = random.Random(9)
    profiles = learned(lambda day, time: int(rng.random() < 0.02 * 2 ** (day / 7)), weeks=5)
    now = 0.02 * 2**5
    mean = sum(profiles.expected(profiles.next_bin + k).chance for k in range(24)) / 24
    assert 0.6 * now < mean < 1.4 * now
