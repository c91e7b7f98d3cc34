"""share(): who gets replicas while they are short, by example and then by law."""

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.budget import TURN_S, Budget, Claim, Share, share

fixed = settings(derandomize=True, deadline=None, max_examples=120)
GIB = 2**30


def counts(claims, budget):
    return {name: got.replicas for name, got in share(claims, budget).items()}


def idle(name, running, **more):
    return Claim(function=name, desired=running, running=running, **more)


def working(name, running, **more):
    return Claim(function=name, desired=running, running=running, busy=running, **more)


def waiting(name, need, **more):
    return Claim(function=name, desired=need, need=need, **more)


# By example.


def test_who_is_not_short_gets_all_at_once():
    claims = [waiting("a", 3), idle("b", 2), Claim(function="c", desired=0)]
    for budget in (Budget(), Budget(replicas=5), Budget(replicas=5, memory_bytes=0)):
        assert share(claims, budget) == {
            "a": Share(replicas=3, starts=3),
            "b": Share(replicas=2, starts=0),
            "c": Share(replicas=0, starts=0),
        }


def test_the_higher_priority_first():
    claims = [waiting("low", 3), waiting("chat", 3, priority=10)]
    got = share(claims, Budget(replicas=4))
    assert (got["chat"].replicas, got["low"].replicas) == (3, 1)
    assert got["low"].reason == ("the budget of 4 replicas is short: kept for 'chat' (priority 10)")
    assert got["chat"].reason is None


def test_within_a_priority_waiting_requests_then_floors_then_idle_ones():
    claims = [
        Claim(function="prewarmed", desired=2, floor=2),
        idle("idle", 2, value=100.0),
        waiting("waiting", 2),
    ]
    assert counts(claims, Budget(replicas=2)) == {"prewarmed": 0, "idle": 0, "waiting": 2}
    assert counts(claims, Budget(replicas=3)) == {"prewarmed": 1, "idle": 0, "waiting": 2}
    assert counts(claims, Budget(replicas=5)) == {"prewarmed": 2, "idle": 1, "waiting": 2}


def test_who_waits_comes_before_idle_replicas_of_any_priority():
    claims = [idle("chat", 1, priority=1), waiting("low", 1)]
    assert counts(claims, Budget(replicas=1)) == {"chat": 0, "low": 1}


def test_a_priority_counts_among_idle_replicas_too():
    claims = [idle("chat", 1, priority=1), idle("low", 1, value=9.0)]
    assert counts(claims, Budget(replicas=1)) == {"chat": 1, "low": 0}


def test_idle_ones_go_by_their_value_for_a_byte():
    claims = [
        idle("dear", 1, value=3.0, replica_bytes=30 * GIB),
        idle("cheap", 1, value=2.0, replica_bytes=10 * GIB),
        waiting("new", 1, replica_bytes=25 * GIB),
    ]
    got = share(claims, Budget(memory_bytes=40 * GIB))
    assert {name: each.replicas for name, each in got.items()} == {"dear": 0, "cheap": 1, "new": 1}
    assert got["new"].starts == 0  # "dear" has to end first
    assert got["new"].reason == "the budget of 40 GiB is short: it starts when others have ended"
    assert got["dear"].reason == (
        "the budget of 40 GiB is short: kept for 'new' (priority 0) and 1 more"
    )


def test_the_least_valuable_sleep_before_anybody_goes():
    claims = [
        idle("a", 1, value=3.0, replica_bytes=10 * GIB, asleep_bytes=GIB),
        idle("b", 1, value=2.0, replica_bytes=10 * GIB, asleep_bytes=GIB),
        idle("c", 1, value=1.0, replica_bytes=10 * GIB, asleep_bytes=GIB),
        waiting("new", 1, replica_bytes=10 * GIB),
    ]
    got = share(claims, Budget(memory_bytes=25 * GIB))
    assert [got[name].replicas for name in ("a", "b", "c", "new")] == [1, 1, 1, 1]
    assert [got[name].asleep for name in ("a", "b", "c", "new")] == [0, 1, 1, 0]
    assert got["c"].reason == "the budget of 25 GiB is short: 1 of its idle replicas sleep"
    assert got["new"].starts == 0
    slept = [replace(each, asleep=each.function in ("b", "c")) for each in claims]
    assert share(slept, Budget(memory_bytes=25 * GIB))["new"].starts == 1


def test_several_functions_live_on_one_accelerator_by_sleeping():
    names = [f"f{n}" for n in range(20)]
    claims = [
        idle(name, 1, value=1.0 + n, replica_bytes=20 * GIB, asleep_bytes=2 * GIB, asleep=1)
        for n, name in enumerate(names)
    ]
    got = share(claims, Budget(memory_bytes=80 * GIB))
    assert all(each.replicas == 1 for each in got.values())
    assert [name for name in names if not got[name].asleep] == ["f18", "f19"]


def test_max_min_fair_between_those_who_wait():
    claims = [waiting("a", 10), waiting("b", 2), waiting("c", 10)]
    assert counts(claims, Budget(replicas=9)) == {"a": 4, "b": 2, "c": 3}


def test_who_works_on_more_than_a_fair_share_drains_for_who_waits():
    claims = [working("greedy", 4), waiting("b", 3)]
    got = share(claims, Budget(replicas=4))
    assert {name: each.replicas for name, each in got.items()} == {"greedy": 2, "b": 2}
    assert got["b"].starts == 0
    drained = [replace(claims[0], running=2, busy=2, desired=4, draining=2, need=4), claims[1]]
    again = share(drained, Budget(replicas=4))
    assert (again["greedy"].replicas, again["b"].replicas) == (2, 2)
    assert (again["greedy"].starts, again["b"].starts) == (0, 0)
    ended = [replace(drained[0], draining=0), claims[1]]
    assert share(ended, Budget(replicas=4))["b"].starts == 2


def test_who_works_is_not_taken_for_floors_or_idle_ones_or_a_smaller_budget():
    claims = [
        working("low", 3, priority=-5),
        Claim(function="prewarmed", desired=2, floor=2, priority=9),
        idle("held", 1, priority=9),
    ]
    assert counts(claims, Budget(replicas=3)) == {"low": 3, "prewarmed": 0, "held": 0}
    assert counts(claims, Budget(replicas=1)) == {"low": 3, "prewarmed": 0, "held": 0}
    assert counts(claims, Budget(replicas=4)) == {"low": 3, "prewarmed": 1, "held": 0}


def test_the_only_one_that_works_stays_until_the_others_have_waited_long():
    works, waits = working("a", 1), waiting("b", 1)
    assert counts([works, waits], Budget(replicas=1)) == {"a": 1, "b": 0}
    long = replace(waits, waited_s=TURN_S)
    assert counts([works, long], Budget(replicas=1)) == {"a": 0, "b": 1}
    new = replace(works, worked_s=5.0)
    assert counts([new, long], Budget(replicas=1)) == {"a": 1, "b": 0}


def test_turns_are_as_short_as_the_patience_of_those_who_wait():
    works = working("a", 1, worked_s=12.0)
    waits = replace(waiting("b", 1), turn_s=10.0, waited_s=10.0)
    assert counts([works, waits], Budget(replicas=1)) == {"a": 0, "b": 1}
    assert counts([replace(works, worked_s=9.0), waits], Budget(replicas=1)) == {"a": 1, "b": 0}
    assert counts([works, replace(waits, waited_s=9.0)], Budget(replicas=1)) == {"a": 1, "b": 0}
    hasty = replace(waits, turn_s=0.5, waited_s=1.0)
    assert counts([works, hasty], Budget(replicas=1)) == {"a": 1, "b": 0}, "5 s at least"
    served = replace(works, turn_s=1.0)  # who has its replica sets no pace
    assert counts([served, replace(waits, turn_s=TURN_S)], Budget(replicas=1)) == {"a": 1, "b": 0}


def test_a_higher_priority_waits_for_no_turn():
    claims = [working("low", 1, worked_s=1.0), waiting("chat", 1, priority=1)]
    assert counts(claims, Budget(replicas=1)) == {"low": 0, "chat": 1}


def test_what_can_never_fit_takes_nothing_from_others():
    claims = [
        working("a", 2, replica_bytes=30 * GIB),
        waiting("huge", 1, priority=9, replica_bytes=99 * GIB),
    ]
    got = share(claims, Budget(memory_bytes=50 * GIB))
    assert (got["a"].replicas, got["huge"].replicas) == (2, 0)
    assert got["huge"].reason == "the budget of 50 GiB is short: there is room for 0 of 1"


def test_a_tie_stays_with_what_runs():
    assert counts([idle("b", 1), waiting("x", 1)], Budget(replicas=2)) == {"b": 1, "x": 1}
    floors = [Claim(function=name, desired=1, floor=1) for name in ("a", "b")]
    floors[1] = replace(floors[1], running=1)
    assert counts(floors, Budget(replicas=1)) == {"a": 0, "b": 1}


# By law.


@st.composite
def claim_lists(draw, *, sizes=True):
    claims = []
    for n in range(draw(st.integers(1, 7))):
        running = draw(st.integers(0, 5))
        busy = draw(st.integers(0, running))
        desired = draw(st.integers(0, 8))
        size = draw(st.integers(1, 40)) if sizes else 0
        claims.append(
            Claim(
                function=f"f{n}",
                desired=desired,
                need=draw(st.integers(0, desired)),
                floor=draw(st.integers(0, desired)),
                running=running,
                busy=busy,
                asleep=draw(st.integers(0, running - busy)),
                draining=draw(st.integers(0, 2)),
                priority=draw(st.sampled_from([-3, 0, 0, 0, 7])),
                replica_bytes=size,
                asleep_bytes=draw(st.none() | st.integers(0, size)),
                value=draw(st.sampled_from([0.0, 1.0, 5.0])),
                waited_s=draw(st.sampled_from([0.0, 5.0, 31.0, 50.0])),
                worked_s=draw(st.sampled_from([1.0, math.inf])),
            )
        )
    return claims


budgets = st.builds(
    Budget,
    replicas=st.none() | st.integers(0, 30),
    memory_bytes=st.none() | st.integers(0, 400),
)


def limit(value):
    return math.inf if value is None else value


def memory(claim, got):
    """Of what it may have, those asleep that must sleep."""
    asleep_bytes = claim.replica_bytes if claim.asleep_bytes is None else claim.asleep_bytes
    return (got.replicas - got.asleep) * claim.replica_bytes + got.asleep * asleep_bytes


@fixed
@given(claim_lists(), budgets)
def test_never_over_the_budget_unless_busy_ones_are(claims, budget):
    got = share(claims, budget)
    over_replicas = sum(each.replicas for each in got.values()) > limit(budget.replicas)
    total_bytes = sum(memory(claim, got[claim.function]) for claim in claims)
    if over_replicas or total_bytes > limit(budget.memory_bytes):
        for claim in claims:
            assert got[claim.function].replicas <= claim.busy
    for claim in claims:
        each = got[claim.function]
        assert 0 <= each.replicas <= claim.desired
        assert 0 <= each.asleep <= max(0, min(claim.running, each.replicas) - claim.busy)
        assert (each.reason is None) == (
            each.replicas == claim.desired
            and each.starts == max(0, claim.desired - claim.running)
            and each.asleep == 0
        )


@fixed
@given(claim_lists(), budgets)
def test_starts_have_room_beside_all_that_is_still_there(claims, budget):
    got = share(claims, budget)
    for claim in claims:
        assert got[claim.function].starts <= max(0, got[claim.function].replicas - claim.running)
    if not any(each.starts for each in got.values()):
        return
    replicas = sum(c.running + c.draining + got[c.function].starts for c in claims)
    assert replicas <= limit(budget.replicas)
    now_bytes = 0
    for claim in claims:
        asleep_bytes = claim.replica_bytes if claim.asleep_bytes is None else claim.asleep_bytes
        full = claim.running - claim.asleep + claim.draining + got[claim.function].starts
        now_bytes += full * claim.replica_bytes + claim.asleep * asleep_bytes
    assert now_bytes <= limit(budget.memory_bytes)


@fixed
@given(claim_lists(), budgets)
def test_no_room_is_left_that_somebody_could_use(claims, budget):
    got = share(claims, budget)
    left_replicas = limit(budget.replicas) - sum(each.replicas for each in got.values())
    left_bytes = limit(budget.memory_bytes) - sum(memory(c, got[c.function]) for c in claims)
    for claim in claims:
        each = got[claim.function]
        if each.replicas < claim.desired:
            assert left_replicas < 1 or left_bytes < claim.replica_bytes
        if each.asleep:
            assert left_bytes < claim.replica_bytes - claim.asleep_bytes


@fixed
@given(claim_lists(sizes=False), st.integers(0, 40), st.integers(0, 10))
def test_a_larger_budget_takes_from_nobody(claims, replicas, more):
    few = counts(claims, Budget(replicas=replicas))
    many = counts(claims, Budget(replicas=replicas + more))
    assert all(many[name] >= few[name] for name in few)


@fixed
@given(claim_lists(), budgets, st.randoms(use_true_random=False))
def test_the_order_of_the_claims_does_not_matter(claims, budget, random):
    shuffled = random.sample(claims, len(claims))
    assert share(shuffled, budget) == share(claims, budget)


@fixed
@given(claim_lists(sizes=False), st.integers(0, 30))
def test_what_works_is_taken_only_for_requests_that_wait_and_rank_no_lower(claims, replicas):
    got = share(claims, Budget(replicas=replicas))
    for claim in claims:
        if got[claim.function].replicas < min(claim.busy, claim.desired):
            assert any(
                other.need > max(other.running, other.busy)
                and other.function != claim.function
                and other.priority >= claim.priority
                for other in claims
            )


@fixed
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=8),
    st.lists(st.integers(0, 9), min_size=8, max_size=8),
    st.integers(0, 40),
)
def test_max_min_fairness_whatever_runs(needs, running, replicas):
    """Nobody has two more than somebody of the same priority who would take another one."""
    claims = [
        Claim(function=f"f{n}", desired=need, need=need, running=run, busy=min(run, need))
        for n, (need, run) in enumerate(zip(needs, running, strict=False))
    ]
    got = counts(claims, Budget(replicas=replicas))
    wanting = [got[c.function] for c in claims if got[c.function] < c.desired]
    if wanting and sum(got.values()) <= replicas and any(c.need > c.running for c in claims):
        waits = [got[c.function] for c in claims if got[c.function] < c.need > c.running]
        if waits:
            assert max(got.values()) <= min(waits) + 1


def simulate_turns(functions, replicas, *, seconds, start_s):
    """All have requests all the time. Per function, the longest time without a ready replica."""
    budget = Budget(replicas=replicas)
    ready = {name: [] for name in functions}  # since when
    starting = {name: [] for name in functions}
    without = dict.fromkeys(functions, 0)
    longest = dict.fromkeys(functions, 0)
    for now_s in range(seconds):
        for name in functions:
            done = [at for at in starting[name] if now_s - at >= start_s]
            starting[name] = [at for at in starting[name] if now_s - at < start_s]
            ready[name] += [now_s] * len(done)
            without[name] = 0 if ready[name] else without[name] + 1
            longest[name] = max(longest[name], without[name])
        claims = [
            Claim(
                function=name,
                desired=2,
                need=2,
                running=len(ready[name]) + len(starting[name]),
                busy=len(ready[name]) + len(starting[name]),
                waited_s=without[name],
                worked_s=now_s - max(ready[name], default=now_s),
            )
            for name in functions
        ]
        for name, got in share(claims, budget).items():
            alive = len(ready[name]) + len(starting[name])
            for _ in range(alive - got.replicas):
                (ready[name] or starting[name]).pop()
            starting[name] += [now_s] * got.starts
        assert sum(len(ready[name]) + len(starting[name]) for name in functions) <= replicas
    return longest


def test_nobody_of_the_same_priority_starves():
    for many, replicas in ((2, 1), (5, 1), (5, 3), (9, 2)):
        functions = [f"f{n}" for n in range(many)]
        longest = simulate_turns(functions, replicas, seconds=2000, start_s=3)
        turns = math.ceil(many / replicas)
        assert max(longest.values()) <= turns * (TURN_S + 3 + 2)
