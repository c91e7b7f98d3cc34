"""The reconciler with scheduled prewarms, on clocks that the test moves."""

import time
from datetime import UTC, datetime

from glowplug.contracts import FunctionState

AT_8 = datetime.fromisoformat("2028-06-05T08:00+00:00").timestamp()
LEAD_S = 8.0


async def plan(house, **fields):
    """A prewarm at 8, when it is 7 or later."""
    house.ahead_s = house.ahead_s or AT_8 - 3600 - house.clock()
    morning = {"name": "morning", "cron": "0 8 * * *", "duration": "2h", **fields}
    await house.deploy(max_replicas=5, idle_s=30, sleep_s=5, schedules=[morning])


async def go_to(house, seconds):
    """Until so many seconds after 8:00."""
    await house.tick(AT_8 + seconds - house.clock() - house.ahead_s)


def test_ready_before_the_window_and_zero_after_it(run):
    async def scenario(house):
        await plan(house, min_replicas=2)
        await go_to(house, -LEAD_S - 1)
        assert house.fleet.assignments == []
        assert house.status().state is FunctionState.ZERO
        await go_to(house, -LEAD_S + 0.1)
        assert len(house.fleet.assignments) == 2
        assert house.status().desired_reason == "prewarm 'morning' 08:00 UTC: 0 → 2"
        await house.ready()
        assert house.status().state is FunctionState.READY
        for seconds in range(-7, 7200, 60):
            await go_to(house, seconds)
        assert len(house.urls()) == 2
        assert house.fleet.released == []
        await go_to(house, 7201)
        await house.ticks(2)  # halved once a second
        assert house.status().state is FunctionState.ZERO
        assert len(house.fleet.assignments) == 2

    run(scenario)


def test_what_is_busy_at_the_end_goes_on_until_it_is_idle(run):
    async def scenario(house):
        await plan(house)
        await go_to(house, 0)
        await house.ready()
        await house.report(in_flight=1, arrived=1)
        await go_to(house, 7201)
        await house.ticks(60)
        assert house.fleet.released == []
        await house.report()
        await house.ticks(31)
        assert len(house.fleet.released) == 1

    run(scenario)


def test_a_measured_start_sets_the_next_launch(run):
    async def scenario(house):
        await plan(house)
        await go_to(house, -LEAD_S + 0.1)
        house.clock.now_s += 20.0
        await house.ready()
        assert 86400 - 24.1 < house.status().prewarms[1].launch_s - AT_8 < 86400 - 23.9
        await go_to(house, 86400 - 25)
        assert len(house.fleet.assignments) == 1
        await go_to(house, 86400 - 23)
        assert len(house.fleet.assignments) == 2

    run(scenario)


def test_a_replica_under_a_prewarm_stays_awake(run):
    async def scenario(house):
        await plan(house)
        await go_to(house, -LEAD_S + 0.1)
        await house.ready()
        await go_to(house, 3600)
        assert house.fleet.asleep == []

    run(scenario)


def test_a_change_of_a_schedule_restarts_nothing(run):
    async def scenario(house):
        await plan(house)
        await go_to(house, 60)
        await house.ready()
        await plan(house, duration="3h")
        await go_to(house, 2.5 * 3600)
        assert len(house.fleet.assignments) == 1
        assert house.fleet.released == []
        await plan(house, enabled=False)
        await house.tick()
        assert len(house.fleet.released) == 1

    run(scenario)


def test_the_highest_of_demand_and_prewarm_counts(run):
    async def scenario(house):
        await plan(house, min_replicas=2)
        await go_to(house, 60)
        await house.ready()
        await house.report(queued=40, arrived=40)  # 11 a replica
        await house.ticks(10)
        assert house.status().desired == 4

    run(scenario)


def test_a_failing_function_is_tried_one_at_a_time(run):
    async def scenario(house):
        await plan(house, min_replicas=3)
        await go_to(house, -LEAD_S + 0.1)
        assert len(house.fleet.assignments) == 3
        for replica in list(house.fleet.live):
            await house.die(replica)
        await house.tick(1.1)
        assert len(house.fleet.assignments) == 4
        await house.ready()
        await house.tick()
        assert len(house.fleet.assignments) == 6

    run(scenario)


def test_a_restart_of_the_scaler_in_the_window_keeps_the_replicas(run):
    async def scenario(house):
        await plan(house)
        await go_to(house, 60)
        await house.ready()
        await house.scaler.stop()
        house.scaler = house.new_scaler()
        await house.scaler.start()
        await house.settle()
        await house.ticks(120)
        assert (len(house.fleet.assignments), house.fleet.released) == (1, [])

    run(scenario)


def test_deleted_in_its_window(run):
    async def scenario(house):
        await plan(house)
        await go_to(house, 60)
        await house.ready()
        await house.registry.delete("f")
        await house.settle()
        assert len(house.fleet.released) == 1
        await house.ticks(3)
        assert len(house.fleet.assignments) == 1

    run(scenario)


class RealClock:
    def __call__(self):
        return time.monotonic()


def test_a_launch_does_not_wait_for_the_tick(run):
    """Ticks are an hour apart."""

    async def scenario(house):
        house.clock.__class__ = RealClock
        house.ahead_s = time.time() - time.monotonic()
        at = datetime.fromtimestamp(time.time() + LEAD_S + 1.0, UTC).isoformat(timespec="seconds")
        launch_s = datetime.fromisoformat(at).timestamp() - LEAD_S
        await house.deploy(schedules=[{"name": "once", "at": at, "duration": "1m"}])
        await house.until(lambda: house.fleet.assignments)
        assert launch_s <= time.time() < launch_s + 0.5

    run(scenario)
