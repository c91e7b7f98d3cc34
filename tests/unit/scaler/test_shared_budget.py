"""A budget that is short, carried out: who starts, waits and sleeps, and what users are told."""

from glowplug.explanation import EventKind
from scaler.budget import Budget

GIB = 2**30


def test_the_second_function_waits_until_the_first_is_done(run):
    async def scenario(house):
        first = await house.one_ready("a", idle_s=5)
        await house.deploy("b", idle_s=5)
        await house.report("b", queued=1, arrived=1)
        await house.ticks(3)
        assert house.urls("b") == []
        assert "the budget of 1 replica is short" in house.status("b").desired_reason
        told = house.scaler.explanations.explain("b", limit=10).events
        assert [event.reason for event in told if event.kind is EventKind.SHORT] == [
            "the budget of 1 replica is short: kept for 'a' (priority 0)"
        ]
        waits_for = "the budget of 1 replica is short: kept for 'a' (priority 0)"
        assert house.status("b").reason == waits_for
        assert house.scaler.explanations.explain("b", limit=1).verdict == waits_for
        assert house.fleet.released == []  # it works
        await house.report("a")  # now it is idle
        await house.tick()
        assert [name for name, _ in house.fleet.released] == [first]
        await house.die(first, None)
        await house.ready()
        assert len(house.urls("b")) == 1
        assert "budget" not in house.status("b").desired_reason

    run(scenario, budget=Budget(replicas=1))


def test_a_higher_priority_gets_the_replica_of_a_lower_one(run):
    async def scenario(house):
        low = await house.one_ready("low", idle_s=60)
        await house.deploy("high", idle_s=60, priority=10)
        await house.report("high", queued=1, arrived=1)
        await house.tick()
        assert [name for name, _ in house.fleet.released] == [low]
        assert house.urls("high") == []  # not before there is room
        await house.die(low, None)
        await house.ready()
        assert len(house.urls("high")) == 1
        await house.ticks(3)
        assert "kept for 'high' (priority 10)" in house.status("low").desired_reason
        assert house.scaler.explanations.explain("low", limit=1).verdict.endswith(
            "kept for 'high' (priority 10)"
        )

    run(scenario, budget=Budget(replicas=1))


def test_who_has_little_time_to_wait_gets_its_turn_within_it(run):
    async def scenario(house):
        first = await house.one_ready("a", idle_s=60)
        await house.deploy("b", idle_s=60, start_timeout_s=20)
        for waited_s in range(12):
            await house.report("a", in_flight=1)
            await house.report("b", queued=1, arrived=1, oldest_wait_s=float(waited_s))
            await house.tick()
        assert [name for name, _ in house.fleet.released] == [first]

    run(scenario, budget=Budget(replicas=1))


def test_the_idle_one_sleeps_so_that_another_starts(run):
    async def scenario(house):
        idle = await house.one_ready("a", idle_s=600, kv_cache_bytes=3 * GIB)
        await house.report("a")
        await house.deploy("b", idle_s=600, kv_cache_bytes=3 * GIB)
        await house.report("b", queued=1, arrived=1)
        await house.ticks(2)
        assert house.fleet.asleep == [idle]
        assert house.fleet.released == []
        await house.ready()
        assert len(house.urls("b")) == 1

    run(scenario, budget=Budget(memory_bytes=5 * GIB), weights_bytes=lambda _: GIB)


def test_without_a_budget_all_get_what_they_want(run):
    async def scenario(house):
        for name in "abc":
            await house.one_ready(name)
            assert house.scaler.reconciler._state.functions[name].share is None

    run(scenario)
