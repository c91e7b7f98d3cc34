"""The cause of a change, a word, says the same as plan()'s sentence; inputs are finite numbers."""

import json
import math
from dataclasses import asdict

from hypothesis import given, settings
from hypothesis import strategies as st

from glowplug.explanation import Cause
from glowplug.spec import FunctionSpec
from scaler.basis import cause_of, inputs_of
from scaler.breaker import Breaker
from scaler.outlook import Floor, Outlook, Source
from scaler.plan import Counts, Demand, learn, plan
from scaler.rates import Shared

SENTENCES = {
    "idle for ": {Cause.IDLE},
    "no more than ": {Cause.FEWER},
    "prewarm 'x'": {Cause.PREWARM, Cause.FEWER},  # raised to, or lowered to
    "forecast until": {Cause.FORECAST, Cause.FEWER},
    "min_replicas is ": {Cause.LIMITS, Cause.FEWER},
    "max_replicas is ": {Cause.LIMITS},
    "its replicas fail": {Cause.FAILING},
    "no request waits": {Cause.WITHDRAWN},
}

DEMANDS = st.builds(
    lambda in_flight, queued, arrivals: Demand(
        in_flight=in_flight, queued=queued, arrivals=max(queued, arrivals)
    ),
    st.integers(0, 40),
    st.sampled_from([0, 0, 1, 30]),
    st.integers(0, 2),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from([0.5, 1.0, 5.0, 61.0, 700.0]),
        st.one_of(st.just(Demand()), DEMANDS),
        st.sampled_from(["ready", "starting", "failing"]),
    ),
    max_size=40,
)
SPECS = st.builds(
    lambda low, high, idle_s: FunctionSpec(
        name="f",
        model="/m",
        min_replicas=min(low, high),
        max_replicas=high,
        idle_s=idle_s,
        max_seqs=8,
    ),
    st.sampled_from([0, 0, 1, 2]),
    st.integers(1, 6),
    st.sampled_from([None, 1.0, 60.0]),
)
FLOORS = st.lists(
    st.builds(
        lambda from_s, replicas, source: Floor(
            from_s=from_s,
            until_s=from_s + 300,
            replicas=replicas,
            source=source,
            reason="prewarm 'x' 08:00 UTC"
            if source is Source.SCHEDULE
            else "forecast until 09:00 UTC",
        ),
        st.floats(0, 1000),
        st.integers(1, 4),
        st.sampled_from(Source),
    ),
    max_size=3,
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(STEPS, st.lists(SPECS, min_size=1, max_size=2), FLOORS)
def test_the_word_fits_the_sentence(steps, specs, floors):
    shared, history, now_s = Shared(since_s=0.0, at_s=0.0), {}, 0.0
    outlook = Outlook(floors=tuple(floors))
    running = 0
    for number, (seconds, demand, state) in enumerate(steps):
        now_s += seconds
        spec = specs[number * len(specs) // len(steps)]  # changed half-way
        counts = Counts(
            ready=running if state == "ready" else 0,
            starting=running if state == "starting" else 0,
            failing=state == "failing",
        )
        decision = plan(
            now_s,
            {"f": demand},
            history=history,
            specs={"f": spec},
            fleet={"f": counts},
            outlook={"f": outlook},
            shared=shared,
        )["f"]
        shared = learn(shared, now_s, (decision,))
        before = history["f"].desired if history else counts.ready + counts.starting
        history, running = {"f": decision.history}, decision.desired
        inputs = inputs_of(decision.basis, Breaker(), now_s=now_s, ahead_s=0.0)
        json.dumps(asdict(inputs), allow_nan=False)
        assert inputs.idle_s >= 0
        assert (inputs.idle_s == 0) >= (demand.total > 0)
        if decision.desired == before:
            continue
        cause = cause_of(decision.basis, spec, decision.desired)
        fitting = [causes for text, causes in SENTENCES.items() if decision.reason.startswith(text)]
        assert cause in (fitting[0] if fitting else {Cause.REQUESTS}), decision.reason


def test_inputs_of_an_open_breaker_and_floors():
    floor = Floor(from_s=0.0, until_s=math.inf, replicas=1, reason="a call is expected")
    other = Floor(from_s=50.0, until_s=90.0, replicas=1, reason="later")
    spec = FunctionSpec(name="f", model="/m")
    decision = plan(
        10.0,
        {"f": Demand(queued=1, arrivals=1)},
        history={},
        specs={"f": spec},
        fleet={},
        outlook={"f": Outlook(floors=(floor, other))},
    )["f"]
    breaker = Breaker()
    for at_s in (0.0, 2.0, 5.0):
        breaker = breaker.start_failed(at_s, "no memory")
    inputs = inputs_of(decision.basis, breaker, now_s=6.0, ahead_s=1000.0)
    assert [(each.reason, each.until_s) for each in inputs.floors] == [("a call is expected", None)]
    assert inputs.breaker is not None
    assert (inputs.breaker.failures, inputs.breaker.open) == (3, True)
    assert inputs.breaker.retry_in_s == 3.0
