"""The synthetic weeks: seeded, and with the seasons they say they have."""

from collections import Counter
from datetime import datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from scaler.simulate.seasonal import START_S, WEEK_S, weeks


@pytest.fixture(scope="module")
def traffic():
    return {f.name.split("-")[0]: f for f in weeks(1, 9)}  # the last of each shape


def locals_of(function):
    zone = ZoneInfo(function.timezone)
    return [datetime.fromtimestamp(at_s, zone) for at_s in function.arrivals_s]


def test_the_same_seed_gives_the_same_weeks_however_many_functions_are_asked_for():
    assert weeks(3, 2) == weeks(3, 4)[:2]
    assert weeks(3, 2) != weeks(4, 2)


def test_arrivals_are_sorted_within_the_weeks_and_each_has_a_service_time():
    for function in weeks(2, 9, weeks=2):
        assert len(function.service_s) == len(function.arrivals_s) > 0
        assert all(before <= after for before, after in pairwise(function.arrivals_s))
        assert function.arrivals_s[0] >= START_S
        assert function.arrivals_s[-1] < START_S + 2 * WEEK_S
        assert all(0 < service_s <= 120 for service_s in function.service_s)


def test_offices_work_on_weekdays_but_not_on_the_holiday(traffic):
    local = locals_of(traffic["office"])
    by_day = Counter(at.date() for at in local)
    weekend = sum(n for day, n in by_day.items() if day.weekday() >= 5)
    assert weekend < 0.1 * len(local)
    last_wednesday = max(day for day in by_day if day.weekday() == 2)
    before, *_ = sorted(day for day in by_day if day.weekday() == 2)
    assert by_day[last_wednesday] < 0.3 * by_day[before]
    assert sum(8 <= at.hour < 18 for at in local) > 0.8 * len(local)


def test_the_nightly_batch_comes_at_one_local_time_also_when_the_clocks_change():
    american = next(
        function
        for function in weeks(1, 40)
        if function.name.startswith("nightly") and function.timezone.startswith("America")
    )
    by_week = [Counter() for _ in range(4)]
    for at_s, at in zip(american.arrivals_s, locals_of(american), strict=True):
        by_week[int((at_s - START_S) // WEEK_S)][at.hour] += 1
    assert len({week.most_common(1)[0][0] for week in by_week}) == 1


def test_thin_functions_have_no_season(traffic):
    by_hour = Counter(at.hour for at in locals_of(traffic["thin"]))
    assert max(by_hour.values()) < 4 * sum(by_hour.values()) / 24
