"""Replica-seconds: exact over any course of events, and their metrics."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.usage import Present, Usage

# Eighths of a second add up exactly.
STEPS = st.lists(
    st.tuples(
        st.integers(0, 80).map(lambda eighths: eighths / 8),
        st.builds(
            Present,
            loading=st.integers(0, 3),
            serving=st.integers(0, 3),
            in_flight=st.integers(0, 2),
        ),
        st.booleans(),  # somebody looks
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(STEPS)
def test_wasted_and_busy_are_all_there_is(steps):
    now, present = [0.0], [Present(0, 0, 0)]
    usage = Usage(present=lambda _: present[0], deployed=lambda _: True, now=lambda: now[0])
    total = wasted = busy = 0.0
    seen = (0.0, 0.0)
    for seconds, after, looks in steps:
        now[0] += seconds
        loading, serving, in_flight = present[0]
        total += (loading + serving) * seconds
        wasted += (loading + (0 if in_flight else serving)) * seconds
        busy += (serving if in_flight else 0) * seconds
        present[0] = after
        usage.touch("f")
        usage.touch("f")  # once more changes nothing
        if looks:
            assert usage.of("f") >= seen
            seen = usage.of("f")
    assert usage.of("f") == (total, wasted)
    assert usage.of("f")[0] == wasted + busy


def test_nothing_is_kept_of_what_is_gone():
    now, present, deployed = [0.0], [Present(0, 1, 0)], {"f"}
    usage = Usage(present=lambda _: present[0], deployed=deployed.__contains__, now=lambda: now[0])
    usage.touch("f")
    now[0] = 5.0
    assert usage.of("f") == (5.0, 5.0)
    deployed.clear()
    usage.forget("f")
    present[0] = Present(0, 2, 0)  # it still drains
    usage.touch("f")
    present[0] = Present(0, 0, 0)
    usage.touch("f")
    assert usage.of("f") == (0.0, 0.0)


def test_a_clock_set_back_takes_nothing_away():
    now = [10.0]
    usage = Usage(present=lambda _: Present(0, 1, 1), deployed=lambda _: True, now=lambda: now[0])
    usage.touch("f")
    now[0] = 12.0
    assert usage.of("f") == (2.0, 0.0)
    now[0] = 11.0
    assert usage.of("f") == (2.0, 0.0)


def value(house, name, **labels):
    return house.scaler.metrics.registry.get_sample_value(f"glowplug_{name}", labels)


def seconds(house):
    return (
        value(house, "replica_seconds_total", function="f"),
        value(house, "wasted_replica_seconds_total", function="f"),
    )


def test_exact_whatever_the_rounds(run):
    async def scenario(house):
        await house.deploy(idle_s=30)
        assert seconds(house) == (0, 0)
        await house.report(queued=1, arrived=1)
        house.clock.now_s += 0.25  # it starts, and the request waits on its socket
        await house.report(in_flight=1)
        house.clock.now_s += 0.5
        await house.ready()
        house.clock.now_s += 2  # it works
        await house.report()
        assert seconds(house) == (2.75, 0.75)
        house.clock.now_s += 0.125  # nobody calls
        await house.report(in_flight=1, arrived=1)
        house.clock.now_s += 1
        assert seconds(house) == (3.875, 0.875)
        await house.report()
        await house.tick()
        await house.tick(31)  # released: it ends 4 s later
        replica = next(iter(house.fleet.replicas))
        house.clock.now_s += 4
        house.fleet.gone(replica)
        await house.settle()
        house.clock.now_s += 1000
        assert seconds(house) == (39.875, 36.875)

    run(scenario)


def test_decisions_by_cause_and_the_sleeping(run):
    async def scenario(house):
        await house.deploy(idle_s=30, sleep_s=5)
        assert value(house, "decisions_total", function="f", cause="idle") == 0
        await house.report(queued=1, arrived=1)
        await house.ready()
        await house.report(in_flight=1)
        await house.tick()
        await house.report()
        await house.tick(6)
        assert value(house, "replicas_sleeping", function="f") == 1
        await house.tick(31)
        assert value(house, "replicas_sleeping", function="f") == 0
        assert value(house, "decisions_total", function="f", cause="requests") == 1
        assert value(house, "decisions_total", function="f", cause="idle") == 1
        await house.registry.delete("f")
        await house.settle()
        for name in ("replica_seconds_total", "wasted_replica_seconds_total", "replicas_sleeping"):
            assert value(house, name, function="f") is None
        assert value(house, "decisions_total", function="f", cause="idle") is None

    run(scenario)


def test_a_silent_activator_works_on_nothing(run):
    async def scenario(house):
        await house.one_ready()
        ago = [0.0]
        table = house.scaler.demand
        real = table._clock
        table._clock = lambda: real() + ago[0]
        before, _ = seconds(house)
        for _ in range(8):  # silence is counted by steps of two seconds at most
            ago[0] += 2
            await house.tick(2)
        total, wasted = seconds(house)
        assert total == before + 16
        assert 0 < wasted < total
        assert house.scaler.demand.in_flight("f") == 0

    run(scenario)


@pytest.mark.parametrize("state", ["loading", "serving"])
def test_one_that_is_found_counts_from_then_on(run, state):
    async def scenario(house):
        await house.deploy()
        revision = house.registry.functions["f"].revision
        house.fleet.run("f-1", "f", revision)
        await house.scaler.stop()
        house.scaler = house.new_scaler()
        await house.scaler.start()
        house.clock.now_s += 3
        assert seconds(house) == (3, 3)

    run(scenario)
