"""Which waiting sequence is admitted next. A pure data structure; the scheduler owns it.

Four rules, in this order:

1. The class comes first: high before normal before low (glowplug.contracts.Priority).
2. Within a class, what was preempted comes before what is new, the oldest first: it keeps its
   place.
3. Then the tenant that has been served least: the virtual token counter of Sheng et al. 2024
   (arXiv 2401.00588). A tenant's counter grows by a prompt's tokens when it is admitted and by two
   for each token made for it. A tenant that had nothing waiting starts no lower than those that
   wait, so that nobody saves up service by staying away.
4. Within a tenant, first come, first served.

Nothing starves: when the oldest of all has been passed over `MAX_BYPASS` times, it is next, and it
is of the highest class from then on. So a sequence with k older ones before it waits for at most
(k + 1) · (MAX_BYPASS + 1) admissions, and once it runs, nothing younger can have it preempted.
"""

from bisect import insort
from collections import deque
from collections.abc import Iterator

from glowplug.contracts import Priority
from runtime.engine.sequence import Sequence

MAX_BYPASS = 32
OUTPUT_WEIGHT = 2  # a made token against a read one, as in the paper


def by_arrival(sequence: Sequence) -> int:
    """Sort key: the oldest first."""
    return sequence.order


def by_urgency(sequence: Sequence) -> tuple[int, int]:
    """Sort key: the highest class first, within it the oldest; the last is preempted first."""
    return sequence.priority, sequence.order


class WaitingLine:
    """Waiting sequences: new ones are added, preempted ones put back, the next one taken."""

    def __init__(self) -> None:
        self._classes = {priority: _Class() for priority in Priority}
        self._waiting: list[Sequence] = []  # all of them, by arrival
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        """By arrival."""
        return iter(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """A new sequence; numbers it in the order of arrival."""
        sequence.order = self._arrivals
        self._arrivals += 1
        self._waiting.append(sequence)
        self._classes[sequence.priority].add(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """A preempted sequence: it keeps its number and goes before the new ones of its class."""
        insort(self._waiting, sequence, key=by_arrival)
        insort(self._classes[sequence.priority].preempted, sequence, key=by_arrival)

    def peek(self) -> Sequence:
        """The next one; the line must not be empty."""
        if self._waiting[0].bypassed >= MAX_BYPASS:
            return self._waiting[0]
        return next(each for each in self._classes.values() if each).peek()

    def take(self, sequence: Sequence, *, prompt_tokens: int) -> None:
        """The one that `peek` returned is admitted; its tenant is charged for this much of its
        prompt."""
        oldest = self._waiting[0]
        self.remove(sequence)
        self._classes[sequence.priority].charge(sequence.request.tenant, prompt_tokens)
        if sequence is not oldest:
            oldest.bypassed += 1
        elif sequence.bypassed >= MAX_BYPASS:
            sequence.priority = Priority.HIGH

    def remove(self, sequence: Sequence) -> None:
        """Take one out that will not be admitted (now)."""
        self._waiting.remove(sequence)
        self._classes[sequence.priority].remove(sequence)

    def made(self, sequence: Sequence, tokens: int) -> None:
        """Charge a running sequence's tenant for its output."""
        self._classes[sequence.priority].charge(sequence.request.tenant, OUTPUT_WEIGHT * tokens)

    def settle(self) -> None:
        """Nothing waits and nothing runs: nobody owes anything, and no tenant is remembered."""
        for each in self._classes.values():
            each.served.clear()


class _Class:
    """The waiting sequences of one class and what its tenants have been served."""

    def __init__(self) -> None:
        self.preempted: list[Sequence] = []  # by arrival
        self.served: dict[str, int] = {}  # by tenant, in weighted tokens
        self._last = ""  # the tenant that was the last to have nothing waiting
        self._new: dict[str, deque[Sequence]] = {}  # by tenant, by arrival

    def __bool__(self) -> bool:
        return bool(self.preempted or self._new)

    def add(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        if tenant not in self._new:
            floor = min(
                (self.served[other] for other in self._new),
                default=self.served.get(self._last, 0),
            )
            self.served[tenant] = max(self.served.get(tenant, 0), floor)
            self._new[tenant] = deque()
        self._new[tenant].append(sequence)

    def peek(self) -> Sequence:
        if self.preempted:
            return self.preempted[0]
        heads = (line[0] for line in self._new.values())
        return min(heads, key=lambda head: (self.served[head.request.tenant], head.order))

    def remove(self, sequence: Sequence) -> None:
        if sequence in self.preempted:
            self.preempted.remove(sequence)
            return
        tenant = sequence.request.tenant
        line = self._new[tenant]
        line.remove(sequence)
        if not line:
            del self._new[tenant]
            self._last = tenant

    def charge(self, tenant: str, tokens: int) -> None:
        self.served[tenant] = self.served.get(tenant, 0) + tokens
