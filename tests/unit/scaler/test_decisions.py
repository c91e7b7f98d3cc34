"""The decision log: what is told of a function, in order and bounded, and what it was made from."""

import asyncio
from datetime import datetime
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glowplug.contracts import Function
from glowplug.errors import NotFound, SnapshotError, Unavailable
from glowplug.explanation import KEPT, Cause, EventKind
from glowplug.spec import FunctionSpec
from scaler.decisions import DecisionLog

AT_8 = datetime.fromisoformat("2028-06-05T08:00+00:00").timestamp()


def explain(house, name="f", limit=KEPT):
    return house.scaler.explanations.explain(name, limit=limit)


def story(house, name="f"):
    """What has happened, oldest first."""
    return [
        (f"{event.before} → {event.after}", event.cause)
        if event.kind is EventKind.DESIRED
        else event.kind
        for event in reversed(explain(house, name).events)
    ]


def last(house, kind, name="f"):
    return next(event for event in explain(house, name).events if event.kind is kind)


def test_from_zero_and_back(run):
    async def scenario(house):
        await house.deploy(idle_s=30)
        await house.tick()
        await house.report(queued=1, arrived=1)
        await house.ready()
        await house.report(in_flight=1)
        await house.tick(5)
        await house.report()
        await house.tick()
        await house.tick(31)
        replica = last(house, EventKind.READY).replica
        house.fleet.gone(replica)
        await house.settle()
        assert story(house) == [
            EventKind.DEPLOYED,
            EventKind.SEALED,
            ("0 → 1", Cause.REQUESTS),
            EventKind.STARTING,
            EventKind.READY,
            ("1 → 0", Cause.IDLE),
            EventKind.RELEASED,
            EventKind.ENDED,
        ]
        up, down = (event for event in reversed(explain(house).events) if event.cause is not None)
        assert up.reason == "1 request queued, none running"
        assert (up.inputs.queued, up.inputs.in_flight, up.inputs.ready) == (1, 0, 0)
        assert (up.inputs.needed, up.inputs.idle_s, up.inputs.idle_limit_s) == (1, 0, None)
        assert down.reason.startswith("idle for 3")
        assert (down.inputs.ready, down.inputs.idle_limit_s) == (1, 30)
        assert down.inputs.idle_s >= 30
        assert down.at_s == house.clock() + house.ahead_s
        assert last(house, EventKind.RELEASED).reason == ""  # said by the decision before it
        ids = [event.id for event in reversed(explain(house).events)]
        assert ids == list(range(1, 9))

    run(scenario)


def test_what_was_learned_is_said(run):
    async def scenario(house):
        await house.deploy(cold_start_cost_s=300)
        for _ in range(3):
            await house.report(queued=1, arrived=1)
            await house.ready()
            await house.report(in_flight=1)
            await house.tick()
            await house.report()
            await house.tick(20)
        inputs = explain(house).inputs
        assert inputs.idle_limit_s is None
        assert inputs.cold_start_cost_s == 300
        assert 1 < inputs.next_call_s < 600
        assert "the next call is expected in" in explain(house).verdict

    run(scenario)


def test_what_is_not_worth_its_keep_is_said_to_be_kept_for_a_moment(run):
    async def scenario(house):
        await house.one_ready(cold_start_cost_s=0)
        await house.report(in_flight=1)
        await house.tick()
        await house.report()
        await house.tick(0.5)
        assert "as it has only just become idle; then 1 → 0" in explain(house).verdict

    run(scenario)


def test_failing_starts_open_the_breaker_once(run):
    async def scenario(house):
        await house.deploy()
        house.fleet.assign_error = Unavailable("no memory")
        await house.report(queued=1, arrived=1)
        for _ in range(4):
            await house.tick(9)
        kinds = story(house)
        assert kinds.count(EventKind.START_FAILED) >= 3
        assert kinds.count(EventKind.BREAKER_OPENED) == 1
        opened = last(house, EventKind.BREAKER_OPENED)
        assert opened.reason.endswith("callers are refused meanwhile: no memory")
        assert "the next try is in" in explain(house).verdict
        assert explain(house).inputs.breaker.open
        assert last(house, EventKind.START_FAILED).reason == "no memory"

        house.fleet.assign_error = None
        await house.tick(61)
        await house.ready()
        assert explain(house).inputs.breaker is None
        await house.report(in_flight=1)
        await house.die(*house.fleet.live, "out of memory")
        assert last(house, EventKind.DIED).reason == "out of memory"

    run(scenario)


def test_who_left_before_it_was_there(run):
    async def scenario(house):
        await house.deploy()
        house.fleet.assign_error = Unavailable("no memory")
        await house.report(queued=1, arrived=1)
        await house.report()
        await house.tick()
        assert story(house)[-1] == ("1 → 0", Cause.FAILING)
        house.fleet.assign_error = None
        await house.deploy("g")
        house.sealer.hold = None
        await house.report("g", queued=1, arrived=1)
        assert ("0 → 1", Cause.REQUESTS) in story(house, "g")

    run(scenario)


def test_a_model_that_cannot_be_sealed(run):
    async def scenario(house):
        house.sealer.errors = [SnapshotError("m.gguf: not a GGUF file")]
        await house.deploy()
        assert last(house, EventKind.SEAL_FAILED).reason == "m.gguf: not a GGUF file"
        await house.tick()
        assert explain(house).verdict == "its model cannot be sealed (m.gguf: not a GGUF file)"

        house.sealer.hold = asyncio.Event()
        await house.deploy(model="n.gguf")
        await house.tick()
        assert explain(house).verdict == "its model is being sealed"
        await house.report(queued=1, arrived=1)
        await house.tick()
        assert explain(house).verdict == "its model is being sealed, then it starts"
        house.sealer.hold.set()
        await house.settle()
        await house.ready()
        assert story(house)[-1] is EventKind.READY

    run(scenario)


def test_prewarms(run):
    async def scenario(house):
        house.ahead_s = AT_8 - 3600 - house.clock()
        morning = {"name": "morning", "cron": "0 8 * * *", "duration": "1h", "min_replicas": 2}
        await house.deploy(max_replicas=4, idle_s=30, schedules=[morning])
        now = explain(house)
        assert now.verdict == "0 → 2 in 60 min: prewarm 'morning' 08:00 UTC"
        assert now.next_change.cause is Cause.PREWARM
        assert now.next_change.desired == 2
        assert now.next_change.at_s == pytest.approx(AT_8 - 8, abs=1)
        assert now.next_prewarm.ready_by_s == AT_8

        await house.tick(3600)
        await house.ready()
        assert story(house)[2:5] == [
            EventKind.PREWARM_LAUNCHED,
            ("0 → 2", Cause.PREWARM),
            EventKind.STARTING,
        ]
        now = explain(house)
        (floor,) = now.inputs.floors
        assert (floor.replicas, floor.until_s) == (2, pytest.approx(AT_8 + 3600, abs=1))
        assert now.next_change.at_s == pytest.approx(AT_8 + 3600, abs=1.5)
        assert now.next_change.desired == 1

        await house.tick(3601)
        await house.ticks(2)
        assert EventKind.PREWARM_ENDED in story(house)
        assert [entry for entry in story(house) if isinstance(entry, tuple)] == [
            ("0 → 2", Cause.PREWARM),
            ("2 → 1", Cause.IDLE),
            ("1 → 0", Cause.IDLE),
        ]

    run(scenario)


def test_limits_and_sleep(run):
    async def scenario(house):
        await house.deploy(min_replicas=1, max_replicas=2, sleep_s=5)
        await house.ready()
        assert ("0 → 1", Cause.LIMITS) in story(house)
        assert explain(house).verdict == "kept, as min_replicas is 1"
        await house.tick(6)
        assert story(house)[-1] is EventKind.SLEPT
        await house.deploy(min_replicas=0, max_replicas=2, sleep_s=5, idle_s=60)
        assert last(house, EventKind.DEPLOYED).reason.endswith("generation 2")

    run(scenario)


def test_after_a_restart_what_runs_is_found(run):
    async def scenario(house):
        await house.deploy()
        revision = house.registry.functions["f"].revision
        await house.scaler.stop()
        house.fleet.run("f-1", "f", revision)
        house.scaler = house.new_scaler()
        await house.scaler.start()
        await house.tick()
        assert story(house) == [EventKind.SERVER_STARTED, ("0 → 1", Cause.FOUND)]

    run(scenario)


def test_a_deleted_function_leaves_nothing(run):
    async def scenario(house):
        replica = await house.one_ready()
        await house.registry.delete("f")
        await house.settle()
        with pytest.raises(NotFound):
            explain(house)
        house.fleet.gone(replica)  # its last replica, later
        await house.settle()
        await house.deploy()
        assert story(house)[:2] == [EventKind.DEPLOYED, EventKind.SEALED]
        assert explain(house).events[-1].id == 1

    run(scenario)


def test_a_limit_takes_the_newest(run):
    async def scenario(house):
        await house.one_ready()
        every = explain(house).events
        assert explain(house, limit=2).events == every[:2]

    run(scenario)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(EventKind)), max_size=300))
def test_bounded_and_in_order(told):
    clock = iter(range(10_000))
    log = DecisionLog(wall=lambda: next(clock))
    for name in "ab":
        log.deployed(Function(spec=FunctionSpec(name=name, model="/m"), generation=1))
    for name, kind in told:
        log.note(name, kind, "x" * 1000)
    for name in "ab":
        kinds = [EventKind.DEPLOYED, *(kind for other, kind in told if other == name)]
        events = log.of(name)
        assert [event.kind for event in events] == kinds[::-1][:KEPT]
        assert [event.id for event in events] == list(range(len(kinds), 0, -1))[:KEPT]
        assert all(new.at_s > old.at_s for new, old in pairwise(events))
        assert all(len(event.reason) <= 500 for event in events)


def test_what_is_not_deployed_is_not_kept():
    log = DecisionLog()
    log.note("f", EventKind.RELEASED, "why")
    assert log.functions == set()


def test_a_release_for_another_reason_says_it(run):
    async def scenario(house):
        await house.one_ready(idle_s=60)
        await house.deploy(idle_s=60, model="other.gguf")
        await house.ready()
        await house.tick()
        await house.ready()
        revision = house.registry.functions["f"].revision
        assert last(house, EventKind.RELEASED).reason == f"revision {revision} is ready"

    run(scenario)
