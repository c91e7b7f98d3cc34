"""FairQueue: which waiting request is next. A pure data structure, owned by one lane.

Three rules, in this order: strict priority between the classes; round-robin over the tenants of a
class; first come, first served within a tenant. So a tenant that has a request waiting gets one
through after at most one of every other tenant of its class, however many those have waiting.

The queue is bounded by requests and by bytes. What it *holds* counts against the bounds: everything
that waits, and what was taken but may come back (`take` … `put_back`) until it is discarded.

Costs: O(log n) to add, take and put back, O(1) amortised to discard, n being one tenant's requests.
"""

import heapq
import itertools
from collections import OrderedDict
from enum import Enum, auto
from typing import Generic, TypeVar

from glowplug.contracts import Priority

T = TypeVar("T")


class QueueFull(Exception):
    """The request does not fit. `limit` is "requests" or "bytes"."""

    def __init__(self, limit: str) -> None:
        super().__init__(limit)
        self.limit = limit


class _State(Enum):
    WAITING = auto()
    TAKEN = auto()  # out of the line, still counted
    RELEASED = auto()  # out of the line, not counted; may be put back
    GONE = auto()  # left the line


class Entry(Generic[T]):
    """An item's place in the queue; it keeps its place in the order when it is put back."""

    __slots__ = ("_state", "item", "order", "priority", "size_bytes", "tenant")

    def __init__(
        self, item: T, *, tenant: str, priority: Priority, size_bytes: int, order: int
    ) -> None:
        self.item = item
        self.tenant = tenant
        self.priority = priority
        self.size_bytes = size_bytes
        self.order = order  # of arrival
        self._state = _State.WAITING

    def __lt__(self, other: "Entry[T]") -> bool:
        return self.order < other.order

    @property
    def waiting(self) -> bool:
        """Whether it stands in line."""
        return self._state is _State.WAITING


class _Line(Generic[T]):
    """One tenant's waiting entries of one class: a heap, from which entries vanish lazily.

    The head is always a waiting entry, and at most half of the rest are not.
    """

    __slots__ = ("_heap", "waiting")

    def __init__(self) -> None:
        self._heap: list[Entry[T]] = []
        self.waiting = 0

    @property
    def head(self) -> Entry[T]:
        return self._heap[0]

    def add(self, entry: Entry[T]) -> None:
        heapq.heappush(self._heap, entry)
        self.waiting += 1

    def pop(self) -> Entry[T]:
        entry = heapq.heappop(self._heap)
        self.waiting -= 1
        self._tidy()
        return entry

    def forget_one(self) -> None:
        """One of the entries has stopped waiting."""
        self.waiting -= 1
        self._tidy()

    def _tidy(self) -> None:
        if len(self._heap) > 2 * self.waiting + 1:
            self._heap = [entry for entry in self._heap if entry.waiting]
            heapq.heapify(self._heap)
        while self._heap and not self._heap[0].waiting:
            heapq.heappop(self._heap)


class FairQueue(Generic[T]):
    """Items in the order in which they are to be served; see the module's text."""

    def __init__(self) -> None:
        self._lines: dict[Priority, OrderedDict[str, _Line[T]]] = {
            priority: OrderedDict() for priority in Priority
        }
        self._order = itertools.count()
        self.waiting = 0  # requests in line
        self.held_requests = 0  # in line, or taken and not discarded
        self.held_bytes = 0

    def add(
        self,
        item: T,
        *,
        tenant: str,
        priority: Priority,
        size_bytes: int,
        max_requests: int | None = None,
        max_bytes: int | None = None,
    ) -> Entry[T]:
        """Put an item at its place in line.

        Raises:
            QueueFull: with it the queue would hold more than a maximum that is given.
        """
        self.check_room(size_bytes, max_requests=max_requests, max_bytes=max_bytes)
        entry = Entry(
            item,
            tenant=tenant,
            priority=priority,
            size_bytes=size_bytes,
            order=next(self._order),
        )
        self._hold(entry)
        self._insert(entry)
        return entry

    def check_room(
        self, size_bytes: int, *, max_requests: int | None, max_bytes: int | None
    ) -> None:
        """Raises QueueFull where `add` would."""
        if max_requests is not None and self.held_requests >= max_requests:
            raise QueueFull("requests")
        if max_bytes is not None and self.held_bytes + size_bytes > max_bytes:
            raise QueueFull("bytes")

    def take(self) -> Entry[T] | None:
        """The next entry, or None. It counts against the bounds until it is discarded."""
        for lines in self._lines.values():
            if not lines:
                continue
            tenant, line = next(iter(lines.items()))
            entry = line.pop()
            entry._state = _State.TAKEN
            self.waiting -= 1
            if line.waiting:
                lines.move_to_end(tenant)
            else:
                del lines[tenant]
            return entry
        return None

    def put_back(self, entry: Entry[T]) -> None:
        """Give a taken entry its place in the order of arrival back; it is never refused.

        A tenant that has nothing else waiting is the next one of its class: its turn came to
        nothing. An entry that was discarded after it was taken counts again.
        """
        if entry._state not in (_State.TAKEN, _State.RELEASED):
            raise ValueError("only an entry that was taken can be put back")
        if entry._state is _State.RELEASED:
            self._hold(entry)
        entry._state = _State.WAITING
        lines = self._lines[entry.priority]
        alone = entry.tenant not in lines
        self._insert(entry)
        if alone:
            lines.move_to_end(entry.tenant, last=False)

    def discard(self, entry: Entry[T]) -> None:
        """Stop counting the entry and, where it waits, take it out of line. Idempotent."""
        if entry._state in (_State.RELEASED, _State.GONE):
            return
        waited = entry.waiting
        entry._state = _State.GONE if waited else _State.RELEASED
        self.held_requests -= 1
        self.held_bytes -= entry.size_bytes
        if waited:
            self.waiting -= 1
            lines = self._lines[entry.priority]
            line = lines[entry.tenant]
            line.forget_one()
            if not line.waiting:
                del lines[entry.tenant]

    def oldest(self) -> Entry[T] | None:
        """The waiting entry that arrived first. O(tenants)."""
        heads = (line.head for lines in self._lines.values() for line in lines.values())
        return min(heads, default=None)

    def _hold(self, entry: Entry[T]) -> None:
        self.held_requests += 1
        self.held_bytes += entry.size_bytes

    def _insert(self, entry: Entry[T]) -> None:
        lines = self._lines[entry.priority]
        line = lines.get(entry.tenant)
        if line is None:
            line = lines[entry.tenant] = _Line()
        line.add(entry)
        self.waiting += 1
