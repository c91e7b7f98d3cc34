"""Floors from traffic: what they must never do, and what they must foresee."""

import math
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glowplug.spec import FunctionSpec
from scaler.backtest import backtest
from scaler.forecast import Forecast, Terms, bins_of
from scaler.local_time import BIN_MINUTES, BIN_S, BINS_PER_DAY
from scaler.minutes import Minute
from scaler.outlook import Outlook
from scaler.plan import Counts, Demand, plan
from scaler.simulate.seasonal import START_S, WEEK_S, weeks
from scaler.simulate.traffic import minutes_of

START_BIN = int(START_S // BIN_S)
START_MINUTE = START_BIN * BIN_MINUTES
WEEK_MINUTES = 7 * 1440


def terms(**changes):
    fields = {
        "timezone": "UTC",
        "target": 4,
        "max_replicas": 3,
        "idle_s": 60.0,
        "cold_start_s": 5.0,
        "worth_s": 300.0,
    }
    return Terms(**{**fields, **changes})


def learned(minutes, *, bins, **changes):
    """A forecast that knows so many bins from START_BIN on."""
    forecast = Forecast(terms(**changes))
    until = START_BIN + bins
    for each in bins_of(minutes, from_bin=START_BIN, until_bin=until):
        forecast.learn(*each)
    return forecast


def at(local, zone="UTC"):
    return datetime.fromisoformat(local).replace(tzinfo=ZoneInfo(zone)).timestamp()


def is_up(floors, at_s):
    return max((f.replicas for f in floors if f.from_s <= at_s < f.until_s), default=0)


sparse = st.lists(
    st.builds(
        Minute,
        minute=st.integers(START_MINUTE, START_MINUTE + 20 * 1440),
        arrivals=st.integers(0, 5000),
        peak=st.integers(0, 100_000),
    ),
    max_size=60,
    unique_by=lambda minute: minute.minute,
).map(sorted)


@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    minutes=sparse,
    bins=st.integers(1, 20 * BINS_PER_DAY),
    zone=st.sampled_from(sorted(available_timezones())),
    max_replicas=st.integers(1, 50),
    worth_s=st.floats(0.1, 1e6),
    cold_start_s=st.floats(0.01, 600),
    late_s=st.floats(0, 1e6),
    ahead_s=st.floats(-1e6, 1e5),
)
def test_floors_are_bounded_in_order_and_of_the_future(
    minutes, bins, zone, max_replicas, worth_s, cold_start_s, late_s, ahead_s
):
    forecast = learned(
        minutes,
        bins=bins,
        timezone=zone,
        max_replicas=max_replicas,
        worth_s=worth_s,
        cold_start_s=cold_start_s,
    )
    now_s = (START_BIN + bins) * BIN_S + late_s
    floors = forecast.floors(now_s, ahead_s=ahead_s)
    if bins < BINS_PER_DAY:
        assert floors == ()
    previous_s = -math.inf
    for floor in floors:
        assert 1 <= floor.replicas <= max_replicas
        assert now_s < floor.until_s <= now_s + max(0, ahead_s) + forecast.terms.lead_s + BIN_S
        assert floor.from_s < floor.until_s
        assert floor.until_s > previous_s
        assert floor.reason.startswith("forecast until ")
        previous_s = floor.until_s
    for utc_bin in range(int(now_s // BIN_S), int(now_s // BIN_S) + 5):
        foretold = forecast.bin(utc_bin)
        assert 0 <= foretold.expected.chance < 1
        assert 0 <= foretold.expected.arrivals < math.inf
        assert 0 <= foretold.replicas <= max_replicas
        assert foretold.peak >= 0
    rate = forecast.rate(now_s)
    assert 0 <= rate < math.inf
    assert 0 <= forecast.chance(now_s, now_s + 1000) <= 1


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    minutes=sparse,
    in_flight=st.integers(0, 40),
    queued=st.integers(0, 40),
    ready=st.integers(0, 3),
    step_s=st.floats(0, 3600),
)
def test_plan_with_floors_never_wants_fewer(minutes, in_flight, queued, ready, step_s):
    now_s = (START_BIN + 3 * BINS_PER_DAY) * BIN_S + step_s
    floors = learned(minutes, bins=3 * BINS_PER_DAY, worth_s=1e5).floors(now_s)
    spec = FunctionSpec(name="f", model="m", max_replicas=3, max_seqs=6)
    wanted = [
        plan(
            now_s,
            {"f": Demand(in_flight=in_flight, queued=queued)},
            history={},
            specs={"f": spec},
            fleet={"f": Counts(ready=ready)},
            outlook={"f": Outlook(floors=each)},
        )["f"].desired
        for each in ((), floors)
    ]
    assert wanted[0] <= wanted[1] <= 3


@pytest.mark.parametrize("hours", [0, 1, 23])
def test_under_a_day_there_is_no_forecast(hours):
    minutes = [Minute(minute=START_MINUTE + k, arrivals=9, peak=9) for k in range(1440)]
    forecast = learned(minutes, bins=hours * 12)
    assert not forecast.ready
    assert forecast.floors(START_S + hours * 3600) == ()
    assert forecast.rate(START_S + hours * 3600) == 0


def test_a_history_of_one_bin_and_silence_after():
    forecast = learned([Minute(minute=START_MINUTE, arrivals=1, peak=1)], bins=BINS_PER_DAY)
    assert forecast.ready
    assert forecast.floors(forecast.known_until_s) == ()
    assert 0 < forecast.rate(forecast.known_until_s) < 1 / 3600


def test_the_past_is_not_foretold():
    minutes = [Minute(minute=START_MINUTE + k, arrivals=9, peak=9) for k in range(2880)]
    forecast = learned(minutes, bins=2 * BINS_PER_DAY)
    known_s = forecast.known_until_s
    assert forecast.rate(known_s - 1) == 0
    assert forecast.rate(known_s) > 0
    assert forecast.bin(START_BIN).replicas == 0
    assert forecast.floors(START_S) == ()
    [floor] = forecast.floors(known_s - 400)
    assert floor.from_s == known_s - forecast.terms.lead_s


def test_bins_must_come_in_order():
    forecast = learned([], bins=10)
    with pytest.raises(ValueError, match="not the next one"):
        forecast.learn(START_BIN + 11, 0, 0)
    with pytest.raises(ValueError, match="not the next one"):
        forecast.learn(START_BIN + 9, 0, 0)


def test_minutes_become_bins_with_the_highest_peak_and_gaps_are_silence():
    minutes = [
        Minute(minute=START_MINUTE - 1, arrivals=99, peak=99),
        Minute(minute=START_MINUTE + 1, arrivals=2, peak=3),
        Minute(minute=START_MINUTE + 4, arrivals=5, peak=2),
        Minute(minute=START_MINUTE + 15, arrivals=1, peak=1),
        Minute(minute=START_MINUTE + 25, arrivals=99, peak=99),
    ]
    bins = list(bins_of(minutes, from_bin=START_BIN, until_bin=START_BIN + 5))
    assert bins == [
        (START_BIN, 7, 3),
        (START_BIN + 1, 0, 0),
        (START_BIN + 2, 0, 0),
        (START_BIN + 3, 1, 1),
        (START_BIN + 4, 0, 0),
    ]


def nightly(days, *, peak=1):
    """A batch at 03:10 each day."""
    return [
        Minute(minute=START_MINUTE + day * 1440 + 190 + k, arrivals=20, peak=peak)
        for day in range(days)
        for k in range(4)
    ]


def test_a_floor_is_launched_a_start_ahead_and_ends_with_its_last_bin():
    forecast = learned(nightly(10), bins=10 * BINS_PER_DAY, cold_start_s=20.0)
    midnight_s = START_S + 10 * 86_400
    floors = forecast.floors(midnight_s, ahead_s=12 * 3600)
    [floor] = floors
    assert floor.until_s == midnight_s + 3 * 3600 + 15 * 60
    assert floor.from_s == midnight_s + 3 * 3600 + 10 * 60 - 20 - 60
    assert floor.replicas == 1
    assert floor.reason == "forecast until Thu 03:15 UTC"


def test_floors_ask_for_as_many_as_the_peaks_need():
    forecast = learned(nightly(10, peak=10), bins=10 * BINS_PER_DAY)
    [floor] = forecast.floors(START_S + 10 * 86_400, ahead_s=12 * 3600)
    assert floor.replicas == 3  # 10 at once, 4 a replica
    forecast = learned(nightly(10, peak=90), bins=10 * BINS_PER_DAY)
    [floor] = forecast.floors(START_S + 10 * 86_400, ahead_s=12 * 3600)
    assert floor.replicas == 3  # max_replicas


def test_a_cold_start_worth_little_is_not_prevented():
    cheap = learned(nightly(10), bins=10 * BINS_PER_DAY, worth_s=10.0)
    assert cheap.floors(START_S + 10 * 86_400, ahead_s=12 * 3600) == ()
    assert cheap.terms.lead_s == 7.0


def test_hazard_adds_up_the_rate():
    forecast = learned(nightly(10), bins=10 * BINS_PER_DAY)
    from_s = forecast.known_until_s + 3 * 3600 + 123
    seconds = sum(forecast.rate(from_s + k) for k in range(1500))
    assert forecast.hazard(from_s, from_s + 1500) == pytest.approx(seconds, rel=0.01)
    assert forecast.hazard(from_s, from_s) == 0
    assert forecast.chance(from_s, from_s + 1500) > 0.8
    assert forecast.chance(from_s + 3600, from_s + 7200) < 0.2


def test_a_week_of_rates_as_the_idle_policy_takes_them():
    forecast = learned(nightly(10), bins=10 * BINS_PER_DAY)
    now_s = forecast.known_until_s + 77
    season = forecast.week(now_s)
    for ahead_s in (0, 200, 3 * 3600 + 700, 86_400, 7 * 86_400 - 400):
        assert season.at(now_s + ahead_s) == forecast.rate(now_s + ahead_s)
    batch_s = START_S + 10 * 86_400 + 190 * 60
    assert season.at(batch_s - 1) < 1 / 300 < season.at(batch_s)
    assert season.mean(now_s, now_s + 86_400) * 86_400 == pytest.approx(
        forecast.hazard(now_s, now_s + 86_400)
    )


def test_the_night_after_clocks_change_the_batch_is_expected_by_the_new_clock():
    zone = "Europe/Berlin"
    days = [f"2026-03-{day:02}" for day in range(3, 31)]
    minutes = [
        Minute(minute=int(at(f"{day}T04:30", zone) // 60), arrivals=9, peak=2) for day in days
    ]
    until = int(at("2026-03-31T00:00", zone) // BIN_S)
    forecast = learned(minutes, bins=until - START_BIN, timezone=zone)
    floors = forecast.floors(until * BIN_S, ahead_s=12 * 3600)
    assert is_up(floors, at("2026-03-31T04:30", zone)) == 1
    assert is_up(floors, at("2026-03-31T05:30", zone)) == 0
    assert is_up(floors, at("2026-03-31T03:30", zone)) == 0


@pytest.mark.parametrize("gap", ["2026-03-29T02:30", "2026-10-25T02:30"])
def test_a_batch_within_the_changed_hour_does_not_break_the_week(gap):
    zone, day_s = "Europe/Berlin", 86_400
    change_s = datetime.fromisoformat(gap).replace(tzinfo=ZoneInfo(zone)).timestamp()
    first = int(change_s // BIN_S) - 20 * BINS_PER_DAY
    forecast = Forecast(terms(timezone=zone))
    for utc_bin in range(first, first + 22 * BINS_PER_DAY):
        local = datetime.fromtimestamp(utc_bin * BIN_S, ZoneInfo(zone))
        batch = (local.hour, local.minute) == (2, 30)
        forecast.learn(utc_bin, 30 * batch, 9 * batch)
    floors = forecast.floors(forecast.known_until_s, ahead_s=2 * day_s)
    night_s = forecast.known_until_s
    while datetime.fromtimestamp(night_s, ZoneInfo(zone)).strftime("%H:%M") != "02:30":
        night_s += BIN_S
    assert is_up(floors, night_s + 1) == 3
    assert is_up(floors, night_s + 3600) == 0
    assert is_up(floors, night_s - 3600) == 0


def walked(function, *, until_s=START_S + 4 * WEEK_S, **changes):
    minutes = minutes_of(zip(function.arrivals_s, function.service_s, strict=True))
    return backtest(
        minutes,
        terms(timezone=function.timezone, target=11, max_replicas=20, **changes),
        until_minute=int(until_s // 60),
    )


@pytest.mark.parametrize("seed", [101, 102, 103])
def test_a_fixed_nightly_batch_of_the_synthetic_weeks_is_foreseen_in_the_fourth(seed):
    function = weeks(seed, 3)[2]
    assert function.name.startswith("nightly")
    tested, _ = walked(function)
    batches = [each for each in tested.past if each.arrivals >= 5]
    foreseen = sum(each.foretold.replicas > 0 for each in batches)
    assert len(batches) >= 4
    assert foreseen >= 0.8 * len(batches)
    idle = [each for each in tested.past if each.arrivals == 0]
    assert sum(each.foretold.replicas > 0 for each in idle) < 0.01 * len(idle)


@pytest.mark.parametrize("seed", [201, 202])
def test_on_a_holiday_an_office_is_given_up_by_noon_and_foreseen_again_the_day_after(seed):
    function = next(
        each
        for each in weeks(seed, 50)
        if each.name.startswith("office") and 8_000 < len(each.arrivals_s) < 16_000
    )
    tested, _ = walked(function)
    zone = ZoneInfo(function.timezone)
    up = dict.fromkeys(range(7), 0)
    for each in tested.past:
        local = datetime.fromtimestamp(each.foretold.utc_bin * BIN_S, zone)
        if 12 <= local.hour < 17:
            up[local.weekday()] += each.foretold.replicas > 0
    tuesday, wednesday, thursday = up[1], up[2], up[3]
    assert tuesday > 40
    assert wednesday < tuesday / 3
    assert thursday > 0.75 * tuesday


def test_on_the_synthetic_weeks_it_costs_less_than_doing_nothing_and_never_much_more():
    """Chosen on other seeds. `auto` decides by the third week and is costed on the fourth."""
    nothing_s = auto_s = 0.0
    for function in weeks(301, 9):
        before, _ = walked(function, until_s=START_S + 3 * WEEK_S)
        tested, _ = walked(function)
        auto = tested.forecast if before.pays else tested.nothing
        assert auto.total_s < 1.05 * tested.nothing.total_s, function.name
        nothing_s += tested.nothing.total_s
        auto_s += auto.total_s
    assert auto_s < 0.93 * nothing_s


def test_known_times():
    forecast = learned([], bins=3)
    assert forecast.known_until_s == (START_BIN + 3) * BIN_S
    assert datetime.fromtimestamp(forecast.known_until_s, UTC).minute == 15
