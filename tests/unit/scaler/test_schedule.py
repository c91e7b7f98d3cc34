"""Windows of schedules: what cron and `at` mean in a time zone, also when its clocks are set."""

from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glowplug.schedule import Schedule
from scaler.schedule import instant, next_starts, windows

YEAR = range(  # 2028, a leap year, in Unix time
    int(datetime(2028, 1, 1, tzinfo=UTC).timestamp()),
    int(datetime(2029, 1, 1, tzinfo=UTC).timestamp()),
)
ZONES = sorted(available_timezones() - {"localtime", "Factory"})


def cron(expression: str, zone: str = "Europe/Berlin", **fields) -> Schedule:
    return Schedule(
        **{"name": "s", "duration": "2h", "cron": expression, "timezone": zone} | fields
    )


def at(time: str, zone: str = "Europe/Berlin", **fields) -> Schedule:
    return Schedule(**{"name": "s", "duration": "2h", "at": time, "timezone": zone} | fields)


def unix(text: str) -> float:
    """Of a time with an offset."""
    return datetime.fromisoformat(text).timestamp()


def shown(seconds: float, zone: str = "Europe/Berlin") -> str:
    return datetime.fromtimestamp(seconds, ZoneInfo(zone)).isoformat()


def starts(schedule: Schedule, after: str, count: int) -> list[str]:
    found = islice(next_starts(schedule, unix(after)), count)
    return [shown(start, schedule.timezone) for start in found]


def test_weekdays() -> None:
    assert starts(cron("0 8 * * 1-5"), "2028-03-02T08:00+01:00", 3) == [  # a Thursday, at 8
        "2028-03-03T08:00:00+01:00",
        "2028-03-06T08:00:00+01:00",
        "2028-03-07T08:00:00+01:00",
    ]


def test_a_time_that_the_clocks_skip_is_the_first_one_after_the_gap() -> None:
    assert starts(cron("30 2 * * *"), "2028-03-25T12:00+01:00", 2) == [
        "2028-03-26T03:00:00+02:00",
        "2028-03-27T02:30:00+02:00",
    ]


def test_times_in_one_gap_are_one() -> None:
    assert starts(cron("*/20 * * * *"), "2028-03-26T01:30+01:00", 3) == [
        "2028-03-26T01:40:00+01:00",
        "2028-03-26T03:00:00+02:00",
        "2028-03-26T03:20:00+02:00",
    ]


def test_a_gap_at_midnight() -> None:
    """In Nuuk 23:00 to 24:00 of a Saturday is skipped."""
    assert starts(cron("30 23 * * *", "America/Nuuk"), "2028-03-25T12:00-02:00", 2) == [
        "2028-03-26T00:00:00-01:00",
        "2028-03-26T23:30:00-01:00",
    ]


def test_a_gap_of_half_an_hour() -> None:
    assert starts(cron("15 2 * * *", "Australia/Lord_Howe"), "2028-09-30T12:00+10:30", 1) == [
        "2028-10-01T02:30:00+11:00"
    ]


def test_a_time_that_comes_twice_is_the_first_one_and_once() -> None:
    assert starts(cron("30 2 * * *"), "2028-10-28T12:00+02:00", 2) == [
        "2028-10-29T02:30:00+02:00",
        "2028-10-30T02:30:00+01:00",
    ]
    assert starts(cron("30 2 * * *"), "2028-10-29T02:10+01:00", 1) == ["2028-10-30T02:30:00+01:00"]


def test_a_quarter_hourly_cron_in_a_fold() -> None:
    assert starts(cron("*/30 * * * *"), "2028-10-29T02:00+02:00", 3) == [
        "2028-10-29T02:30:00+02:00",
        "2028-10-29T03:00:00+01:00",  # nothing in the second pass
        "2028-10-29T03:30:00+01:00",
    ]


@pytest.mark.parametrize(
    ("time", "zone", "start"),
    [
        ("2028-03-01T08:00", "Europe/Berlin", "2028-03-01T08:00:00+01:00"),
        ("2028-03-01 08:00:30", "UTC", "2028-03-01T08:00:30+00:00"),
        ("2028-03-01T08:00Z", "Europe/Berlin", "2028-03-01T09:00:00+01:00"),
        ("2028-03-01T08:00-05:00", "Asia/Kolkata", "2028-03-01T18:30:00+05:30"),
        ("2028-03-26T02:30", "Europe/Berlin", "2028-03-26T03:00:00+02:00"),  # skipped
        ("2028-10-29T02:30", "Europe/Berlin", "2028-10-29T02:30:00+02:00"),  # the first of two
        ("2028-10-29T02:30+01:00", "Europe/Berlin", "2028-10-29T02:30:00+01:00"),  # the second
        ("2011-12-30T12:00", "Pacific/Apia", "2011-12-31T00:00:00+14:00"),  # a day without noon
    ],
)
def test_once(time: str, zone: str, start: str) -> None:
    assert starts(at(time, zone), "2000-01-01T00:00Z", 9) == [start]
    assert list(next_starts(at(time, zone), unix(start))) == []


def test_a_duration_is_elapsed_time() -> None:
    """Two hours, though the clocks show three, or one, later."""
    spring = windows(cron("0 1 * * *"), unix("2028-03-26T01:30+01:00"), ahead=0)
    assert [shown(w.end_s) for w in spring] == ["2028-03-26T04:00:00+02:00"]
    autumn = windows(cron("0 2 * * *"), unix("2028-10-29T02:30+02:00"), ahead=0)
    assert [shown(w.end_s) for w in autumn] == ["2028-10-29T03:00:00+01:00"]


def test_windows_are_half_open() -> None:
    schedule, start = cron("0 8 * * *"), unix("2028-06-01T08:00+02:00")
    on = [
        bool(windows(schedule, time, ahead=0))
        for time in (start - 0.001, start, start + 7199.999, start + 7200)
    ]
    assert on == [False, True, True, False]


def test_a_window_over_new_year() -> None:
    (window,) = windows(
        cron("0 22 31 12 *", "Asia/Tokyo", duration="12h"), unix("2029-01-01T03:00+09:00"), ahead=0
    )
    assert shown(window.start_s, "Asia/Tokyo") == "2028-12-31T22:00:00+09:00"
    assert shown(window.end_s, "Asia/Tokyo") == "2029-01-01T10:00:00+09:00"


def test_of_overlapping_windows_the_latest_is_on() -> None:
    found = windows(cron("0 * * * *", duration="3h"), unix("2028-06-01T08:30+02:00"), ahead=1)
    assert [shown(window.start_s) for window in found] == [
        "2028-06-01T08:00:00+02:00",
        "2028-06-01T09:00:00+02:00",
    ]


def test_paused_has_no_windows() -> None:
    assert windows(cron("* * * * *", enabled=False), YEAR.start, ahead=3) == []
    assert windows(at("2028-01-01T00:00", "UTC", enabled=False), YEAR.start, ahead=3) == []


def test_a_leap_day() -> None:
    assert starts(cron("0 8 29 2 *"), "2025-01-01T00:00Z", 2) == [
        "2028-02-29T08:00:00+01:00",
        "2032-02-29T08:00:00+01:00",
    ]


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    st.sampled_from(ZONES),
    st.sampled_from(["30 2 * * *", "*/7 * * * *", "0 */5 * * 1-5", "15 0 1,L * *", "59 23 * * 7"]),
    st.integers(YEAR.start, YEAR.stop) | st.floats(YEAR.start, YEAR.stop),
    st.sampled_from([60.0, 3600.0, 90_000.0, 604_800.0]),
)
def test_windows_are_those_that_starts_make(
    zone: str, expression: str, time: float, duration: float
) -> None:
    """Backwards from a time and forwards from long before it are the same."""
    schedule = cron(expression, zone, duration=duration)
    every = next_starts(schedule, time - duration - 40 * 86400)
    begun = list(takewhile(lambda start: start <= time, every))
    expected = begun[-1:] if begun and begun[-1] + duration > time else []
    expected += list(islice(next_starts(schedule, time), 3))
    found = windows(schedule, time, ahead=3)
    assert [window.start_s for window in found] == expected
    assert all(window.end_s - window.start_s == duration for window in found)


def check_a_daily_cron(zone: str, hour: int, minute: int) -> None:
    """Each day of 2028 has exactly one occurrence, at its time, or where the clocks skip that, at
    the first instant after it, or where it comes twice, at the first."""
    tz = ZoneInfo(zone)
    schedule = cron(f"{minute} {hour} * * *", zone)
    day = datetime(2028, 1, 1, hour, minute)
    last = instant(day, tz) - 1
    for start in islice(next_starts(schedule, last), 366):
        assert start > last
        local = datetime.fromtimestamp(start, tz).replace(tzinfo=None)
        if local != day:  # skipped
            assert local > day
            assert datetime.fromtimestamp(start - 1, tz).replace(tzinfo=None) < day
            for fold in (0, 1):
                moved = day.replace(tzinfo=tz, fold=fold).timestamp()
                assert datetime.fromtimestamp(moved, tz).replace(tzinfo=None) != day
        else:
            assert day.replace(tzinfo=tz, fold=0).timestamp() == start
            assert day.replace(tzinfo=tz, fold=1).timestamp() >= start
        last, day = start, day + timedelta(days=1)
    assert day == datetime(2029, 1, 1, hour, minute)


def test_each_day_of_a_leap_year_in_every_zone() -> None:
    """One time of the day for each zone; times in which clocks are set are drawn more often."""
    times = [(2, 30), (0, 0), (23, 30), (1, 0), (3, 0), (2, 0), (13, 37)]
    for index, zone in enumerate(ZONES):
        check_a_daily_cron(zone, *times[index % len(times)])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("time", [(2, 30), (0, 0), (23, 30), (1, 0), (3, 0), (2, 0), (13, 37)])
def test_each_day_of_a_leap_year_in_every_zone_at_each_time(time: tuple[int, int]) -> None:
    for zone in ZONES:
        check_a_daily_cron(zone, *time)


def test_the_zones_of_2028_have_gaps_and_folds() -> None:
    """What the tests over all zones rest on."""
    gaps = {zone for zone in ZONES if instant_is_moved(zone, datetime(2028, 3, 26, 2, 30))}
    assert {"Europe/Berlin", "Europe/Paris", "CET"} <= gaps
    assert len(ZONES) > 500


def instant_is_moved(zone: str, local: datetime) -> bool:
    return (
        datetime.fromtimestamp(instant(local, ZoneInfo(zone)), ZoneInfo(zone)).replace(tzinfo=None)
        != local
    )
