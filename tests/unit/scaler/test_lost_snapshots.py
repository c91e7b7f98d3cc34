"""A replica that does not find its snapshot whole: it is got again, and callers wait for it."""

import asyncio

from glowplug.contracts import FunctionState, ReplicaState
from glowplug.errors import SnapshotError


async def lose(house, replica, reason="no snapshot on this node"):
    house.fleet.change(replica, ReplicaState.GONE, reason=reason, snapshot_lost=True)
    await house.settle()


async def called(house):
    await house.deploy()
    await house.report(queued=1, arrived=1)
    (replica,) = house.fleet.live
    return replica


def test_it_is_sealed_again_at_once_and_the_caller_goes_on_waiting(run):
    async def scenario(house):
        replica = await called(house)
        house.sealer.hold = asyncio.Event()
        await lose(house, replica)
        assert house.status().state is FunctionState.SEALING
        assert house.registry.functions["f"].snapshot is None
        assert len(house.sealer.calls) == 2
        assert len(house.fleet.assignments) == 1
        house.sealer.hold.set()
        await house.settle()
        assert len(house.fleet.assignments) == 2  # no wait between
        await house.ready()
        assert house.status().state is FunctionState.READY

    run(scenario)


def test_it_can_be_lost_again_after_it_has_served(run):
    async def scenario(house):
        replica = await called(house)
        for losses in range(1, 6):
            await lose(house, replica)
            assert len(house.sealer.calls) == 1 + losses
            await house.ready()
            (replica,) = house.fleet.live
            await house.report(queued=0)
            await house.tick(100.0)  # idle: back to zero
            await house.die(replica, None)
            assert house.status().state is FunctionState.ZERO
            await house.report(queued=1, arrived=1)
            (replica,) = house.fleet.live

    run(scenario)


def test_one_that_stays_lost_comes_to_rest(run):
    """The store or the source gives it each time, and each time it is damaged."""

    async def scenario(house):
        replica = await called(house)
        for _ in range(4):
            await lose(house, replica, "weights.safetensors: its bytes changed")
            await house.tick(8.0)
            if not house.fleet.live:
                break
            (replica,) = house.fleet.live
        await lose(house, replica, "weights.safetensors: its bytes changed")
        assert house.status().state in (FunctionState.FAILED, FunctionState.SEALING)
        await house.settle()
        assert house.status().state is FunctionState.FAILED
        assert "its bytes changed" in house.status().reason
        assert len(house.fleet.assignments) <= 6

    run(scenario)


def test_what_cannot_be_got_again_is_failed_with_the_reason(run):
    async def scenario(house):
        replica = await called(house)
        house.sealer.errors = [SnapshotError("/m.gguf: no such file or folder; check the path")]
        await lose(house, replica)
        assert house.status().state is FunctionState.FAILED
        assert "no such file" in house.status().reason

    run(scenario)


def test_a_replica_of_another_revision_says_nothing_of_this_one(run):
    async def scenario(house):
        replica = await called(house)
        await house.deploy(max_seqs=3)
        calls = len(house.sealer.calls)
        await lose(house, replica)
        assert len(house.sealer.calls) == calls
        assert house.registry.functions["f"].snapshot is not None

    run(scenario)


def test_a_registry_that_is_broken_meanwhile(run):
    async def scenario(house):
        replica = await called(house)
        house.registry.broken = True
        await lose(house, replica)
        house.registry.broken = False
        await house.until(lambda: len(house.sealer.calls) == 2)
        await house.until(lambda: house.fleet.live)
        await house.ready()
        assert house.status().state is FunctionState.READY

    run(scenario)


def test_a_model_that_is_not_there_does_not_wait_for_its_turn(run):
    async def scenario(house):
        house.sealer.hold = asyncio.Event()
        house.sealer.missing = ("typo.gguf",)
        await house.deploy("long", model="large.gguf")
        await house.deploy("typo", model="typo.gguf")
        await house.deploy("next", model="next.gguf")
        assert house.status("long").state is FunctionState.SEALING
        assert house.status("typo").state is FunctionState.FAILED
        assert house.status("typo").reason == "typo.gguf: no such file or folder"
        assert house.status("next").reason == "its model waits to be sealed"
        assert [name for name, _ in house.sealer.calls] == ["long"]

    run(scenario)
