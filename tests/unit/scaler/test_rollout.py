"""From one revision to the next: who answers meanwhile, who goes, and when."""

import asyncio

from glowplug.contracts import FunctionState, Replica, ReplicaState, StartKind
from glowplug.errors import UnsupportedModel
from scaler import rollout
from scaler.state import Entry


def test_an_update_at_zero_starts_nothing(run):
    async def scenario(house):
        await house.deploy()
        await house.deploy(max_seqs=4)
        await house.ticks(3)
        assert house.fleet.assignments == []
        assert house.status().state is FunctionState.ZERO

    run(scenario)


def test_the_old_revision_answers_until_the_new_one_is_ready(run):
    async def scenario(house):
        old = await house.one_ready()
        house.sealer.hold = asyncio.Event()
        await house.deploy(max_seqs=4)
        await house.ticks(2)
        assert house.urls() == [old]
        assert house.status().state is FunctionState.READY
        assert "is being sealed" in house.status().reason
        assert len(house.fleet.assignments) == 1

        house.sealer.hold.set()
        await house.settle()
        assert len(house.fleet.assignments) == 2
        assert house.urls() == [old]
        await house.ready()
        (new,) = house.urls()
        assert new != old
        assert house.fleet.released == [(old, 600.0)]
        assert house.status().reason is None
        await house.ticks(3)
        assert len(house.fleet.assignments) == 2

    run(scenario)


def test_with_nothing_in_flight_the_old_revision_goes_at_once(run):
    async def scenario(house):
        old = await house.one_ready(idle_s=60)
        await house.report()
        await house.deploy(max_seqs=4, idle_s=60)
        assert house.fleet.released == [(old, 600.0)]
        assert len(house.fleet.assignments) == 2  # it was warm and stays warm
        await house.ready()
        await house.tick(61)
        assert house.urls() == []

    run(scenario)


def test_a_new_revision_that_cannot_be_sealed_leaves_the_old_one_answering(run):
    async def scenario(house):
        old = await house.one_ready(idle_s=60)
        house.sealer.errors = [UnsupportedModel("not a model")]
        await house.deploy(model="bad.gguf", idle_s=60)
        await house.report()
        await house.ticks(2)
        assert house.urls() == [old]
        assert house.status().state is FunctionState.READY
        assert "not a model" in house.status().reason
        await house.tick(61)
        assert house.urls() == []
        assert house.status().state is FunctionState.FAILED

    run(scenario)


def test_a_new_revision_that_does_not_start_leaves_the_old_one_answering(run):
    async def scenario(house):
        old = await house.one_ready(idle_s=60)
        await house.deploy(kv_cache_bytes="900GiB", idle_s=60)
        (new,) = set(house.fleet.live) - {old}
        await house.die(new, "no memory")
        await house.report()  # nothing in flight now, but the old one is all there is
        await house.ticks(2)
        assert old in house.urls()
        assert "does not start: no memory" in house.status().reason

    run(scenario)


def test_the_fate_of_the_old_revision_says_nothing_of_the_new_one(run):
    async def scenario(house):
        await house.deploy()
        await house.report(queued=1, arrived=1)
        (old,) = house.fleet.live  # it starts
        await house.report(in_flight=1)  # and has the request already
        house.sealer.hold = asyncio.Event()
        await house.deploy(max_seqs=4)
        await house.die(old, "out of memory")
        house.sealer.hold.set()
        await house.report(queued=1)
        assert len(house.fleet.assignments) == 2  # at once
        assert house.status().reason == "a replica is starting"

    run(scenario)


def test_a_success_of_the_old_revision_says_nothing_of_the_new_one(run):
    async def scenario(house):
        await house.deploy()
        await house.report(queued=1, arrived=1)
        (old,) = house.fleet.live
        await house.report(in_flight=1)
        await house.deploy(max_seqs=4)
        (new,) = set(house.fleet.live) - {old}
        await house.die(new, "no memory")
        house.fleet.ready(old)
        await house.settle()
        assert "does not start: no memory" in house.status().reason
        await house.tick(0.5)
        assert len(house.fleet.assignments) == 2  # the wait of one second goes on

    run(scenario)


def test_several_old_replicas_are_replaced_by_as_many(run):
    async def scenario(house):
        await house.deploy(max_replicas=3)
        await house.report(queued=33, arrived=33)
        await house.ready()
        await house.report(in_flight=33)
        await house.deploy(max_replicas=3, kv_cache_bytes=2**30)
        assert len(house.fleet.assignments) == 6
        await house.ticks(3)
        assert len(house.fleet.assignments) == 6
        await house.ready()
        assert len(house.fleet.released) == 3

    run(scenario)


def make_entry(name, state, revision="new"):
    replica = Replica(
        id=name,
        function="f",
        revision=revision,
        state=state,
        url=f"http://{name}",
        capacity=16,
        start_kind=StartKind.SNAPSHOT,
    )
    return Entry(replica=replica, since_s=0.0)


def released(entries, *, desired, busy):
    situation = rollout.Situation(
        revision="new", sealed=True, desired=desired, busy=busy, may_start=True, failing=False
    )
    moves = rollout.moves(entries, situation, why="test")
    assert moves.starts == 0
    return [entry.replica.id for entry, _ in moves.releases]


def test_ready_replicas_are_released_before_starting_ones_the_newest_first():
    entries = [
        make_entry("a", ReplicaState.READY),
        make_entry("b", ReplicaState.READY),
        make_entry("c", ReplicaState.STARTING),
    ]
    assert released(entries, desired=2, busy=True) == ["b"]
    assert released(entries, desired=2, busy=False) == ["b"]
    assert released(entries, desired=1, busy=False) == ["b", "a"]


def test_the_last_ready_replica_is_spared_while_it_is_needed():
    entries = [make_entry("a", ReplicaState.READY), make_entry("b", ReplicaState.STARTING)]
    assert released(entries, desired=1, busy=True) == ["b"]
    assert released(entries, desired=1, busy=False) == ["a"]
    assert released(entries, desired=0, busy=True) == ["b", "a"]


def test_draining_replicas_count_for_nothing():
    entries = [make_entry("a", ReplicaState.DRAINING), make_entry("b", ReplicaState.READY)]
    assert released(entries, desired=1, busy=True) == []
    assert rollout.count(entries, "new", failing=False).ready == 1
