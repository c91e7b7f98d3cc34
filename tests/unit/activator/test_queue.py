"""FairQueue against a naive model, its bounds, its fairness, and that leaving is cheap."""

import time
from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from activator.queue import Entry, FairQueue, Priority, QueueFull

TENANTS = st.sampled_from("abc")
PRIORITIES = st.sampled_from(Priority)
MAX_REQUESTS = 8
MAX_BYTES = 100


@dataclass
class Model:
    """The rules, spelled out without care for cost."""

    rotation: dict[Priority, list[str]] = field(
        default_factory=lambda: {priority: [] for priority in Priority}
    )
    waiting: list[Entry[int]] = field(default_factory=list)

    def of(self, priority: Priority, tenant: str) -> list[Entry[int]]:
        return [e for e in self.waiting if (e.priority, e.tenant) == (priority, tenant)]

    def add(self, entry: Entry[int], *, first: bool = False) -> None:
        rotation = self.rotation[entry.priority]
        if entry.tenant not in rotation:
            rotation.insert(0 if first else len(rotation), entry.tenant)
        self.waiting.append(entry)

    def remove(self, entry: Entry[int]) -> None:
        self.waiting.remove(entry)
        if not self.of(entry.priority, entry.tenant):
            self.rotation[entry.priority].remove(entry.tenant)

    def take(self) -> Entry[int] | None:
        for priority, rotation in self.rotation.items():
            if rotation:
                tenant = rotation.pop(0)
                rotation.append(tenant)
                entry = min(self.of(priority, tenant), key=lambda e: e.order)
                self.remove(entry)
                return entry
        return None


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[int] = FairQueue()
        self.model = Model()
        self.taken: list[Entry[int]] = []
        self.released: list[Entry[int]] = []
        self.added = 0

    @rule(tenant=TENANTS, priority=PRIORITIES, size=st.integers(0, 40))
    def add(self, tenant: str, priority: Priority, size: int) -> None:
        held = len(self.model.waiting) + len(self.taken)
        held_bytes = sum(e.size_bytes for e in self.model.waiting + self.taken)
        fits = held < MAX_REQUESTS and held_bytes + size <= MAX_BYTES
        try:
            entry = self.queue.add(
                self.added,
                tenant=tenant,
                priority=priority,
                size_bytes=size,
                max_requests=MAX_REQUESTS,
                max_bytes=MAX_BYTES,
            )
        except QueueFull as full:
            assert not fits
            assert (full.limit == "requests") == (held >= MAX_REQUESTS)
        else:
            assert fits
            self.added += 1
            self.model.add(entry)

    @rule()
    def take(self) -> None:
        entry, expected = self.queue.take(), self.model.take()
        assert entry is expected
        if entry is not None:
            self.taken.append(entry)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.taken))
        self.taken.remove(entry)
        self.released.append(entry)
        self.queue.discard(entry)

    @precondition(lambda self: self.taken or self.released)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.taken + self.released))
        (self.taken if entry in self.taken else self.released).remove(entry)
        self.queue.put_back(entry)
        self.model.add(entry, first=True)

    @precondition(lambda self: self.model.waiting)
    @rule(data=st.data(), again=st.booleans())
    def disconnect(self, data: st.DataObject, again: bool) -> None:
        entry = data.draw(st.sampled_from(self.model.waiting))
        self.model.remove(entry)
        self.queue.discard(entry)
        if again:
            self.queue.discard(entry)
        with pytest.raises(ValueError, match="taken"):
            self.queue.put_back(entry)

    @invariant()
    def counts_are_right(self) -> None:
        held = self.model.waiting + self.taken
        assert self.queue.waiting == len(self.model.waiting)
        assert self.queue.held_requests == len(held)
        assert self.queue.held_bytes == sum(e.size_bytes for e in held)
        assert self.queue.oldest() is min(self.model.waiting, default=None)

    def teardown(self) -> None:
        drained = []
        while (entry := self.queue.take()) is not None:
            assert entry is self.model.take()
            drained.append(entry.item)
        assert len(drained) == len(set(drained))
        assert not self.model.waiting


QueueMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, derandomize=True, deadline=None
)
TestQueue = QueueMachine.TestCase


@settings(max_examples=200, derandomize=True)
@given(st.lists(st.tuples(TENANTS, PRIORITIES), max_size=60))
def test_each_is_served_once_in_order_and_in_turn(arrivals: list[tuple[str, Priority]]) -> None:
    queue: FairQueue[int] = FairQueue()
    for number, (tenant, priority) in enumerate(arrivals):
        queue.add(number, tenant=tenant, priority=priority, size_bytes=1)
    served = []
    waits: dict[tuple[Priority, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    left = [(priority, tenant) for tenant, priority in arrivals]
    while (entry := queue.take()) is not None:
        served.append(entry)
        mine = (entry.priority, entry.tenant)
        left.remove(mine)
        waits.pop(mine, None)
        for other in set(left):
            if other[0] is entry.priority and other != mine:
                waits[other][entry.tenant] += 1
                assert waits[other][entry.tenant] <= 1, "overtaken twice by one tenant"
    assert sorted(entry.item for entry in served) == list(range(len(arrivals)))
    assert [e.priority for e in served] == sorted(e.priority for e in served)
    for tenant in "abc":
        for priority in Priority:
            mine_in_order = [e.item for e in served if (e.tenant, e.priority) == (tenant, priority)]
            assert mine_in_order == sorted(mine_in_order)


def test_a_late_tenant_does_not_wait_for_a_crowd() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(1000):
        queue.add(f"crowd {number}", tenant="crowd", priority=Priority.NORMAL, size_bytes=1)
    queue.add("late", tenant="late", priority=Priority.NORMAL, size_bytes=1)
    first_two = [entry.item for entry in (queue.take(), queue.take()) if entry]
    assert first_two == ["crowd 0", "late"]


@pytest.mark.parametrize("order", ["first", "last", "odd"])
def test_leaving_costs_about_the_same_in_a_long_line(order: str) -> None:
    def seconds_each(count: int) -> float:
        queue: FairQueue[int] = FairQueue()
        entries = [
            queue.add(n, tenant="t", priority=Priority.LOW, size_bytes=1) for n in range(count)
        ]
        if order == "last":
            entries.reverse()
        elif order == "odd":
            entries = entries[1::2] + entries[::2]
        start_s = time.perf_counter()
        for entry in entries:
            queue.discard(entry)
        assert queue.waiting == queue.held_bytes == 0
        return (time.perf_counter() - start_s) / count

    seconds_each(1000)  # warm up
    # A search through the line would make this 32 times as long.
    assert min(seconds_each(32_000) for _ in range(3)) < 10 * max(
        seconds_each(1000) for _ in range(3)
    )


def test_what_left_is_forgotten() -> None:
    queue: FairQueue[int] = FairQueue()
    keep = queue.add(-1, tenant="t", priority=Priority.HIGH, size_bytes=1)
    for number in range(10_000):
        queue.discard(queue.add(number, tenant="t", priority=Priority.HIGH, size_bytes=1))
    line = queue._lines[Priority.HIGH]["t"]
    assert len(line._heap) <= 3
    assert queue.take() is keep
