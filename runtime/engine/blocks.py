"""The block pool: which blocks of the KV cache are free, who holds the others, and what they hold.

Blocks are counted by reference. A full block whose contents are known is *published* under a hash
of everything its keys and values depend on (runtime/engine/prefix.py); later sequences that begin
alike share it instead of computing it again. A published block that nobody holds stays findable
until it is needed: free blocks are taken in the order they were freed, unpublished ones first.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """Blocks 0..count-1. Invariant: free + referenced = count."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(count))
        self._references = [0] * count
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    @property
    def free_count(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def references(self, block: int) -> int:
        """How many holders a block has."""
        return self._references[block]

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks. The caller checks `free_count`; asking for more is a bug."""
        if count > len(self._free):
            raise AssertionError(f"{count} blocks asked for, {len(self._free)} free")
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._unpublish(block)
            self._references[block] = 1
        return taken

    @property
    def published(self) -> dict[bytes, int]:
        """Every findable block by its hash."""
        return dict(self._block_of)

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """The blocks of the longest published beginning of a chain of hashes."""
        found = []
        for digest in hashes:
            block = self._block_of.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def free_after_sharing(self, blocks: Iterable[int]) -> int:
        """What `free_count` would be if these blocks were shared."""
        return len(self._free) - sum(self._references[block] == 0 for block in blocks)

    def share(self, blocks: Iterable[int]) -> None:
        """One more holder for each of these published or held blocks."""
        for block in blocks:
            if self._references[block] == 0:
                if block not in self._hash_of:
                    raise AssertionError(f"block {block} is free and holds nothing to share")
                del self._free[block]
            self._references[block] += 1

    def publish(self, block: int, digest: bytes) -> None:
        """Make a held, fully written block findable; the first block of a hash stays the one."""
        if self._references[block] == 0:
            raise AssertionError(f"block {block} is free and cannot be published")
        if digest not in self._block_of and block not in self._hash_of:
            self._block_of[digest] = block
            self._hash_of[block] = digest

    def release(self, blocks: Sequence[int]) -> None:
        """One holder less for each. A chain's last block is taken again before its first."""
        for block in reversed(blocks):
            if self._references[block] == 0:
                raise AssertionError(f"block {block} is released twice")
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None
                if block not in self._hash_of:
                    self._free.move_to_end(block, last=False)

    def forget(self, blocks: Iterable[int]) -> list[int]:
        """Unpublish those of the blocks that have one holder only; returns them."""
        own = [block for block in blocks if self._references[block] == 1]
        for block in own:
            self._unpublish(block)
        return own

    def forget_free(self) -> None:
        """Unpublish all: the contents of free blocks are about to be lost. Nobody may hold one."""
        if len(self._free) != self.count:
            raise AssertionError(f"{self.count - len(self._free)} blocks are held")
        self._block_of.clear()
        self._hash_of.clear()

    def _unpublish(self, block: int) -> None:
        if digest := self._hash_of.pop(block, None):
            del self._block_of[digest]
