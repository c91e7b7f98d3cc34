"""plan(): the reactive rule by example, then its laws by property."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glowplug.spec import FunctionSpec
from scaler.outlook import Floor, Outlook
from scaler.plan import Counts, Demand, plan, target_per_replica

NOTHING = Counts()


def make_spec(**changes):
    return FunctionSpec(**{"name": "f", "model": "m", "max_replicas": 10, "idle_s": 30, **changes})


def decide(now_s, demand, counts, *, spec=None, last=None, floors=(), start_s=4.0):
    """One function, one plan; `last` is the decision before."""
    return plan(
        now_s,
        {"f": demand},
        history={"f": last.history} if last else {},
        specs={"f": spec or make_spec()},
        fleet={"f": counts},
        outlook={"f": Outlook(floors=tuple(floors), start_s=start_s)},
    )["f"]


def simulate(spec, demands, *, starting=NOTHING, start_ticks=2):
    """Desired counts per 1 s tick, on a fleet that does what is asked, starts taking time."""
    counts, last, desired, births = starting, None, [], []
    for now_s, demand in enumerate(demands):
        births = [born for born in births if now_s - born < start_ticks]
        running = counts.ready + counts.starting
        counts = Counts(starting=len(births), ready=running - len(births))
        last = decide(float(now_s), demand, counts, spec=spec, last=last)
        births += [now_s] * max(0, last.desired - running)
        births = births[: last.desired]
        counts = Counts(starting=len(births), ready=last.desired - len(births))
        desired.append(last.desired)
    return desired


# By example.


@pytest.mark.parametrize(
    ("max_seqs", "target"), [(1, 1), (2, 1), (3, 2), (4, 3), (8, 6), (16, 11), (1024, 717)]
)
def test_a_replica_takes_seven_tenths_of_its_sequences(max_seqs, target):
    assert target_per_replica(make_spec(max_seqs=max_seqs)) == target


def test_from_zero():
    one = decide(0, Demand(queued=2, arrivals=2), NOTHING)
    assert (one.desired, one.reason) == (1, "2 requests queued, none running: 0 → 1")
    many = decide(0, Demand(queued=200, arrivals=200), NOTHING)
    assert many.desired == 10
    assert many.reason == "200 requests queued, none running (max_replicas is 10): 0 → 10"


def test_what_drains_at_zero_starts_nothing():
    assert decide(0, Demand(in_flight=5), NOTHING).desired == 0


def test_a_function_without_demand_or_fleet_stays_at_zero():
    decision = plan(0, {}, history={}, specs={"f": make_spec()}, fleet={})["f"]
    assert (decision.desired, decision.reason) == (0, "nobody has called it yet")


def morning(replicas, *, reason="prewarm 'morning'"):
    return Floor(from_s=10, until_s=100, replicas=replicas, reason=reason)


def test_a_floor_raises_from_its_launch_to_its_end():
    asked = [decide(now_s, Demand(), NOTHING, floors=[morning(2)]) for now_s in (9.9, 10, 99.9)]
    assert [decision.desired for decision in asked] == [0, 2, 2]
    assert asked[1].reason == "prewarm 'morning': 0 → 2"
    after = decide(100, Demand(), Counts(ready=2), floors=[morning(2)], last=asked[2])
    assert after.desired == 1  # halved at once; the last one goes when idle
    assert decide(130, Demand(), Counts(ready=1), floors=[morning(2)], last=after).desired == 0


def test_overlapping_floors_do_not_add_up():
    floors = [morning(2), morning(3, reason="forecast"), morning(1)]
    decision = decide(10, Demand(), NOTHING, floors=floors)
    assert (decision.desired, decision.reason) == (3, "forecast: 0 → 3")


def test_a_floor_keeps_to_max_replicas_and_never_lowers():
    assert decide(10, Demand(), NOTHING, floors=[morning(50)]).desired == 10
    assert decide(10, Demand(in_flight=40), Counts(ready=4), floors=[morning(1)]).desired == 4


def test_up_with_load_once_it_lasts_longer_than_a_start():
    crowd, last = Demand(in_flight=16, queued=18), decide(0, Demand(in_flight=5), Counts(ready=1))
    desired = []
    for now_s, ready in ((1, 1), (2, 1), (3, 2), (4, 4)):
        last = decide(now_s, crowd, Counts(ready=ready), last=last, start_s=0.1)
        desired.append(last.desired)
    assert desired == [1, 2, 4, 4]


def test_the_reason_stays_that_of_the_last_change():
    first = decide(0, Demand(queued=1), NOTHING)
    later = decide(1, Demand(in_flight=1), Counts(ready=1), last=first)
    assert later.reason == first.reason


def test_one_to_zero_exactly_when_idle():
    last = decide(0, Demand(in_flight=1), Counts(ready=1))
    for now_s in (10, 20, 29.9):
        last = decide(now_s, Demand(), Counts(ready=1), last=last)
        assert last.desired == 1
    last = decide(30.2, Demand(), Counts(ready=1), last=last)
    assert (last.desired, last.reason) == (0, "idle for 30.2 s (limit 30 s): 1 → 0")


@pytest.mark.parametrize("idle_s", [30, None])
def test_what_has_gone_to_zero_asks_for_no_look(idle_s):
    spec = make_spec(idle_s=idle_s)
    floor = Floor(from_s=-8.0, until_s=50.0, replicas=1, reason="prewarm 'morning'")
    last = decide(0, Demand(), NOTHING, spec=spec, floors=[floor])
    assert (last.desired, last.recheck_s) == (1, 8.0 if idle_s is None else 30.0)
    last = decide(40, Demand(), Counts(ready=1), spec=spec, last=last, floors=[floor])
    assert (last.desired, last.recheck_s) == (1, 10.0)
    last = decide(50, Demand(), Counts(ready=1), spec=spec, last=last, floors=[floor])
    assert (last.desired, last.recheck_s) == (0, math.inf)


def test_idleness_counts_from_the_completion_that_the_activator_saw():
    last = decide(0, Demand(in_flight=1), Counts(ready=1))
    demand = Demand(last_active_s=0.9)
    last = decide(1, demand, Counts(ready=1), last=last)
    assert decide(30.8, demand, Counts(ready=1), last=last).desired == 1
    assert decide(30.9, demand, Counts(ready=1), last=last).desired == 0
    ahead = Demand(last_active_s=1e9)  # a clock that is wrong must not pin a replica
    last = decide(2, ahead, Counts(ready=1), last=last)
    assert decide(32, Demand(), Counts(ready=1), last=last).desired == 0


def test_brief_calls_between_ticks_keep_a_replica():
    calls = [Demand(arrivals=1)] * 100
    assert set(simulate(make_spec(), calls)) == {1}


def test_down_by_half_after_the_window():
    busy, quiet = [Demand(in_flight=80)] * 5, [Demand(in_flight=1)] * 70
    desired = simulate(make_spec(), [Demand(queued=80), *busy, *quiet, *quiet])
    assert desired[:60] == [8] * 60  # held like in a panic
    assert desired[60:] == sorted(desired[60:], reverse=True)
    assert all(after >= before // 2 for before, after in pairwise(desired[60:]))
    assert desired[-1] == 1


def test_peaks_within_the_window_hold_more_than_one():
    seesaw = ([Demand(in_flight=80)] * 20 + [Demand(in_flight=1)] * 30) * 4
    assert min(simulate(make_spec(), seesaw, starting=Counts(ready=8))) >= 2


def test_idle_replicas_go_in_halves_before_the_window_is_over():
    desired = simulate(make_spec(), [Demand(queued=80)] + [Demand()] * 40)
    assert desired[29:36] == [8, 4, 2, 1, 0, 0, 0]


def test_edges_between_ticks_do_not_lower_faster():
    last = decide(0, Demand(in_flight=80), Counts(ready=8))
    desired = []
    for step in range(30):
        last = decide(100 + step / 10, Demand(), Counts(ready=8), last=last)
        desired.append(last.desired)
    assert desired == [4] * 10 + [2] * 10 + [1] + [0] * 9


def test_nothing_is_lowered_while_a_replica_starts():
    last = decide(0, Demand(queued=20), NOTHING)
    assert last.desired == 2
    held = decide(500, Demand(), Counts(starting=1, ready=1), last=last)
    assert held.desired == 2
    assert decide(501, Demand(), Counts(ready=2), last=held).desired == 1


def test_what_died_is_wanted_back_unless_it_keeps_failing():
    last = decide(0, Demand(in_flight=1), Counts(ready=1))
    assert decide(1, Demand(), NOTHING, last=last).desired == 1
    failing = decide(1, Demand(), Counts(failing=True), last=last)
    assert (failing.desired, failing.reason) == (
        0,
        "its replicas fail and no request waits: 1 → 0",
    )
    assert decide(1, Demand(queued=1), Counts(failing=True), last=last).desired == 1
    assert decide(1, Demand(arrivals=1), Counts(failing=True), last=last).desired == 0
    assert decide(31, Demand(), NOTHING, last=last).desired == 0


def test_a_roll_is_not_counted_twice():
    spec = make_spec()
    last = decide(0, Demand(in_flight=33), Counts(ready=3), spec=spec)
    for now_s in range(1, 200):
        counts = Counts(starting=3, outdated=3)
        last = decide(now_s, Demand(in_flight=33), counts, spec=spec, last=last)
        assert last.desired == 3


def test_a_restart_in_a_roll_counts_it_once():
    assert decide(0, Demand(in_flight=3), Counts(starting=1, outdated=1)).desired == 1
    assert decide(0, Demand(in_flight=3), Counts(outdated=2)).desired == 2


def test_min_replicas_up_down_and_at_once():
    last = decide(0, Demand(), NOTHING, spec=make_spec())
    up = decide(1, Demand(), NOTHING, spec=make_spec(min_replicas=2), last=last)
    assert (up.desired, up.reason) == (2, "min_replicas is 2: 0 → 2")
    kept = decide(900, Demand(), Counts(ready=2), spec=make_spec(min_replicas=2), last=up)
    assert kept.desired == 2
    down = decide(901, Demand(), Counts(ready=2), spec=make_spec(), last=kept)
    assert down.desired == 1
    assert decide(902, Demand(), Counts(ready=1), spec=make_spec(), last=down).desired == 0


def test_max_replicas_lowered_at_once():
    last = decide(0, Demand(in_flight=80), Counts(ready=8))
    spec = make_spec(max_replicas=2)
    lowered = decide(0.1, Demand(in_flight=80), Counts(ready=8), spec=spec, last=last)
    assert (lowered.desired, lowered.reason) == (2, "max_replicas is 2: 8 → 2")


def test_no_replicas_at_all_where_the_maximum_is_zero():
    spec = FunctionSpec.model_construct(name="f", model="m", max_replicas=0)
    assert decide(0, Demand(queued=9), NOTHING, spec=spec).desired == 0
    assert decide(0, Demand(queued=9), Counts(ready=1), spec=spec).desired == 0


def test_a_restart_takes_what_runs_for_what_was_wanted():
    for counts in (Counts(ready=3), Counts(starting=3), Counts(ready=1, starting=2)):
        taken = decide(0, Demand(), counts)
        assert (taken.desired, taken.reason) == (3, "found running: 3")
        assert decide(1, Demand(in_flight=1), Counts(ready=3), last=taken).desired == 3


# By property.

demand_values = st.builds(
    Demand,
    in_flight=st.integers(0, 3000),
    queued=st.integers(0, 3000),
    arrivals=st.integers(0, 3000),
    last_active_s=st.none() | st.floats(0, 2000),
)
count_values = st.builds(
    Counts,
    starting=st.integers(0, 20),
    ready=st.integers(0, 20),
    outdated=st.integers(0, 20),
    failing=st.booleans(),
)


@st.composite
def spec_values(draw):
    low = draw(st.integers(0, 12))
    high = draw(st.integers(max(low, 1), 40))
    return make_spec(
        min_replicas=low,
        max_replicas=high,
        max_seqs=draw(st.integers(1, 64)),
        idle_s=draw(st.sampled_from([0, 1, 30, 90])),
    )


@st.composite
def lives(draw):
    """A spec, what happened to it second by second, and the decision after that."""
    spec = draw(spec_values())
    last = None
    for now_s, (demand, counts) in enumerate(
        draw(st.lists(st.tuples(demand_values, count_values), max_size=8))
    ):
        last = decide(float(now_s * 17), demand, counts, spec=spec, last=last)
    return spec, last


fixed = settings(derandomize=True, deadline=None, max_examples=120)


@fixed
@given(lives(), spec_values(), demand_values, count_values, st.floats(0, 5000))
def test_always_within_bounds(life, spec, demand, counts, later_s):
    _, last = life  # the spec may be changed at any time
    decision = decide(200 + later_s, demand, counts, spec=spec, last=last)
    assert spec.min_replicas <= decision.desired <= spec.max_replicas
    assert decision.reason


@fixed
@given(lives(), demand_values, count_values, st.floats(0, 5000), st.integers(0, 3), st.data())
def test_more_demand_never_means_fewer_replicas(life, demand, counts, later_s, which, data):
    spec, last = life
    field = ["in_flight", "queued", "arrivals"][which % 3]
    more = replace(demand, **{field: getattr(demand, field) + data.draw(st.integers(1, 1000))})
    now_s = 200 + later_s
    assert (
        decide(now_s, more, counts, spec=spec, last=last).desired
        >= decide(now_s, demand, counts, spec=spec, last=last).desired
    )


@fixed
@given(spec_values(), st.integers(0, 600), st.integers(0, 12), st.integers(0, 5))
def test_constant_demand_settles_and_stays(spec, total, running, start_ticks):
    demand = Demand(queued=total, arrivals=total)
    desired = simulate(
        spec, [demand] * 250, starting=Counts(ready=running), start_ticks=start_ticks
    )
    need = math.ceil(total / target_per_replica(spec))
    assert len(set(desired[200:])) == 1
    assert desired[-1] == min(max(need, spec.min_replicas), spec.max_replicas)
    falls = [after < before for before, after in pairwise(desired)]
    rises = [after > before for before, after in pairwise(desired)]
    assert not (any(falls) and any(rises))


@fixed
@given(lives(), demand_values, count_values, st.floats(0, 5000))
def test_down_by_half_at_most(life, demand, counts, later_s):
    spec, last = life
    if last is None:
        return
    running = counts.starting + counts.ready + counts.outdated
    before = last.desired
    decision = decide(200 + later_s, demand, counts, spec=spec, last=last)
    if running and before > 1:
        assert decision.desired >= before // 2


@fixed
@given(
    st.lists(
        st.tuples(st.integers(1, 25), st.booleans(), st.integers(0, 40)), min_size=1, max_size=20
    ),
    st.sampled_from([0, 1, 7, 30, 90]),
)
def test_at_zero_exactly_when_idle(phases, idle_s):
    """Phases of traffic and silence on one replica at most: zero iff silent for idle_s."""
    spec = make_spec(max_replicas=1, idle_s=idle_s)
    demands = []
    for length, busy, load in phases:
        demands += [Demand(queued=load, arrivals=load) if busy else Demand()] * length
    desired = simulate(spec, demands, start_ticks=0)
    last_active_s = None
    for now_s, demand in enumerate(demands):
        if demand.total:
            last_active_s = now_s
        idle = last_active_s is None or (now_s - last_active_s >= idle_s and not demand.total)
        assert (desired[now_s] == 0) == idle


@fixed
@given(demand_values, count_values, spec_values())
def test_a_restart_with_enough_running_starts_nothing(demand, counts, spec):
    running = counts.starting + counts.ready
    counts = replace(counts, outdated=0)
    need = math.ceil(demand.total / target_per_replica(spec))
    decision = decide(5000, demand, counts, spec=spec)
    if running >= max(need, spec.min_replicas, 1):
        assert decision.desired <= running


@fixed
@given(lives(), demand_values, count_values)
def test_pure(life, demand, counts):
    spec, last = life
    decisions = [decide(300, demand, counts, spec=spec, last=last) for _ in range(2)]
    assert decisions[0] == decisions[1]
