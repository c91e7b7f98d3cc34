"""The simulator's books, against a count second by second that knows nothing of events."""

import math
from array import array
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glowplug.spec import FunctionSpec
from scaler.outlook import Outlook
from scaler.simulate.baselines import FixedKeepAlive, HybridHistogram
from scaler.simulate.glowplug import Planned, always
from scaler.simulate.knative import KnativeAutoscaler
from scaler.simulate.replay import replay
from tests.unit.scaler.simulate.worlds import SECONDS, Script, run, traffic


def test_a_cold_start_by_hand():
    outcome = run(traffic([10, 11], [5.0, 1.0]), FixedKeepAlive(30, per_replica=11), start_s=4)
    assert (outcome.requests, outcome.wakes, outcome.starts) == (2, 1, 1)
    assert (outcome.cold_starts, outcome.cold_requests) == (1, 2)  # one event, two waited
    assert list(outcome.waits_s) == [4, 3]
    # There from 10 s to 49 s; at work from 14 s to 19 s.
    assert (outcome.replica_s, outcome.wasted_s) == (39, 34)
    assert outcome.cost(60) == 94


def test_a_start_ahead_of_the_request_is_not_cold():
    # It is there for something else: nobody calls before 20 s, and the policy is asked then.
    policy = Script((0, 1))
    outcome = run(traffic([10, 20], 1.0), policy, start_s=2, until_s=30)
    assert (outcome.cold_starts, outcome.starts, list(outcome.waits_s)) == (1, 1, [2])
    assert outcome.wasted_s == 20 - 2


def test_over_capacity_waits_for_a_place_but_is_not_cold():
    policy = Script((0, 1))
    outcome = run(traffic([0, 1, 2], 10.0), policy, until_s=100, capacity=2)
    assert (outcome.cold_starts, outcome.cold_requests) == (1, 1)
    assert list(outcome.waits_s) == [0, 8]  # the first for a start that takes no time


def test_what_works_is_not_taken_away():
    policy = Script((0, 2), (5, 0))
    each = traffic([0, 1, 6], [20.0, 20.0, 1.0])
    outcome = run(each, policy, until_s=100, capacity=1)
    # Two at work until 20 s and 21 s; the third waits for the one that is free first.
    assert list(outcome.waits_s) == [0, 14]  # the second found a place
    assert outcome.wasted_s == pytest.approx(1)  # until the second request came


def test_only_what_happens_later_is_counted():
    each = traffic([10, 100, 300], 5.0)
    policy = FixedKeepAlive(60, per_replica=11)
    outcome = run(each, policy, start_s=1, count_from_s=130.0, until_s=310)
    # Of the second life, from 100 s to 166 s, 36 s are counted; the third is cold.
    assert (outcome.requests, outcome.cold_starts, outcome.starts) == (1, 1, 1)
    assert outcome.wasted_s == 36 + 1 + 4
    assert list(outcome.waits_s) == [1]


def by_the_second(requests, steps, *, start_s, until_s, capacity):
    """Walk through whole seconds: replica-seconds, wasted ones, cold starts, waits."""
    ready, waiting, working, starting = 0, [], [], []
    replica_s = wasted_s = cold = 0
    is_cold, waits = False, {}
    todo = list(enumerate(requests))
    looked = False
    for second in range(until_s):
        # As in replay, where what was planned earlier happens first: arrivals come last.
        came = [(index, length) for index, (at, length) in todo if at == second]
        for ends in sorted(working):
            if ends == second:
                working.remove(ends)
        for born in list(starting):
            if born + start_s == second:
                starting.remove(born)
                ready += 1
                is_cold = False
        while waiting and len(working) < ready * capacity:
            index, length = waiting.pop(0)
            waits[index] = second - requests[index][0]
            working.append(second + length)
        for index, length in came:
            cold += ready == 0 and not is_cold
            is_cold = ready == 0
            looked = True
            if not waiting and len(working) < ready * capacity:
                working.append(second + length)
            else:
                waiting.append((index, length))
        if looked:  # a policy hears of a function with its first request
            wanted = max((pair for pair in steps if pair[0] <= second), default=(0, 0))[1]
            starting += [second] * (wanted - ready - len(starting))
            busy = min(ready, -(-len(working) // capacity))
            ready -= max(0, min(ready + len(starting) - wanted, ready - busy))
        busy = min(ready, -(-len(working) // capacity))
        replica_s += ready + len(starting)
        wasted_s += ready + len(starting) - busy
    return replica_s, wasted_s, cold, list(waits.values())


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    requests=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)), min_size=1, max_size=4),
    steps=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), max_size=5),
    start=st.integers(0, 3),
    capacity=st.integers(1, 3),
)
def test_the_books_are_those_of_a_count_by_the_second(requests, steps, start, capacity):
    # In units of 160 s, and so that no two things happen in one second: arrivals are at 1 s of a
    # unit, steps at 3 s, replicas become ready at 8 s, and requests end at sums of 10, 20, 40 and
    # 80 s after 1 s or 8 s.
    requests = [
        (160 * at + 1, 160 * length + 10 * 2**index)
        for index, (at, length) in enumerate(sorted(dict(requests).items()))
    ]
    steps = sorted((160 * at + 3, replicas) for at, replicas in dict(steps).items())
    start_s, until_s = 160 * start + 5, 7000
    each = traffic([at for at, _ in requests], [float(length) for _, length in requests])
    outcome = run(each, Asked(steps), start_s=start_s, until_s=float(until_s), capacity=capacity)
    replica_s, wasted_s, cold, waits = by_the_second(
        requests, steps, start_s=start_s, until_s=until_s, capacity=capacity
    )
    # A replica that becomes free while others work may be let go at the next second only.
    assert 0 <= outcome.replica_s - replica_s <= len(requests)
    assert 0 <= outcome.wasted_s - wasted_s <= len(requests)
    assert outcome.cold_starts == cold
    assert sorted(outcome.waits_s) == sorted(waits)
    assert outcome.requests == len(requests)


class Asked(Script):
    """Says the same at every second, as what works may have become free."""

    def __init__(self, steps):
        super().__init__(*steps)

    def decide(self, now_s, function, now):
        return super().decide(now_s, function, now)[0], 1.0


def policies():
    spec = FunctionSpec(name="f", model="m", max_replicas=8)
    foretell = always(Outlook(start_s=2.0))
    return [
        FixedKeepAlive(0, per_replica=2),
        FixedKeepAlive(45, per_replica=2),
        HybridHistogram(per_replica=2),
        KnativeAutoscaler(target=2),
        Planned([spec] * 3, from_s=0.0, foretell=foretell),
    ]


@settings(derandomize=True, deadline=None, max_examples=60)
@given(data=st.lists(SECONDS, min_size=3, max_size=3), which=st.integers(0, 4), seed=st.integers())
def test_no_request_is_lost_and_nothing_is_negative(data, which, seed):
    every = [
        traffic([at for at, _ in each], [float(length) for _, length in each]) for each in data
    ]
    policy, rng = policies()[which], Random(seed)
    outcomes = replay(
        every, policy, start_time=lambda: rng.uniform(0, 5), until_s=20_000.0, capacity=3
    )
    for each, outcome in zip(every, outcomes, strict=True):
        assert outcome.requests == len(each.arrivals_s)
        assert outcome.cold_starts <= outcome.wakes <= outcome.requests
        assert outcome.cold_starts <= outcome.cold_requests <= outcome.requests
        assert outcome.cold_requests <= len(outcome.waits_s)  # all were served
        assert all(wait_s >= 0 for wait_s in outcome.waits_s)
        assert -1e-6 <= outcome.wasted_s <= outcome.replica_s + 1e-6
        # A replica works for one request at least while it counts as working.
        worked_s = outcome.replica_s - outcome.wasted_s
        assert sum(each.service_s) / 3 - 1e-6 <= worked_s <= sum(each.service_s) + 1e-6


def test_the_same_again_is_the_same():
    def outcomes():
        rng = Random(7)
        every = [traffic(array("d", sorted(rng.uniform(0, 5000) for _ in range(60))), 3.0)] * 3
        found = []
        for policy in policies():
            starts = Random(1)
            found.append(replay(every, policy, start_time=starts.random, until_s=6000.0))
        return found

    assert outcomes() == outcomes()


def test_a_policy_hears_of_what_matters_and_not_of_the_rest():
    policy = Script((0, 1))
    run(traffic([0, 1, 2], [10.0, 10.0, 10.0]), policy, start_s=0.5, until_s=100)
    times = [seen[0] for seen in policy.seen]
    # The first request, its replica, the end of the last; not the requests that found room.
    assert times == [0, 0.5, 12]
    assert not math.isnan(sum(times))
