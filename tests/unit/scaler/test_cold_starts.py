"""The kind of a start says `cold` where its snapshot had to be fetched or sealed first."""

import asyncio

from glowplug.contracts import ReplicaState, StartKind


def kinds(house):
    return [replica.start_kind for replica in house.scaler.endpoints.replicas("f")]


async def back_to_zero(house):
    (replica,) = house.fleet.live
    await house.report(queued=0)
    await house.tick(100.0)
    await house.die(replica, None)


async def lose(house):
    (replica,) = house.fleet.live
    reason = "no snapshot on this node"
    house.fleet.change(replica, ReplicaState.GONE, reason=reason, snapshot_lost=True)
    await house.settle()


def test_who_waits_while_the_model_is_sealed_starts_cold(run):
    async def scenario(house):
        house.sealer.hold = asyncio.Event()
        await house.deploy()
        await house.report(queued=1, arrived=1)
        house.sealer.hold.set()
        await house.settle()
        assert kinds(house) == [StartKind.COLD]
        await house.ready()
        assert kinds(house) == [StartKind.COLD]
        assert 'glowplug_start_seconds_count{function="f",kind="cold"} 1.0' in (
            house.scaler.metrics.text()
        )

        await back_to_zero(house)
        await house.report(queued=1, arrived=1)
        await house.ready()
        assert kinds(house) == [StartKind.SNAPSHOT]

    run(scenario)


def test_what_was_sealed_before_anybody_called_does_not(run):
    async def scenario(house):
        await house.deploy()
        await house.tick()
        await house.report(queued=1, arrived=1)
        await house.ready()
        assert kinds(house) == [StartKind.SNAPSHOT]

    run(scenario)


def test_who_waits_for_a_look_up_does_not(run):
    async def scenario(house):
        house.sealer.here = True
        house.sealer.hold = asyncio.Event()
        await house.deploy()
        await house.report(queued=1, arrived=1)
        house.sealer.hold.set()
        await house.settle()
        assert kinds(house) == [StartKind.SNAPSHOT]

    run(scenario)


def test_a_lost_snapshot_that_is_got_again(run):
    async def scenario(house):
        await house.deploy()
        await house.report(queued=1, arrived=1)
        assert kinds(house) == [StartKind.SNAPSHOT]
        await lose(house)
        assert kinds(house) == [StartKind.COLD]
        await house.ready()
        assert kinds(house) == [StartKind.COLD]

    run(scenario)


def test_one_that_another_process_has_brought_back_was_not_there_either(run):
    async def scenario(house):
        await house.deploy()
        await house.report(queued=1, arrived=1)
        house.sealer.here = True
        await lose(house)
        await house.ready()
        assert kinds(house) == [StartKind.COLD]

    run(scenario)


def test_a_start_that_is_tried_again_is_still_the_cold_one(run):
    async def scenario(house):
        await house.deploy()
        await house.report(queued=1, arrived=1)
        await lose(house)
        (replica,) = house.fleet.live
        await house.die(replica)
        await house.tick(8.0)
        assert kinds(house) == [StartKind.COLD]

    run(scenario)


def test_who_gave_up_while_it_was_fetched_leaves_no_trace(run):
    async def scenario(house):
        await house.deploy()
        await house.report(queued=1, arrived=1)
        house.sealer.hold = asyncio.Event()
        await lose(house)
        await house.report(queued=0)
        await house.tick(100.0)
        house.sealer.hold.set()
        await house.settle()
        assert kinds(house) == []
        await house.report(queued=1, arrived=1)
        assert kinds(house) == [StartKind.SNAPSHOT]

    run(scenario)


def test_deploying_again_forgets_what_was_got_for_the_revision_before(run):
    async def scenario(house):
        await house.deploy()
        await house.report(queued=1, arrived=1)
        await lose(house)
        house.sealer.here = True
        await house.deploy(max_seqs=3)
        await house.tick()
        await house.ready()
        (replica,) = house.scaler.endpoints.replicas("f")
        assert replica.revision == house.registry.functions["f"].revision
        assert replica.start_kind is StartKind.SNAPSHOT

    run(scenario)
