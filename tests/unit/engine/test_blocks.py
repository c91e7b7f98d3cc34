"""The block pool's invariants under any order of operations."""

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import data, integers

from runtime.engine.blocks import BlockPool

COUNT = 24


class Pool(RuleBasedStateMachine):
    """Random holders allocate, share and release; a model counts references beside the pool."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(COUNT)
        self.holders: list[list[int]] = []

    @rule(data=data(), count=integers(0, COUNT))
    def allocate(self, data, count):
        if count > self.pool.free_count:
            with pytest.raises(AssertionError, match="free"):
                self.pool.allocate(count)
            return
        after = data.draw(integers(0, COUNT - 1))
        held = {block for holder in self.holders for block in holder}
        blocks = self.pool.allocate(count, after=after)
        assert len(set(blocks)) == count
        assert not held & set(blocks)
        self.holders.append(blocks)

    @precondition(lambda self: self.holders)
    @rule(data=data())
    def share(self, data):
        holder = self.holders[data.draw(integers(0, len(self.holders) - 1))]
        self.pool.share(holder)
        self.holders.append(list(holder))

    @precondition(lambda self: self.holders)
    @rule(data=data())
    def release(self, data):
        self.pool.release(self.holders.pop(data.draw(integers(0, len(self.holders) - 1))))

    @invariant()
    def every_block_is_free_or_counted(self):
        counts = [sum(block in holder for holder in self.holders) for block in range(COUNT)]
        assert [self.pool.references(block) for block in range(COUNT)] == counts
        assert self.pool.free_count == counts.count(0)


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, derandomize=True)


def test_a_sequence_that_grows_alone_gets_adjacent_blocks():
    pool = BlockPool(16)
    blocks = pool.allocate(3)
    for _ in range(5):
        blocks += pool.allocate(1, after=blocks[-1])
    assert blocks == list(range(blocks[0], blocks[0] + 8))


def test_double_release_is_found():
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(AssertionError, match="twice"):
        pool.release(blocks)


def test_a_free_block_cannot_be_shared():
    with pytest.raises(AssertionError, match="free"):
        BlockPool(2).share([0])
