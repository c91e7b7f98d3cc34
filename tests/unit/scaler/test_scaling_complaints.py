"""What users of other autoscalers complained about, against the whole scaler. Numbers and threads:

14 kthena#1589, 15 kthena#1019, 16 kubeai#9, 17 kubeai#383 and #229, 18 ray#61731 and #59076,
20 kserve#962.
"""

import asyncio

import pytest

from glowplug.contracts import FunctionState, ReplicaState


def test_14_scaling_down_drains_and_kills_nothing(run):
    async def scenario(house):
        await house.deploy(max_replicas=4, request_timeout_s=120)
        await house.report(queued=40, arrived=40)
        await house.ready()
        await house.report(in_flight=40)
        oldest = house.urls()[0]
        await house.report(in_flight=3)
        await house.ticks(300)
        assert house.urls() == [oldest]
        assert len(house.fleet.released) == 3
        assert {drain_s for _, drain_s in house.fleet.released} == {120.0}
        states = {each.state for each in house.status().replicas if each.id != oldest}
        assert states == {ReplicaState.DRAINING}  # and they are left to it
        await house.ticks(100)
        assert len(house.fleet.released) == 3

    run(scenario)


def test_14_what_drains_counts_for_nothing_that_is_wanted(run):
    async def scenario(house):
        replica = await house.one_ready(idle_s=5, max_replicas=5)
        await house.report()
        await house.ticks(6)
        assert house.fleet.released == [(replica, 600.0)]
        await house.report(in_flight=1)  # it streams on
        await house.ticks(30)
        assert len(house.fleet.assignments) == 1
        await house.report(in_flight=1, queued=1, arrived=1)
        assert len(house.fleet.assignments) == 2

    run(scenario)


def test_14_a_replica_that_starts_is_never_scaled_down(run):
    async def scenario(house):
        await house.deploy(max_replicas=5, start_timeout_s=3600, idle_s=10)
        await house.report(queued=50, arrived=50)
        assert len(house.fleet.live) == 5
        await house.report()
        await house.ticks(200)
        assert house.fleet.released == []
        await house.ready()
        await house.ticks(20)
        assert house.fleet.live == []

    run(scenario)


def test_15_a_call_between_two_ticks_is_not_forgotten(run):
    async def scenario(house):
        await house.deploy()
        await house.report()
        house.clock.now_s += 0.5
        await house.report(arrived=1)  # came and left: nobody queues any more
        await house.tick(0.5)
        assert len(house.fleet.assignments) == 1

    run(scenario)


def test_15_calls_between_ticks_keep_a_replica(run):
    async def scenario(house):
        replica = await house.one_ready(idle_s=10)
        for _ in range(20):
            await house.report(arrived=1)
            await house.tick(8)
        assert house.urls() == [replica]
        await house.ticks(11)
        assert house.urls() == []

    run(scenario)


def test_15_demand_reported_while_a_replica_is_being_lost_is_served(run):
    async def scenario(house):
        replica = await house.one_ready()
        await house.tick(30)
        await house.report(queued=1)  # handed back by the front door
        await house.die(replica)
        assert len(house.fleet.assignments) == 2

    run(scenario)


def test_16_a_failing_function_spends_less_and_less(run):
    async def scenario(house):
        await house.deploy(min_replicas=1)
        for _ in range(3600):
            for replica in list(house.fleet.live):
                await house.die(replica, "out of memory")
            await house.tick()
        assert len(house.fleet.assignments) <= 6 + 60 + 1  # 1, 2, 4 ... 32 s, then once a minute
        assert house.status().state is FunctionState.FAILED
        assert "out of memory" in house.status().reason

    run(scenario)


@pytest.mark.parametrize("state", [ReplicaState.STARTING, ReplicaState.READY])
def test_17_a_restart_takes_over_what_runs_or_starts(run, state):
    async def scenario(house):
        await house.deploy(max_replicas=8)
        await house.scaler.stop()
        revision = house.status().snapshot.removeprefix("sha256-")
        for n in range(5):
            house.fleet.run(f"r{n}", "f", revision, state)
        house.scaler = house.new_scaler()
        await house.scaler.start()
        await house.report(in_flight=50)
        for _ in range(50):
            await house.tick()
            await house.report(in_flight=50)
        assert house.fleet.assignments == []
        assert house.fleet.released == []
        assert house.status().desired == 5

    run(scenario)


def test_17_nothing_is_decided_before_the_fleet_is_known(run):
    async def scenario(house):
        await house.deploy(max_replicas=8)
        await house.scaler.stop()
        revision = house.status().snapshot.removeprefix("sha256-")
        house.fleet.run("r0", "f", revision)
        house.fleet.list_error = OSError("not yet")
        house.scaler = house.new_scaler()
        starting = asyncio.create_task(house.scaler.start())
        await house.report(queued=1, arrived=1)
        assert not starting.done()
        assert house.fleet.assignments == []
        house.fleet.list_error = None
        await starting
        await house.settle()
        assert house.fleet.assignments == []
        assert house.urls() == ["r0"]

    run(scenario)


def test_17_from_zero_to_many_in_one_step(run):
    async def scenario(house):
        await house.deploy(max_replicas=8)
        await house.report(queued=80, arrived=80)
        assert len(house.fleet.assignments) == 8

    run(scenario)


def test_18_without_traffic_nothing_ever_starts(run):
    async def scenario(house):
        await house.deploy(max_replicas=10)
        for _ in range(100):
            await house.report()
            await house.tick(7)
        for _ in range(100):
            await house.tick(3600)
        assert house.fleet.assignments == []
        assert house.status().state is FunctionState.ZERO

    run(scenario)


def test_18_a_minimum_of_zero_is_zero(run):
    async def scenario(house):
        await house.one_ready(min_replicas=0, max_replicas=10, idle_s=10)
        await house.report()
        await house.ticks(11)
        assert house.fleet.live == []
        await house.ticks(100)
        assert len(house.fleet.assignments) == 1

    run(scenario)


def test_20_editing_a_function_at_zero_starts_nothing(run):
    async def scenario(house):
        await house.deploy()
        for settings in (
            {"idle_s": 5},
            {"max_replicas": 9},
            {"max_seqs": 4},  # a new revision, sealed anew
            {"model": "other.gguf"},
            {"priority": 7, "max_replicas": 3, "activation_replicas": 2},
        ):
            await house.deploy(**settings)
            await house.ticks(3)
        assert house.fleet.assignments == []
        assert house.status().state is FunctionState.ZERO

    run(scenario)


def test_20_a_minimum_given_up_goes_to_zero(run):
    async def scenario(house):
        await house.deploy(min_replicas=1, idle_s=20)
        await house.ready()
        await house.ticks(60)
        assert len(house.urls()) == 1
        await house.deploy(min_replicas=0, idle_s=20)
        await house.ticks(25)
        assert house.urls() == []

    run(scenario)
