"""want(): what the demand itself asks for, by example and then by law."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glowplug.spec import FunctionSpec
from scaler.load import NO_LOAD, average, observe, replicas_for
from scaler.plan import Counts, Demand, target_per_replica
from scaler.reactive import AT_REST, Pace, found_running, panic_window_s, want

NOTHING = Counts()
fixed = settings(derandomize=True, deadline=None, max_examples=150)


def make_spec(**changes):
    return FunctionSpec(**{"name": "f", "model": "m", "max_replicas": 40, **changes})


def ask(load, now_s, demand, counts, *, spec=None, before=None, pace=AT_REST, **more):
    spec = spec or make_spec()
    running = max(counts.starting + counts.ready, counts.outdated)
    return want(
        load,
        now_s,
        demand=demand,
        counts=counts,
        spec=spec,
        target=target_per_replica(spec),
        before=running if before is None else before,
        pace=pace,
        **more,
    )


class Life:
    """One function on a fleet that does what is wanted, starts taking `start_s`; `ready` run when
    the scaler starts."""

    def __init__(self, *, spec=None, start_s=2.0, ready=0, now_s=0.0, told_s=None):
        self.spec = spec or make_spec()
        self.start_s, self.told_s = start_s, told_s
        self.now_s, self.load, self.pace = now_s, NO_LOAD, found_running(now_s, ready)
        self.births = [now_s - 1e6] * ready
        self.desired = ready
        self.why = []

    @property
    def counts(self):
        ready = sum(self.now_s - born >= self.start_s for born in self.births)
        return Counts(starting=len(self.births) - ready, ready=ready)

    def step(self, in_flight=0, *, queued=0, arrivals=0, after_s=1.0, is_idle=False):
        self.now_s += after_s
        demand = Demand(in_flight=in_flight, queued=queued, arrivals=arrivals)
        self.load = observe(self.load, self.now_s, demand.total)
        got = ask(
            self.load,
            self.now_s,
            demand,
            self.counts,
            spec=self.spec,
            before=self.desired,
            pace=self.pace,
            is_idle=is_idle,
            start_s=self.told_s,
        )
        assert bool(got.reason) == (got.replicas != self.desired)
        if got.reason:
            self.why.append(got.reason)
        self.pace, self.desired = got.pace, got.replicas
        self.births = (self.births + [self.now_s] * got.replicas)[: got.replicas]
        return got.replicas

    def steps(self, count, in_flight, **more):
        return [self.step(in_flight, **more) for _ in range(count)]


# From zero.


def test_from_zero_at_once_to_what_waits():
    got = ask(NO_LOAD, 0, Demand(queued=200, arrivals=200), NOTHING)
    assert (got.replicas, got.reason) == (19, "200 requests queued, none running")
    assert ask(NO_LOAD, 0, Demand(queued=1), NOTHING).reason == "1 request queued, none running"


def test_what_the_maximum_leaves_is_said():
    spec = make_spec(max_replicas=4)
    got = ask(NO_LOAD, 0, Demand(queued=200), NOTHING, spec=spec)
    assert (got.replicas, got.reason) == (
        4,
        "200 requests queued, none running (max_replicas is 4)",
    )
    load = observe(NO_LOAD, 0, 200)
    more = ask(load, 60, Demand(in_flight=200), Counts(ready=3), spec=spec)
    assert more.reason == "60 s with 11 requests a replica ask for 19 (max_replicas is 4)"


def test_from_zero_for_a_request_that_left_again():
    got = ask(NO_LOAD, 0, Demand(arrivals=1), NOTHING)
    assert (got.replicas, got.reason) == (1, "a request came and left, none running")
    assert ask(NO_LOAD, 0, Demand(arrivals=1), Counts(failing=True)).replicas == 0
    assert ask(NO_LOAD, 0, Demand(queued=1), Counts(failing=True)).replicas == 1


def test_what_a_draining_replica_finishes_starts_nothing():
    load = observe(NO_LOAD, 0, 500)
    assert ask(load, 60, Demand(in_flight=500), NOTHING).replicas == 0


def test_activation_replicas_start_with_the_first_request():
    spec = make_spec(activation_replicas=3)
    got = ask(NO_LOAD, 0, Demand(queued=1), NOTHING, spec=spec)
    assert got.replicas == 3
    assert got.reason == "1 request queued, none running, activation_replicas is 3"
    assert ask(NO_LOAD, 0, Demand(queued=50), NOTHING, spec=spec).replicas == 5
    assert ask(NO_LOAD, 0, Demand(), NOTHING, spec=spec).replicas == 0


def test_activated_replicas_are_held_for_a_window():
    life = Life(spec=make_spec(activation_replicas=4))
    assert life.step(queued=1) == 4
    assert life.steps(59, 1) == [4] * 59
    assert life.steps(70, 1)[:2] == [2, 1]
    assert life.desired == 1


def test_more_that_wait_while_none_is_ready_raise_at_once():
    life = Life(start_s=5.0)
    assert life.step(queued=1, after_s=0.0) == 1
    assert life.step(in_flight=16, queued=184, after_s=0.1) == 19
    assert life.why[-1] == "200 requests at once, 11 per replica"
    assert life.steps(50, 3) == [19] * 50  # held as a panic would be


# Windows and panic.


def test_steady_load_settles_at_its_mean():
    life = Life(ready=4)
    assert life.steps(200, 40)[-1] == 4
    life = Life(ready=1)
    assert life.steps(200, 40)[-1] == 4


def test_growth_follows_the_stable_window():
    life = Life(ready=4)
    life.steps(90, 40)
    grown = life.steps(70, 55)
    assert grown[0] == 4
    assert grown[-1] == 5
    assert life.why[-1] == "60 s with 11 requests a replica ask for 5"


def test_twice_what_runs_is_a_panic_within_the_short_window():
    life = Life(ready=2)
    life.steps(70, 20)
    seconds = 0
    while life.desired == 2:
        life.step(16, queued=64)
        seconds += 1
    assert seconds <= 4
    assert "in the last 6 s" in life.why[-1]


def test_a_fast_restore_has_a_shorter_panic_window():
    assert panic_window_s(None) == 6.0
    assert [panic_window_s(start_s) for start_s in (0.05, 0.5, 1.0, 2.0, 3.0, 90.0)] == [
        1.0,
        1.0,
        2.0,
        4.0,
        6.0,
        6.0,
    ]
    slow, fast = Life(ready=2), Life(ready=2, told_s=0.2)
    for life in (slow, fast):
        life.steps(90, 20)
        life.step(32, queued=20)
    assert fast.step(32, queued=20) == 4
    assert slow.step(32, queued=20) == 2


def test_somebody_waited_is_a_panic_however_many_run():
    """Of 10 replicas with 160 sequences, 176 requests leave 16 waiting; that is not twice as much,
    and the stable window would take a minute to see it."""
    life = Life(ready=10)
    life.steps(90, 105)
    seconds = 0
    while life.desired == 10:
        life.step(160, queued=16)
        seconds += 1
    assert seconds <= 7
    assert life.desired >= 15


def test_a_panic_lowers_nothing_for_a_window():
    life = Life(ready=1)
    life.steps(10, 80)
    peak = life.desired
    assert peak == 8
    held = life.steps(80, 1)
    assert held[:50] == [8] * 50
    assert held[66:] == [1] * 14


def test_up_no_more_than_twice_in_a_second_however_often_it_is_asked():
    life = Life(ready=1, start_s=0.0)
    life.steps(2, 400, after_s=3)
    seen = [life.step(400, after_s=0.1) for _ in range(70)]
    for now, then in zip(seen, seen[10:], strict=False):
        assert then <= max(2 * now, now + 1)
    assert seen[-1] == 37
    assert any("37 are needed, doubling once a second" in why for why in life.why)


def test_a_queue_is_worked_off_within_its_time():
    busy = Demand(in_flight=32, queued=400)
    got = ask(NO_LOAD, 0, busy, Counts(ready=2), service_s=6.0)
    assert got.replicas == 4  # of five: twice in the first second
    assert got.reason == (
        "400 requests queued would take too long, 5 are needed, doubling once a second"
    )
    assert ask(NO_LOAD, 0, busy, Counts(ready=4), service_s=6.0).replicas == 5
    assert ask(NO_LOAD, 0, busy, Counts(ready=5), service_s=6.0).replicas >= 3
    hurried = ask(NO_LOAD, 0, busy, Counts(ready=20), service_s=6.0, drain_s=6.0)
    assert hurried.replicas == 25
    assert ask(NO_LOAD, 0, busy, Counts(ready=2)).replicas == 2  # service time not known


# Down.


def test_down_by_half_in_a_second_and_never_while_one_starts():
    quiet = ask(NO_LOAD, 1000, Demand(in_flight=1), Counts(ready=9))
    assert (quiet.replicas, quiet.reason) == (5, "no more than 1 needed for 60 s")
    again = ask(NO_LOAD, 1000.5, Demand(), Counts(ready=9), before=5, pace=quiet.pace)
    assert again.replicas == 5
    later = ask(NO_LOAD, 1001.0, Demand(), Counts(ready=5), before=5, pace=quiet.pace)
    assert later.replicas == 3
    assert ask(NO_LOAD, 2000, Demand(), Counts(ready=8, starting=1)).replicas == 9


def test_to_one_only_after_a_minute_in_which_one_was_enough():
    life = Life(ready=2)
    life.steps(70, 20)
    lowered = life.steps(80, 1)
    assert lowered[:59] == [2] * 59
    assert lowered[65:] == [1] * 15  # the short window takes some seconds to see it


def test_the_last_one_stays_until_the_function_is_idle():
    life = Life(ready=1)
    assert life.steps(300, 0) == [1] * 300
    assert life.step(is_idle=True) == 0


def test_idle_goes_by_halves_whatever_a_window_holds():
    life = Life(ready=1)
    life.steps(10, 80)
    assert [life.step(is_idle=True) for _ in range(5)] == [4, 2, 1, 0, 0]
    assert life.pace == AT_REST


@pytest.mark.parametrize("most", [1, 5])
def test_a_start_is_not_called_off(most):
    spec = make_spec(max_replicas=most)
    starting = Counts(starting=1)
    assert ask(NO_LOAD, 99, Demand(), starting, spec=spec, is_idle=True).replicas == 1
    assert ask(NO_LOAD, 99, Demand(), Counts(ready=1), spec=spec, is_idle=True).replicas == 0


def test_max_replicas_lowered_counts_at_once():
    spec = make_spec(max_replicas=2)
    assert ask(observe(NO_LOAD, 0, 80), 99, Demand(in_flight=80), Counts(ready=8), spec=spec)
    got = ask(NO_LOAD, 99, Demand(in_flight=80), Counts(ready=7, starting=1), spec=spec)
    assert got.replicas == 2
    one = make_spec(max_replicas=1)
    assert ask(NO_LOAD, 99, Demand(in_flight=80), Counts(ready=8), spec=one).replicas == 1


# Restarts, rolls and crashes.


def test_a_restart_holds_what_runs_until_the_windows_are_full():
    life = Life(ready=7, now_s=500.0)
    assert life.steps(200, 75) == [7] * 200
    late = Life(ready=7, now_s=500.0)
    assert late.steps(8, 0) == [7] * 8  # the activator has not reported yet
    assert late.steps(100, 75) == [7] * 100
    quiet = Life(ready=7, now_s=500.0)
    assert quiet.steps(90, 0)[-1] == 1


def test_what_is_held_comes_back_where_it_was_cut():
    """The budget left it only one of three."""
    pace = Pace(held=3, held_until_s=100.0)
    got = ask(NO_LOAD, 50.0, Demand(), Counts(ready=1), pace=pace)
    assert (got.replicas, got.reason) == (
        2,
        "what runs is kept, 3 are needed, doubling once a second",
    )
    assert ask(NO_LOAD, 100.0, Demand(), Counts(ready=1), pace=pace).replicas == 1


def test_a_roll_is_not_counted_twice():
    load = observe(NO_LOAD, 0, 33)
    got = ask(load, 100, Demand(in_flight=33), Counts(starting=3, outdated=3), before=3)
    assert got.replicas == 3
    assert ask(load, 100, Demand(in_flight=33), Counts(outdated=3), before=3).replicas == 3


def test_what_died_is_wanted_back():
    life = Life(ready=4)
    life.steps(70, 40)
    life.births = []
    assert life.step(queued=40) == 4


# Laws.

values = st.integers(0, 3000)
demands = st.builds(Demand, in_flight=values, queued=values, arrivals=values)
counts_values = st.builds(
    Counts,
    starting=st.integers(0, 20),
    ready=st.integers(0, 20),
    outdated=st.integers(0, 20),
    failing=st.booleans(),
)
gaps = st.sampled_from([0.01, 0.3, 1.0, 1.0, 7.0, 61.0, 4000.0])
series = st.lists(st.tuples(gaps, st.integers(0, 300)), min_size=1, max_size=60)


@st.composite
def specs(draw):
    most = draw(st.integers(1, 40))
    return make_spec(
        max_replicas=most,
        activation_replicas=draw(st.integers(1, most)),
        max_seqs=draw(st.integers(1, 64)),
    )


@st.composite
def paces(draw):
    times = st.floats(-200, 100)
    return Pace(
        held=draw(st.integers(0, 50)),
        held_until_s=draw(st.floats(-200, 160)),
        crowded_s=draw(times),
        raised_s=draw(times),
        raise_limit=draw(st.integers(0, 80)),
        lowered_s=draw(times),
    )


def loaded(steps, end_s=100.0):
    now_s = end_s - sum(gap_s for gap_s, _ in steps)
    load = NO_LOAD
    for gap_s, demand in steps:
        now_s += gap_s
        load = observe(load, min(now_s, end_s), demand)
    return load


asked = st.fixed_dictionaries(
    {
        "before": st.integers(0, 40),
        "pace": paces(),
        "is_idle": st.booleans(),
        "service_s": st.none() | st.floats(0.01, 100),
        "start_s": st.none() | st.floats(0.01, 100),
    }
)


@fixed
@given(series, demands, counts_values, specs(), asked)
def test_within_bounds_with_a_reason_where_something_changes(steps, demand, counts, spec, more):
    got = ask(loaded(steps), 100.0, demand, counts, spec=spec, **more)
    assert 0 <= got.replicas <= spec.max_replicas
    if got.replicas > more["before"]:
        assert got.reason
        assert got.reason != "what runs is kept" or got.replicas <= max(
            more["pace"].held, counts.starting + counts.ready, counts.outdated, 1
        )


@fixed
@given(series, st.data(), demands, counts_values, specs(), asked)
def test_more_demand_never_wants_fewer(steps, data, demand, counts, spec, more):
    higher = [(gap_s, d + data.draw(st.integers(0, 200))) for gap_s, d in steps]
    # Knots are kept where demand changes: ask with the same ones, so that windows are the same.
    low = loaded([(gap_s, 2 * d + n % 2) for n, (gap_s, d) in enumerate(steps)])
    high = loaded([(gap_s, 2 * d + n % 2) for n, (gap_s, d) in enumerate(higher)])
    if low.times != high.times:
        return
    bigger = replace(
        demand,
        in_flight=demand.in_flight + data.draw(st.integers(0, 500)),
        queued=demand.queued + data.draw(st.integers(0, 500)),
        arrivals=demand.arrivals + data.draw(st.integers(0, 500)),
    )
    few = ask(low, 100.0, demand, counts, spec=spec, **more).replicas
    assert ask(high, 100.0, bigger, counts, spec=spec, **more).replicas >= few


@fixed
@given(specs(), counts_values, st.lists(gaps, min_size=1, max_size=200), st.booleans())
def test_no_traffic_never_raises(spec, counts, steps, is_idle):
    """ray#61731: from 0 to the maximum without a request."""
    running = max(counts.starting + counts.ready, counts.outdated)
    for ready in (0, min(running, spec.max_replicas)):
        life = Life(spec=spec, ready=ready)
        seen = [ready, *(life.step(after_s=gap_s, is_idle=is_idle) for gap_s in steps)]
        assert all(after <= before for before, after in pairwise(seen))
        assert is_idle or seen[-1] >= min(ready, 1)


@fixed
@given(specs(), series, st.integers(0, 40))
def test_up_at_most_twice_and_down_at_most_half_a_second(spec, steps, ready):
    life = Life(spec=spec, ready=min(ready, spec.max_replicas), start_s=0.5)
    seen = [(life.now_s, life.desired)]
    for gap_s, demand in steps:
        is_ready = life.counts.ready > 0
        life.step(demand, queued=demand // 2, arrivals=demand, after_s=gap_s)
        within = [count for at_s, count in seen if life.now_s - at_s < 0.95]
        before = seen[-1][1]
        if is_ready and within and life.desired > before:
            assert life.desired <= max(2 * max(within), max(within) + 1)
        assert life.desired >= before // 2
        seen.append((life.now_s, life.desired))


@fixed
@given(st.integers(1, 40), st.integers(1, 16), st.floats(0, 30), st.integers(0, 300))
def test_brief_demand_between_looks_is_never_lost(ready, max_seqs, lasted, requests):
    """It comes and goes between two looks of a minute's distance, but has its share of the mean."""
    spec = make_spec(max_seqs=max_seqs, max_replicas=1000)
    load = NO_LOAD
    for at_s, demand in ((60.0, 0), (80.0, requests), (80.0 + lasted, 0)):
        load = observe(load, at_s, demand)
    target = target_per_replica(spec)
    mean = requests * lasted / 60
    got = ask(load, 120.0, Demand(arrivals=requests), Counts(ready=ready), spec=spec)
    assert average(load, 120.0, 60.0) == pytest.approx(mean)
    assert got.replicas >= min(replicas_for(mean * 0.999, target), 2 * ready)
    if requests:
        assert ask(load, 120.0, Demand(arrivals=requests), NOTHING, spec=spec).replicas >= 1


@fixed
@given(specs(), st.integers(1, 40), st.floats(0, 3), st.integers(1, 100))
def test_a_restart_drops_nothing_that_is_needed(spec, running, reported_s, seconds):
    """What runs is just enough; the first report comes late; nothing is ever released."""
    ready = min(running, spec.max_replicas)
    demand = ready * target_per_replica(spec)
    life = Life(spec=spec, ready=ready, now_s=50.0)
    life.step(0, after_s=0.0)
    life.step(demand, after_s=reported_s)
    assert set(life.steps(seconds, demand)) == {ready}


@fixed
@given(specs(), st.integers(0, 600), st.integers(0, 12), st.sampled_from([0.1, 2.0, 20.0]))
def test_constant_demand_settles(spec, demand, ready, start_s):
    life = Life(spec=spec, ready=min(ready, spec.max_replicas), start_s=start_s)
    seen = [life.step(queued=demand, arrivals=demand)]
    seen += [life.step(demand, arrivals=demand) for _ in range(400)]
    need = min(replicas_for(demand, target_per_replica(spec)), spec.max_replicas)
    assert set(seen[300:]) == {max(need, min(seen[299], 1))}
    falls = [after < before for before, after in pairwise(seen)]
    rises = [after > before for before, after in pairwise(seen)]
    if ready <= need and spec.activation_replicas == 1:
        assert not any(falls)
    assert not any(falls[rises.index(True) :]) or spec.activation_replicas > 1 if any(rises) else 1


@fixed
@given(specs(), series, st.integers(0, 40), st.sampled_from([0.0, 4.0, 70.0]), st.booleans())
def test_without_news_nothing_changes_before_the_recheck(spec, steps, ready, later_s, is_idle):
    life = Life(spec=spec, ready=min(ready, spec.max_replicas), start_s=0.5)
    for gap_s, demand in steps:
        life.step(demand, queued=demand // 3, arrivals=demand, after_s=gap_s)
    demand = Demand(in_flight=life.load.demand)
    counts, pace, before = life.counts, life.pace, life.desired
    for _ in range(3):
        now_s = life.now_s = life.now_s + later_s
        got = ask(
            life.load,
            now_s,
            demand,
            counts,
            spec=spec,
            before=before,
            pace=pace,
            is_idle=is_idle,
        )
        for ahead_s in (0.5, 0.999, 3.0, 59.0, 61.0, 500.0):
            if ahead_s < got.recheck_s and got.replicas == before:
                again = ask(
                    life.load,
                    now_s + ahead_s,
                    demand,
                    counts,
                    spec=spec,
                    before=got.replicas,
                    pace=got.pace,
                    is_idle=is_idle,
                )
                if got.recheck_s == math.inf:
                    assert again.replicas == got.replicas
        pace, before = got.pace, got.replicas


def test_what_is_settled_asks_for_no_recheck():
    life = Life(ready=4)
    life.steps(200, 40)
    steady = ask(life.load, life.now_s, Demand(in_flight=40), Counts(ready=4), pace=life.pace)
    assert steady.recheck_s == math.inf
    changed = observe(life.load, life.now_s, 90)
    soon = ask(changed, life.now_s, Demand(in_flight=90), Counts(ready=4), pace=life.pace)
    assert soon.recheck_s == 1.0
    one = ask(observe(NO_LOAD, 0, 1), 1, Demand(in_flight=1), Counts(ready=1))
    assert one.recheck_s == math.inf
    full = ask(observe(NO_LOAD, 0, 11), 1, Demand(in_flight=11), Counts(ready=1))
    assert (full.replicas, full.recheck_s) == (1, 1.0)
    full = ask(observe(NO_LOAD, 0, 11), 61, Demand(in_flight=11), Counts(ready=1))
    assert (full.replicas, full.recheck_s) == (1, math.inf)
    mixed = observe(observe(observe(NO_LOAD, 0, 40), 10, 0), 17, 10)
    later = ask(mixed, 20, Demand(in_flight=10), Counts(ready=1))
    assert (later.replicas, later.recheck_s) == (1, 1.0)


@fixed
@given(series, demands, counts_values, specs(), asked)
def test_pure(steps, demand, counts, spec, more):
    load = loaded(steps)
    first = ask(load, 100.0, demand, counts, spec=spec, **more)
    assert ask(load, 100.0, demand, counts, spec=spec, **more) == first
