"""Slots of the week in local time, also where clocks change."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.local_time import BIN_S, BINS_PER_WEEK, LocalTime

YEAR = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp() // BIN_S)


def bin_at(local: str, zone: str, fold: int = 0) -> int:
    at = datetime.fromisoformat(local).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return int(at.timestamp() // BIN_S)


def slot_by_datetime(utc_bin: int, zone: str) -> int:
    local = datetime.fromtimestamp(utc_bin * BIN_S, ZoneInfo(zone))
    return local.weekday() * 288 + local.hour * 12 + local.minute // 5


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    zone=st.sampled_from(sorted(available_timezones())),
    first=st.integers(0, 366 * 288),
    steps=st.lists(st.integers(-400, 400), max_size=20),
)
def test_slots_are_those_of_the_wall_clock_in_every_zone(zone, first, steps):
    local = LocalTime(zone)
    utc_bin = YEAR + first
    for step in [0, *steps]:
        utc_bin += step
        assert local.slot(utc_bin) == slot_by_datetime(utc_bin, zone)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe", "America/St_Johns"])
def test_a_leap_year_bin_by_bin(zone):
    local = LocalTime(zone)
    bins = range(YEAR, YEAR + 366 * 288)
    assert all(local.slot(utc_bin) == slot_by_datetime(utc_bin, zone) for utc_bin in bins[::3])


def test_a_gap_passes_slots_over_and_a_fold_gives_them_twice():
    local = LocalTime("Europe/Berlin")
    spring = bin_at("2026-03-29T01:55", "Europe/Berlin")
    assert local.slot(spring + 1) - local.slot(spring) == 13
    first = bin_at("2026-10-25T02:30", "Europe/Berlin")
    second = bin_at("2026-10-25T02:30", "Europe/Berlin", fold=1)
    assert second - first == 12
    assert local.slot(first) == local.slot(second)


def test_monday_begins_the_week():
    local = LocalTime("Asia/Kolkata")
    monday = bin_at("2026-03-02T00:00", "Asia/Kolkata")
    assert local.slot(monday) == 0
    assert local.slot(monday - 1) == BINS_PER_WEEK - 1


def test_a_zone_that_is_none():
    with pytest.raises(KeyError):
        LocalTime("Mars/Olympus")


def test_what_it_remembers_does_not_go_stale():
    local = LocalTime("Europe/Berlin")
    summer = bin_at("2026-07-01T12:00", "Europe/Berlin")
    winter = summer + int(timedelta(days=182).total_seconds() // BIN_S)
    assert [local.slot(each) for each in (summer, winter, summer)] == [
        slot_by_datetime(each, "Europe/Berlin") for each in (summer, winter, summer)
    ]
