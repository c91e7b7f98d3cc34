"""What is foreseen is what happens when plan() is asked every second and nobody calls."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from glowplug.explanation import Cause
from glowplug.spec import FunctionSpec
from scaler.foresight import foresee
from scaler.outlook import Floor, Outlook
from scaler.plan import Counts, Demand, learn, plan
from scaler.rates import Shared

WATCHED_S = 1500


def step(now_s, spec, demand, history, counts, outlook, shared):
    return plan(
        now_s,
        {"f": demand},
        history={"f": history} if history else {},
        specs={"f": spec},
        fleet={"f": counts},
        outlook={"f": outlook},
        shared=shared,
    )["f"]


def after_calls(spec, gaps, outlook):
    """The state after calls of one second with these gaps, and some idle seconds."""
    shared, history, now_s, running = Shared(since_s=0.0, at_s=0.0), None, 0.0, 0
    for gap in gaps:
        for seconds, demand in (
            (1, Demand(queued=1, arrivals=1)),
            (1, Demand(in_flight=1)),
            *[(1, Demand())] * gap,
        ):
            now_s += seconds
            decision = step(now_s, spec, demand, history, Counts(ready=running), outlook, shared)
            shared = learn(shared, now_s, (decision,))
            history, running = decision.history, decision.desired
    return now_s, history, Counts(ready=running), shared


def foreseen(spec, now_s, history, counts, outlook, shared, demand=None):
    return foresee(
        now_s,
        spec=spec,
        demand=demand or Demand(),
        history=history,
        counts=counts,
        outlook=outlook,
        shared=shared,
    )


SPECS = st.builds(
    lambda idle_s, low, cost: FunctionSpec(
        name="f",
        model="/m",
        idle_s=idle_s,
        min_replicas=low,
        max_replicas=4,
        cold_start_cost_s=cost,
    ),
    st.sampled_from([None, 0.5, 30.0, 600.0]),
    st.sampled_from([0, 0, 1]),
    st.sampled_from([None, 10.0, 300.0]),
)
FLOORS = st.lists(
    st.builds(
        lambda from_s, length_s, replicas: Floor(
            from_s=from_s, until_s=from_s + length_s, replicas=replicas, reason="prewarm 'x'"
        ),
        st.floats(0, 1200),
        st.floats(60, 1200),
        st.integers(1, 3),
    ),
    max_size=3,
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(SPECS, st.lists(st.integers(1, 60), min_size=1, max_size=5), FLOORS)
def test_it_comes_as_foreseen(spec, gaps, floors):
    outlook = Outlook(floors=tuple(floors))
    now_s, history, counts, shared = after_calls(spec, gaps, outlook)
    ahead = foreseen(spec, now_s, history, counts, outlook, shared)
    at_s, wanted = now_s, history.desired
    while at_s < now_s + WATCHED_S:
        at_s += 0.5
        decision = step(at_s, spec, Demand(), history, counts, outlook, shared)
        if decision.desired != wanted:
            assert ahead.change is not None
            assert ahead.change.desired == decision.desired
            # A rate is learned in steps; coarser ones differ a little.
            assert abs(ahead.until_s - at_s) <= 1.0 + 0.01 * (at_s - now_s)
            return
        history = decision.history
    assert ahead.until_s > at_s - 1.0 - 0.01 * WATCHED_S


def test_requests_hold_it_and_floors_still_come():
    spec = FunctionSpec(name="f", model="/m", max_replicas=4, idle_s=1)
    demand = Demand(in_flight=1)
    shared, counts = Shared(since_s=0.0, at_s=0.0), Counts()
    decision = step(10.0, spec, Demand(queued=1, arrivals=1), None, counts, Outlook(), shared)
    counts = Counts(ready=1)
    held = foreseen(spec, 11.0, decision.history, counts, Outlook(), shared, demand)
    assert held.change is None
    assert held.until_s == math.inf
    floor = Floor(from_s=5000.0, until_s=9000.0, replicas=3, reason="prewarm 'x' 08:00 UTC")
    outlook = Outlook(floors=(floor,))
    more = foreseen(spec, 11.0, decision.history, counts, outlook, shared, demand)
    assert (more.change.desired, more.cause) == (3, Cause.PREWARM)
    assert abs(more.until_s - 5000) <= 1.0


def test_what_starts_is_taken_to_be_ready():
    spec = FunctionSpec(name="f", model="/m", idle_s=30)
    shared = Shared(since_s=0.0, at_s=0.0)
    decision = step(10.0, spec, Demand(queued=1, arrivals=1), None, Counts(), Outlook(), shared)
    ahead = foreseen(spec, 10.0, decision.history, Counts(starting=1), Outlook(), shared)
    assert (ahead.change.desired, ahead.cause) == (0, Cause.IDLE)
    assert abs(ahead.until_s - 40) <= 1.0


def test_a_short_floor_far_ahead_is_not_passed_over():
    spec = FunctionSpec(name="f", model="/m", idle_s=1)
    floor = Floor(from_s=40_000.0, until_s=40_060.0, replicas=1, reason="prewarm 'x' 08:00 UTC")
    outlook = Outlook(floors=(floor,))
    now_s, history, counts, shared = after_calls(spec, [5], outlook)
    ahead = foreseen(spec, now_s, history, counts, outlook, shared)
    assert (ahead.change.desired, ahead.cause) == (1, Cause.PREWARM)
    assert 40_000 <= ahead.until_s <= 40_001


def test_hours_ahead_it_is_precise():
    spec = FunctionSpec(name="f", model="/m", cold_start_cost_s=20_000)
    now_s, history, counts, shared = after_calls(spec, [60, 300, 600], Outlook())
    ahead = foreseen(spec, now_s, history, counts, Outlook(), shared)
    at_s, decision = now_s, None
    while decision is None or decision.desired == history.desired:
        history = decision.history if decision else history
        at_s += 1.0
        decision = step(at_s, spec, Demand(), history, counts, Outlook(), shared)
    assert at_s - now_s > 3600
    assert abs(ahead.until_s - at_s) < 0.01 * (at_s - now_s)
