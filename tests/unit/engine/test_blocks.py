"""The block pool's invariants under any order of operations."""

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import data, integers, lists

from runtime.engine.blocks import BlockPool

COUNT = 24


def digest(number: int) -> bytes:
    return number.to_bytes(32)


class Pool(RuleBasedStateMachine):
    """Random holders allocate, share, publish and release; a model counts beside the pool."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(COUNT)
        self.holders: list[list[int]] = []
        self.contents: dict[int, int] = {}  # what was published of a block since it was allocated

    @rule(count=integers(0, COUNT))
    def allocate(self, count):
        if count > self.pool.free_count:
            with pytest.raises(AssertionError, match="free"):
                self.pool.allocate(count)
            return
        held = {block for holder in self.holders for block in holder}
        blocks = self.pool.allocate(count)
        assert len(set(blocks)) == count
        assert not held & set(blocks)
        for block in blocks:
            self.contents.pop(block, None)
        self.holders.append(blocks)

    @precondition(lambda self: any(self.holders))
    @rule(data=data(), number=integers(0, 30))
    def publish(self, data, number):
        held = sorted({block for holder in self.holders for block in holder})
        block = held[data.draw(integers(0, len(held) - 1))]
        self.pool.publish(block, digest(number))
        if number not in self.contents.values():
            self.contents.setdefault(block, number)

    @rule(numbers=lists(integers(0, 30), max_size=5, unique=True))
    def share_what_is_found(self, numbers):
        found = self.pool.find(digest(number) for number in numbers)
        expected = []
        for number in numbers:
            blocks = [block for block, content in self.contents.items() if content == number]
            if not blocks:
                break
            expected += blocks
        assert found == expected
        after = self.pool.free_after_sharing(found)
        self.pool.share(found)
        assert self.pool.free_count == after
        self.holders.append(found)

    @precondition(lambda self: self.holders)
    @rule(data=data())
    def release(self, data):
        self.pool.release(self.holders.pop(data.draw(integers(0, len(self.holders) - 1))))

    @precondition(lambda self: self.holders)
    @rule(data=data())
    def forget(self, data):
        holder = self.holders[data.draw(integers(0, len(self.holders) - 1))]
        own = self.pool.forget(holder)
        assert all(self.pool.references(block) == 1 for block in own)
        for block in own:
            self.contents.pop(block, None)

    @invariant()
    def every_block_is_free_or_counted(self):
        counts = [sum(block in holder for holder in self.holders) for block in range(COUNT)]
        assert [self.pool.references(block) for block in range(COUNT)] == counts
        assert self.pool.free_count == counts.count(0)


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, derandomize=True)


def test_published_blocks_are_evicted_least_recently_freed_first():
    pool = BlockPool(4)
    first, second = pool.allocate(2), pool.allocate(2)
    for n, block in enumerate(first + second):
        pool.publish(block, digest(n))
    pool.release(second)
    pool.release(first)
    pool.allocate(1)  # the end of `second`, which was freed first
    assert pool.find([digest(2), digest(3)]) == second[:1]
    assert pool.find([digest(0), digest(1)]) == first


def test_blocks_that_hold_nothing_known_are_taken_before_published_ones():
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    pool.publish(blocks[0], digest(0))
    pool.release(blocks)
    assert set(pool.allocate(2)) == set(blocks[1:])
    assert pool.find([digest(0)]) == [blocks[0]]


def test_double_release_is_found():
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(AssertionError, match="twice"):
        pool.release(blocks)


def test_a_free_block_that_holds_nothing_cannot_be_shared_or_published():
    pool = BlockPool(2)
    with pytest.raises(AssertionError, match="free"):
        pool.share([0])
    with pytest.raises(AssertionError, match="free"):
        pool.publish(0, digest(1))
