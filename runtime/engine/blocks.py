"""The block pool: which blocks of the KV cache are free, and who holds the others.

Blocks are counted by reference, so that sequences may share them. The pool gives out neighbours
where it can: a sequence whose blocks lie in one piece is read without a copy.
"""

from collections import OrderedDict


class BlockPool:
    """Blocks 0..count-1. Invariant: free + referenced = count."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(count))
        self._references = [0] * count

    @property
    def free_count(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def references(self, block: int) -> int:
        """How many holders a block has."""
        return self._references[block]

    def allocate(self, count: int, *, after: int | None = None) -> list[int]:
        """Take `count` free blocks, the neighbours of block `after` first.

        The caller checks `free_count`; asking for more is a bug.
        """
        if count > len(self._free):
            raise AssertionError(f"{count} blocks asked for, {len(self._free)} free")
        taken: list[int] = []
        for _ in range(count):
            block = -1 if after is None else after + 1
            if block not in self._free:
                block = next(iter(self._free))
            del self._free[block]
            self._references[block] = 1
            taken.append(block)
            after = block
        return taken

    def share(self, blocks: list[int]) -> None:
        """One more holder for each of these held blocks."""
        for block in blocks:
            if self._references[block] == 0:
                raise AssertionError(f"block {block} is free and cannot be shared")
            self._references[block] += 1

    def release(self, blocks: list[int]) -> None:
        """One holder less for each; a block without holders is free, used last."""
        for block in reversed(blocks):
            if self._references[block] == 0:
                raise AssertionError(f"block {block} is released twice")
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None
