"""Who is admitted next: classes, tenants by what they were served, arrival, and nobody starves."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis.strategies import integers, lists, sampled_from, tuples

from glowplug.contracts import Priority
from runtime.engine.request import GenerationRequest, SamplingParams
from runtime.engine.sequence import Sequence
from runtime.engine.waiting import MAX_BYPASS, OUTPUT_WEIGHT, WaitingLine

HIGH, NORMAL, LOW = Priority


def sequence(name, *, tenant="t", priority=NORMAL, prompt=4) -> Sequence:
    request = GenerationRequest(
        id=str(name),
        prompt=(1,) * prompt,
        params=SamplingParams(max_tokens=8),
        tenant=tenant,
        priority=priority,
    )
    return Sequence(request, None, arrived_s=0.0)


def take(line: WaitingLine, *, made: int = 0) -> Sequence:
    """Admit the next one and let it make its whole output at once."""
    seq = line.peek()
    line.take(seq, prompt_tokens=len(seq.request.prompt))
    line.made(seq, made)
    return seq


def order(line: WaitingLine, *, made: int = 0) -> list[str]:
    return [take(line, made=made).id for _ in range(len(line))]


def test_classes_then_arrival():
    line = WaitingLine()
    for name, priority in (("a", LOW), ("b", NORMAL), ("c", HIGH), ("d", NORMAL), ("e", HIGH)):
        line.add(sequence(name, priority=priority))
    assert order(line) == ["c", "e", "b", "d", "a"]


def test_a_crowd_of_one_tenant_does_not_delay_another():
    line = WaitingLine()
    for n in range(20):
        line.add(sequence(f"crowd {n}", tenant="crowd"))
    take(line, made=10)
    line.add(sequence("late", tenant="late"))
    take(line, made=10)  # it starts level with the crowd, which came first
    assert take(line).id == "late"


def test_tenants_are_served_alike_by_tokens_not_by_requests():
    line = WaitingLine()
    for n in range(200):
        line.add(sequence(f"long {n}", tenant="long", prompt=100))
        line.add(sequence(f"short {n}", tenant="short", prompt=10))
    served: Counter[str] = Counter()
    for _ in range(110):
        seq = take(line)
        served[seq.request.tenant] += len(seq.request.prompt)
    assert served["long"] == pytest.approx(served["short"], abs=110)


@given(lists(tuples(sampled_from("abc"), integers(1, 60), integers(0, 60)), min_size=60))
@settings(derandomize=True, max_examples=50)
def test_the_difference_between_backlogged_tenants_is_bounded(requests):
    """Theorem 4.4 of the paper, with one request in service at a time."""
    line, dearest = WaitingLine(), 60 + OUTPUT_WEIGHT * 60
    outputs = {}
    for n, (tenant, prompt, output) in enumerate(requests):
        line.add(sequence(n, tenant=tenant, prompt=prompt))
        outputs[str(n)] = output
    served: Counter[str] = Counter()
    left = Counter(tenant for tenant, _, _ in requests)
    while len([t for t, count in left.items() if count]) == len(left):
        seq = line.peek()
        take(line, made=outputs[seq.id])
        tenant = seq.request.tenant
        left[tenant] -= 1
        served[tenant] += len(seq.request.prompt) + OUTPUT_WEIGHT * outputs[seq.id]
        assert max(served.values()) - min(served[t] for t in left) <= 2 * dearest


def test_who_stays_away_saves_nothing_up():
    line = WaitingLine()
    for n in range(40):
        line.add(sequence(f"steady {n}", tenant="steady"))
    for _ in range(20):
        take(line, made=50)
    for n in range(20):
        line.add(sequence(f"returned {n}", tenant="returned"))
    assert Counter(take(line, made=50).request.tenant for _ in range(20)) == {
        "steady": 10,
        "returned": 10,
    }


def test_an_empty_line_remembers_the_last_who_left():
    """The debt is not forgiven by having nothing waiting for a moment; an idle engine forgets."""
    line = WaitingLine()
    line.add(sequence("a", tenant="a"))
    take(line, made=100)
    line.add(sequence("b", tenant="b"))
    line.add(sequence("a2", tenant="a"))
    assert line.peek().id == "b"  # level with a, and earlier
    take(line, made=1)
    assert line.peek().id == "a2"
    take(line)
    line.settle()
    line.add(sequence("c", tenant="c"))
    assert line._classes[NORMAL].served == {"c": 0}


def test_what_was_preempted_keeps_its_place():
    line = WaitingLine()
    first, second, third = (sequence(n, tenant="x") for n in ("first", "second", "third"))
    for seq in (first, second, third):
        line.add(seq)
    take(line, made=1000)
    take(line, made=1000)
    line.add(sequence("never served", tenant="y"))
    line.put_back(second)
    line.put_back(first)
    line.add(sequence("urgent", tenant="x", priority=HIGH))
    assert [each.id for each in line] == ["first", "second", "third", "never served", "urgent"]
    assert order(line) == ["urgent", "first", "second", "never served", "third"]


@given(
    lists(tuples(sampled_from(Priority), sampled_from("abcd")), min_size=1, max_size=12),
    integers(0, 1000),
)
@settings(derandomize=True, max_examples=40)
def test_nobody_is_passed_over_for_ever(before, seed):
    """An endless stream of urgent requests of new tenants comes, and running ones are preempted."""
    rng = random.Random(seed)
    line = WaitingLine()
    for n, (priority, tenant) in enumerate(before):
        line.add(sequence(n, tenant=tenant, priority=priority))
    waiting = {str(n) for n in range(len(before))}
    running: list[Sequence] = []
    admissions = 0
    while waiting:
        line.add(sequence(f"new {admissions}", tenant=f"t{admissions % 7}", priority=HIGH))
        seq = take(line, made=3)
        running.append(seq)
        waiting.discard(seq.id)
        admissions += 1
        assert admissions <= (len(before) + 1) * (MAX_BYPASS + 1)
        if rng.random() < 0.3:
            back = running.pop(rng.randrange(len(running)))
            if back.id.startswith("new"):
                line.put_back(back)


def test_who_waited_too_long_is_not_preempted_for_what_came_later():
    line = WaitingLine()
    patient = sequence("patient", priority=LOW)
    line.add(patient)
    for n in range(MAX_BYPASS + 1):
        line.add(sequence(n, priority=HIGH))
    names = [take(line).id for _ in range(MAX_BYPASS + 1)]
    assert names[-1] == "patient"
    assert patient.priority is HIGH
    line.put_back(patient)
    assert line.peek() is patient


@given(lists(integers(0, 5), max_size=60), integers(0, 99))
@settings(derandomize=True, max_examples=100)
def test_any_mix_of_calls_loses_nothing(actions, seed):
    rng, line, running, count = random.Random(seed), WaitingLine(), [], 0
    expected: set[str] = set()
    for action in actions:
        if action <= 2:
            tenant, priority = rng.choice("abc"), rng.choice(list(Priority))
            line.add(sequence(count, tenant=tenant, priority=priority))
            expected.add(str(count))
            count += 1
        elif action == 3 and len(line):
            running.append(take(line, made=rng.randrange(9)))
            expected.remove(running[-1].id)
        elif action == 4 and running:
            line.put_back(running.pop(rng.randrange(len(running))))
            expected = {each.id for each in line}
        elif action == 5 and len(line):
            gone = rng.choice(list(line))
            line.remove(gone)
            expected.remove(gone.id)
        assert {each.id for each in line} == expected
        orders = [each.order for each in line]
        assert orders == sorted(orders)
    assert set(order(line)) == expected
