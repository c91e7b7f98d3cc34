"""Replicas that do not start, or die: backoff, the breaker, and what callers are told."""

import asyncio

from glowplug.contracts import FunctionState
from glowplug.errors import Unavailable, UnsupportedModel


async def fail_start(house, cause="out of memory"):
    """The replica that starts ends before it is ready."""
    (replica,) = house.fleet.live
    await house.die(replica, cause)


def test_three_failures_in_a_row_refuse_callers_with_the_cause(run):
    async def scenario(house):
        await house.deploy()
        await house.report(queued=1, arrived=1)
        await fail_start(house)
        assert house.status().state is FunctionState.STARTING
        assert house.status().reason == "starting again in 1 s after: out of memory"
        assert len(house.fleet.assignments) == 1
        await house.tick(0.9)
        assert len(house.fleet.assignments) == 1
        await house.tick(0.1)
        assert len(house.fleet.assignments) == 2
        await fail_start(house)
        await house.tick(2.0)
        assert len(house.fleet.assignments) == 3
        assert house.status().state is FunctionState.STARTING
        await fail_start(house, "the snapshot is corrupt")
        assert house.status().state is FunctionState.FAILED
        assert house.status().reason == (
            "3 starts in a row failed, the last: the snapshot is corrupt; "
            "the next is tried in 4 s at the earliest"
        )

    run(scenario)


async def open_breaker(house, **settings):
    """A function that is failed; the activator has refused all who waited."""
    await house.deploy(**settings)
    await house.report(queued=1, arrived=1)
    for wait_s in (1.0, 2.0):
        await fail_start(house)
        await house.tick(wait_s)
    await fail_start(house)
    await house.report(queued=0)
    assert house.status().state is FunctionState.FAILED
    assert len(house.fleet.assignments) == 3


def test_nothing_is_started_for_refused_callers_before_the_wait_is_over(run):
    async def scenario(house):
        await open_breaker(house)
        for _ in range(3):
            await house.report(arrived=1)  # counted, and refused at once
            await house.tick()
        assert house.status().state is FunctionState.FAILED
        assert len(house.fleet.assignments) == 3

    run(scenario)


def test_half_open_one_request_tries_one_start_that_decides(run):
    async def scenario(house):
        await open_breaker(house, max_replicas=10)
        await house.tick(4.0)
        assert len(house.fleet.assignments) == 3  # nobody asks, so nothing is spent
        assert house.status().state is FunctionState.ZERO
        assert "the last 3 starts failed (out of memory)" in house.status().reason
        await house.report(queued=100, arrived=100)
        assert len(house.fleet.assignments) == 4  # one, though ten are wanted
        assert house.status().state is FunctionState.STARTING
        await fail_start(house)
        assert house.status().state is FunctionState.FAILED
        assert "4 starts in a row failed" in house.status().reason

        await house.tick(8.0)
        assert len(house.fleet.assignments) == 5
        await house.ready()
        assert house.status().state is FunctionState.READY
        assert len(house.fleet.assignments) == 14  # the other nine of ten

    run(scenario)


def test_a_success_clears_the_count(run):
    async def scenario(house):
        await open_breaker(house, idle_s=10)
        await house.tick(4.0)
        await house.report(queued=1, arrived=1)
        await house.ready()
        await house.report()
        await house.tick(11)
        assert house.status().state is FunctionState.ZERO
        assert house.status().reason is None
        await house.report(queued=1, arrived=1)
        await fail_start(house)
        assert house.status().state is FunctionState.STARTING

    run(scenario)


def test_waits_double_up_to_a_minute(run):
    async def scenario(house):
        await house.deploy(min_replicas=1)
        waits = []
        for _ in range(9):
            (replica,) = house.fleet.live
            count, failed_s = len(house.fleet.assignments), house.clock()
            await house.die(replica, "no memory")
            while len(house.fleet.assignments) == count:
                await house.tick()
            waits.append(house.clock() - failed_s)
        assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]

    run(scenario)


def test_a_start_that_hangs_is_ended_and_counts(run):
    async def scenario(house):
        await house.deploy(start_timeout_s=20)
        await house.report(queued=1, arrived=1)
        (stuck,) = house.fleet.live
        await house.ticks(20)
        assert house.fleet.released == []
        await house.tick()
        assert house.fleet.released == [(stuck, 0.0)]
        assert "not ready within 20 s" in house.status().reason
        await house.die(stuck)
        await house.tick()
        assert len(house.fleet.assignments) == 2

    run(scenario)


def test_an_assignment_that_hangs_is_ended_and_counts(run):
    async def scenario(house):
        house.fleet.hold = asyncio.Event()
        await house.deploy(start_timeout_s=20)
        await house.report(queued=1, arrived=1)
        await house.ticks(21)
        (hung,) = [assignment.replica for assignment in house.fleet.assignments]
        assert house.fleet.released == [(hung, 0.0)]
        assert house.urls() == []
        house.fleet.hold = None
        await house.tick()
        assert len(house.fleet.assignments) == 2
        assert len(house.urls()) == 1

    run(scenario)


def test_a_fleet_that_refuses_counts_as_a_failed_start(run):
    async def scenario(house):
        house.fleet.assign_error = Unavailable("no pod: exit code 1")
        await house.deploy()
        await house.report(queued=1, arrived=1)
        await house.tick(1)
        await house.tick(2)
        assert len(house.fleet.assignments) == 3
        assert house.status().state is FunctionState.FAILED
        assert "no pod: exit code 1" in house.status().reason

    run(scenario)


def test_a_fleet_that_breaks_does_not_end_the_loop(run):
    async def scenario(house):
        house.fleet.assign_error = ZeroDivisionError("bug")
        await house.deploy()
        await house.report(queued=1, arrived=1)
        assert "ZeroDivisionError: bug" in house.status().reason
        house.fleet.assign_error = None
        await house.tick(1)
        await house.ready()
        assert house.status().state is FunctionState.READY

    run(scenario)


def test_starts_that_fail_together_are_one_failure(run):
    async def scenario(house):
        await house.deploy(max_replicas=5)
        await house.report(queued=55, arrived=55)
        assert len(house.fleet.assignments) == 5
        for replica in list(house.fleet.live):
            house.fleet.gone(replica, "the pod died")
        await house.settle()
        assert house.status().state is FunctionState.STARTING
        await house.tick(1)
        assert len(house.fleet.assignments) == 6

    run(scenario)


def test_failed_starts_beside_a_ready_replica_refuse_nobody(run):
    async def scenario(house):
        await house.one_ready(max_replicas=2)
        await house.report(in_flight=16, queued=4, arrived=19)
        await house.tick()
        for wait_s in (1, 2, 4, 8):
            (starting,) = house.fleet.live[1:]
            await house.die(starting, "no memory left")
            assert house.status().state is FunctionState.READY
            await house.tick(wait_s)
        assert len(house.urls()) == 2

    run(scenario)


def test_a_new_revision_or_a_new_deploy_tries_at_once(run):
    async def scenario(house):
        await open_breaker(house)
        await house.deploy(max_seqs=8)
        await house.report(queued=1, arrived=1)
        assert len(house.fleet.assignments) == 4
        await fail_start(house)
        await house.tick()
        await fail_start(house)
        await house.deploy(max_seqs=8)
        assert len(house.fleet.assignments) == 6

    run(scenario)


def test_a_replica_that_dies_in_use_is_replaced_at_once_then_after_growing_waits(run):
    async def scenario(house):
        replica = await house.one_ready()
        await house.die(replica)
        await house.report(queued=1, arrived=1)
        assert len(house.fleet.assignments) == 2  # at once
        await house.ready()
        await house.die(house.fleet.live[0], "killed by signal 11")
        assert house.status().state is FunctionState.STARTING  # nobody is refused
        assert len(house.fleet.assignments) == 2
        await house.tick(1)
        assert len(house.fleet.assignments) == 3
        for count, wait_s in ((3, 2), (4, 4), (5, 8)):
            await house.ready()
            assert house.status().state is FunctionState.READY
            await house.die(house.fleet.live[0], "killed by signal 11")
            assert house.status().state is FunctionState.FAILED  # callers hear the cause at once
            assert house.status().reason == (
                f"{count} replicas in a row died when they had just become ready, the last: "
                f"killed by signal 11; the next is tried in {wait_s} s at the earliest"
            )
            assert len(house.fleet.assignments) == count
            await house.tick(wait_s)
            assert len(house.fleet.assignments) == count + 1
            assert house.status().state is FunctionState.STARTING

    run(scenario)


def test_a_crash_loop_rests_at_zero_and_the_next_request_tries_once(run):
    async def scenario(house):
        replica = await house.one_ready(max_replicas=9)
        await house.die(replica)
        for wait_s in (0, 1):
            await house.report(queued=1, arrived=1)
            await house.tick(wait_s)
            await house.ready()
            await house.die(house.fleet.live[0], "killed by signal 11")
        await house.report()
        assert house.status().state is FunctionState.FAILED
        await house.ticks(30)
        assert len(house.fleet.assignments) == 3
        assert house.status().state is FunctionState.ZERO
        assert house.status().reason == (
            "the last 3 replicas died when they had just become ready (killed by signal 11); "
            "the next request tries again"
        )
        await house.report(queued=90, arrived=90)
        assert len(house.fleet.assignments) == 4
        await house.ready()
        await house.tick(11)
        await house.die(house.fleet.live[0])  # it lived long enough: all is forgiven
        assert house.status().state is not FunctionState.FAILED

    run(scenario)


def test_replicas_that_die_together_do_not_open_the_breaker(run):
    async def scenario(house):
        await house.deploy(max_replicas=8)
        await house.report(queued=88, arrived=88)
        await house.ready()
        await house.report(in_flight=88)
        assert len(house.urls()) == 8
        for replica in list(house.fleet.live):
            await house.die(replica, "the pod was killed")
        assert house.status().state is FunctionState.STARTING
        await house.tick(1)
        assert house.fleet.live

    run(scenario)


def test_a_crash_loop_without_callers_stops(run):
    async def scenario(house):
        replica = await house.one_ready(idle_s=60)
        await house.report()
        await house.die(replica)
        await house.ready()
        await house.die(house.fleet.live[0])
        await house.ticks(5)
        assert len(house.fleet.assignments) == 2
        assert house.status().state is FunctionState.ZERO

    run(scenario)


def test_a_planned_end_forgives_an_early_death(run):
    async def scenario(house):
        replica = await house.one_ready(idle_s=2)
        await house.die(replica)
        await house.ready()
        await house.report()
        (replica,) = house.fleet.live
        await house.ticks(3)
        await house.die(replica, None)  # released
        await house.report(queued=1, arrived=1)
        await house.ready()
        await house.die(house.fleet.live[0])
        assert len(house.fleet.assignments) == 4  # at once: it is the first early death again

    run(scenario)


def test_a_failing_function_is_not_wanted_for_refused_callers(run, caplog):
    caplog.set_level("INFO")

    async def scenario(house):
        house.sealer.errors = [UnsupportedModel("no")]
        await house.deploy()
        for _ in range(3):
            await house.report(arrived=1)
            await house.tick()
        assert house.status().desired == 0
        assert "0 → 1" not in caplog.text

    run(scenario)


def test_a_death_after_a_long_life_is_forgiven(run):
    async def scenario(house):
        replica = await house.one_ready()
        for count in (2, 3, 4, 5):
            await house.report(in_flight=1, arrived=1)
            await house.tick(30)
            await house.die(replica)
            assert len(house.fleet.assignments) == count
            await house.ready()
            (replica,) = house.fleet.live

    run(scenario)
