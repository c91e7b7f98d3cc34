"""Every function's forecast kept up to date: modes, floors, what is read, what fails alone."""

import asyncio

import pytest
from traffic import MemoryTraffic

from glowplug.contracts import Function
from glowplug.spec import FunctionSpec
from scaler.forecasts import AHEAD_S, TESTED_EVERY_S, Forecasts
from scaler.minutes import Minute

DAY = 1440
START = 20_000 * DAY  # minutes; some midnight


class Registry:
    """As much of the contract as forecasts need."""

    def __init__(self, *specs):
        self.specs = list(specs)
        self.changed = lambda _name: None

    def subscribe(self, changed):
        self.changed = changed

    async def list(self):
        return [Function(spec=spec, generation=1) for spec in self.specs]


class Clock:
    def __init__(self, minute):
        self.now_s = minute * 60.0

    def __call__(self):
        return self.now_s


def floors_of(forecasts, function):
    outlook = forecasts.outlook(function)
    return () if outlook is None else outlook.floors


def spec(name="f", **fields):
    fields = {"max_replicas": 3, "idle_s": 60, "cold_start_cost_s": 300, **fields}
    return FunctionSpec(name=name, model="m", **fields)


def bursts(days, peak=1):
    """A request at 10:00, 14:00 and 18:00 of each day."""
    return [
        Minute(minute=START + day * DAY + minute, arrivals=1, peak=peak)
        for day in range(days)
        for minute in (600, 840, 1080)
    ]


def noise(days):
    return [Minute(minute=START + 7 * k * k % (days * DAY), arrivals=1, peak=1) for k in range(40)]


def up_at(floors, at_s):
    return any(floor.from_s <= at_s < floor.until_s for floor in floors)


def forecasts_of(*specs, minutes, clock, **options):
    traffic = MemoryTraffic({each.name: minutes for each in specs})
    return traffic, Forecasts(registry=Registry(*specs), reader=traffic, now=clock, **options)


@pytest.mark.parametrize(
    ("mode", "acts"), [("off", False), ("forecast", False), ("on", True), ("auto", True)]
)
def test_modes_on_traffic_that_can_be_foretold(mode, acts):
    clock = Clock(START + 10 * DAY + 590)
    _, forecasts = forecasts_of(spec(predictive=mode), minutes=bursts(10), clock=clock)
    asyncio.run(forecasts.update_all())
    assert up_at(floors_of(forecasts, "f"), (START + 10 * DAY + 600) * 60.0) is acts
    function = Function(spec=spec(predictive=mode), generation=1)
    report = asyncio.run(forecasts.report(function, 24))
    assert report["acts"] is acts
    assert (report["ahead"] is None) is (mode == "off")
    if mode in ("off", "forecast"):
        assert f"predictive is {mode}" in report["reason"]


def test_auto_does_not_act_where_its_test_does_not_pay():
    clock = Clock(START + 10 * DAY)
    _, forecasts = forecasts_of(spec(), minutes=sorted(noise(10)), clock=clock)
    asyncio.run(forecasts.update_all())
    assert floors_of(forecasts, "f") == ()
    report = asyncio.run(forecasts.report(Function(spec=spec(), generation=1), 24))
    assert not report["acts"]
    assert report["reason"].startswith("it does not pay by 2%: in 7 days ")
    assert report["backtest"]["pays"] is False


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        (0, "no traffic history yet"),
        (5 * 60, "5 h of traffic are known, 24 are needed"),
        (30 * 60, "5 h have been foretold, 24 are needed for a test"),
    ],
)
def test_a_young_function_says_what_is_missing(known, reason):
    minutes = [Minute(minute=START + k, arrivals=1, peak=1) for k in range(known)]
    clock = Clock(START + known)
    _, forecasts = forecasts_of(spec(), minutes=minutes, clock=clock)
    report = asyncio.run(forecasts.report(Function(spec=spec(), generation=1), 24))
    assert (report["acts"], report["reason"]) == (False, reason)


def test_without_a_history_every_function_says_so():
    forecasts = Forecasts(registry=Registry(spec()))
    asyncio.run(forecasts.update_all())
    report = asyncio.run(forecasts.report(Function(spec=spec(), generation=1), 24))
    assert report["reason"] == "no traffic history yet"
    assert (report["acts"], report["past"], report["ahead"]) == (False, None, None)
    assert floors_of(forecasts, "f") == ()


def test_only_what_is_new_is_read_until_the_next_test():
    clock = Clock(START + 10 * DAY)
    traffic, forecasts = forecasts_of(spec(), minutes=bursts(11), clock=clock)
    asyncio.run(forecasts.update_all())
    clock.now_s += 620
    asyncio.run(forecasts.update_all())
    clock.now_s += TESTED_EVERY_S
    asyncio.run(forecasts.update_all())
    spans = [(until - start) for _, start, until in traffic.reads]
    assert spans == [56 * DAY, 10, 56 * DAY]
    assert traffic.reads[1][1] == START + 10 * DAY


def test_a_past_that_is_rewritten_counts_from_the_next_update():
    clock = Clock(START + 10 * DAY + 590)
    traffic, forecasts = forecasts_of(spec(predictive="on"), minutes=bursts(10)[-1:], clock=clock)
    asyncio.run(forecasts.update_all())
    assert floors_of(forecasts, "f") == ()
    traffic.minutes = {"f": bursts(10)}
    forecasts.past_changed("f")
    asyncio.run(forecasts.update_all())
    assert up_at(floors_of(forecasts, "f"), (START + 10 * DAY + 600) * 60.0)
    asyncio.run(forecasts.update_all())
    assert len(traffic.reads) == 2, "it is learned anew once"


def test_learned_bit_by_bit_is_the_same_as_learned_at_once():
    clock = Clock(START + 10 * DAY)
    minutes = bursts(11)
    _, one = forecasts_of(spec(predictive="on"), minutes=minutes, clock=clock)
    for _ in range(30):
        asyncio.run(one.update_all())
        clock.now_s += 420
    asyncio.run(one.update_all())
    _, other = forecasts_of(spec(predictive="on"), minutes=minutes, clock=clock)
    asyncio.run(other.update_all())
    assert floors_of(one, "f") == floors_of(other, "f")


def test_floors_end_by_themselves_where_nothing_renews_them():
    clock = Clock(START + 10 * DAY)
    minutes = [Minute(minute=START + k, arrivals=1, peak=1) for k in range(10 * DAY)]
    _, forecasts = forecasts_of(spec(predictive="on"), minutes=minutes, clock=clock)
    asyncio.run(forecasts.update_all())
    floors = floors_of(forecasts, "f")
    assert up_at(floors, clock.now_s)
    assert AHEAD_S <= max(floor.until_s for floor in floors) - clock.now_s <= AHEAD_S + 600


def test_changed_settings_count_from_the_next_update():
    clock = Clock(START + 10 * DAY + 590)
    minutes = bursts(10, peak=30)
    traffic, forecasts = forecasts_of(spec(predictive="on"), minutes=minutes, clock=clock)
    asyncio.run(forecasts.update_all())
    assert max(floor.replicas for floor in floors_of(forecasts, "f")) == 3
    forecasts._registry.specs = [spec(predictive="on").model_copy(update={"max_replicas": 2})]
    asyncio.run(forecasts.update_all())
    assert max(floor.replicas for floor in floors_of(forecasts, "f")) == 2
    forecasts._registry.specs = [spec(predictive="on", timezone="Asia/Tokyo")]
    asyncio.run(forecasts.update_all())
    assert traffic.reads[-1][2] - traffic.reads[-1][1] == 56 * DAY
    assert floors_of(forecasts, "f")[0].reason.endswith("Asia/Tokyo")
    forecasts._registry.specs = []
    asyncio.run(forecasts.update_all())
    assert floors_of(forecasts, "f") == ()


def test_a_measured_start_moves_the_launch():
    clock = Clock(START + 10 * DAY + 590)
    starts = {"f": 1.0}
    _, forecasts = forecasts_of(
        spec(predictive="on"), minutes=bursts(10), clock=clock, start_s=starts.get
    )
    asyncio.run(forecasts.update_all())
    ten_s = (START + 10 * DAY + 600) * 60.0
    assert floors_of(forecasts, "f")[0].from_s == ten_s - 1 - 4 - 60
    starts["f"] = 20.0
    asyncio.run(forecasts.update_all())
    assert floors_of(forecasts, "f")[0].from_s == ten_s - 20 - 4 - 60


def test_a_function_that_fails_has_no_floors_and_the_others_keep_theirs(caplog):
    clock = Clock(START + 10 * DAY + 590)
    traffic, forecasts = forecasts_of(
        spec("a", predictive="on"), spec("b", predictive="on"), minutes=bursts(10), clock=clock
    )
    read = traffic.read

    async def broken(function, from_minute, until_minute):
        if function == "a":
            raise OSError("the disk is on fire")
        return await read(function, from_minute, until_minute)

    traffic.read = broken
    asyncio.run(forecasts.update_all())
    assert floors_of(forecasts, "a") == ()
    assert floors_of(forecasts, "b") != ()
    assert "a: its forecast failed" in caplog.text


def test_run_updates_at_once_and_after_a_change_of_a_function():
    clock = Clock(START + 10 * DAY + 590)
    _, forecasts = forecasts_of(spec(predictive="on"), minutes=bursts(10), clock=clock)

    async def main():
        updated = asyncio.Event()
        update_all = forecasts.update_all

        async def update_and_say_so():
            await update_all()
            updated.set()

        forecasts.update_all = update_and_say_so
        task = asyncio.create_task(forecasts.run())
        await asyncio.wait_for(updated.wait(), 10)
        assert floors_of(forecasts, "f") != ()
        updated.clear()
        forecasts._registry.specs = [spec(predictive="off")]
        forecasts._registry.changed("f")
        await asyncio.wait_for(updated.wait(), 10)
        assert floors_of(forecasts, "f") == ()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
