"""Lane: one function's queue, and the hand-over of its requests to the replicas that have room.

    enter → [in line] → handed → answered → leave
                 ↑          │
                 └──────────┘  put back: the replica ended before it was ready, or refused us

A request is handed over the moment a replica has room, never more to one than its capacity: to the
least loaded ready replica, the oldest where several are. While none is ready, starting ones take
requests too: their socket listens from the moment of assignment, so a request's bytes wait in the
kernel until the model is there, and nobody polls. While one is ready, nothing is left waiting in
those that start: it goes back to its place in line and to whichever has room first.

The lane holds a request (counts it against the queue's limits) until a ready replica has it.
Single-threaded: everything runs on the event loop, and only `Ticket.handed` and `ready` wait.
"""

import asyncio
import time
from collections.abc import Callable

from activator.functions import unknown_function
from activator.queue import FairQueue, QueueFull
from activator.reasons import again, does_not_fit, function_failed, retry_after_s
from activator.tally import Tally
from activator.ticket import Target, Ticket
from glowplug.contracts import (
    DemandReport,
    Endpoints,
    FunctionState,
    FunctionStatus,
    Priority,
    Replica,
    ReplicaState,
)
from glowplug.errors import GlowplugError, NotFound, Unavailable
from glowplug.spec import QueueLimits

FIRST_BACKOFF_S = 0.05  # after a refused connection, doubling
MAX_BACKOFF_S = 2.0


class Lane:
    """See the module's text. `changed` is called after each change of the demand."""

    def __init__(
        self, function: str, *, endpoints: Endpoints, changed: Callable[[str], None]
    ) -> None:
        self.function = function
        self._endpoints = endpoints
        self._changed = changed
        self._queue: FairQueue[Ticket] = FairQueue()
        self._targets: dict[str, Target] = {}  # by replica id, oldest first
        self._waiting_for_ready: set[asyncio.Future[None]] = set()
        self._blocked: GlowplugError | None = None  # why nothing may wait here
        self._in_flight = 0
        self._tally = Tally()
        # What is there before the first request was neither assigned nor started for it.
        self._read_endpoints(seen_s=0.0)

    # For the requests' tasks

    def check_room(self, size_bytes: int, limits: QueueLimits) -> None:
        """Refuse early what `enter` would refuse, before a body of this size is read.

        Raises:
            Overloaded, PayloadTooLarge: the queue has no room for it.
            Unavailable: the function has failed.
        """
        try:
            self._refuse_if_blocked()
            if self._queue.waiting or not any(target.has_room for target in self._serving()):
                self._queue.check_room(
                    size_bytes, max_requests=limits.max_requests, max_bytes=limits.max_bytes
                )
        except GlowplugError:
            self._arrived()  # what is refused is demand, too
            raise
        except QueueFull as full:
            self._arrived()
            raise does_not_fit(
                self.function,
                full,
                limits,
                size_bytes=size_bytes,
                after_s=retry_after_s(self.status()),
            ) from None

    def enter(
        self, *, tenant: str, priority: Priority, size_bytes: int, limits: QueueLimits
    ) -> Ticket:
        """Get in line; the caller must `leave`.

        Raises:
            Overloaded, PayloadTooLarge: the queue has no room for it.
            Unavailable: the function has failed.
        """
        self.check_room(size_bytes, limits)
        self._arrived()
        ticket = Ticket()
        ticket.entry = self._queue.add(
            ticket, tenant=tenant, priority=priority, size_bytes=size_bytes
        )
        self._tally.at_once(self._in_flight + self._queue.waiting)
        self._pump()
        return ticket

    def answered(self, ticket: Ticket, target: Target) -> None:
        """The target has sent response headers: it is at work, ready or nearly so."""
        ticket.answered = True
        ticket.on_ready = ticket.on_revoked = None
        target.refusals = 0
        if target.ready_s is None:
            self._became_ready(target, time.monotonic())

    def put_back(self, ticket: Ticket, target: Target) -> None:
        """The target did not take the request: back to its place in line, unless it is there."""
        if ticket.target is not target:
            return
        self.rest(target)
        self._take_back(ticket)
        self._pump()

    def rest(self, target: Target) -> None:
        """Hand nothing to the target for a moment: it refused a request or broke off, and its end
        may take a moment to become known here."""
        if not target.resting:
            backoff_s = min(FIRST_BACKOFF_S * 2**target.refusals, MAX_BACKOFF_S)
            target.refusals += 1
            target.resting = True
            asyncio.get_running_loop().call_later(backoff_s, self._end_rest, target)

    def leave(self, ticket: Ticket) -> None:
        """The request is over, however it ended."""
        self._queue.discard(ticket.entry)
        if ticket.target is not None:
            self._tally.left(ticket)
            ticket.take_away()
            self._in_flight -= 1
        self._active()
        self._pump()

    async def ready(self) -> Target:
        """Wait for a ready replica without using it; counts as a queued request meanwhile.

        Raises:
            Unavailable: the function has failed.
        """
        self._tally.warm_arrived()
        self._active()
        try:
            while True:
                self._refuse_if_blocked()
                for target in self._targets.values():
                    if target.ready_s is not None:
                        return target
                change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting_for_ready.add(change)
                self._changed(self.function)
                try:
                    await change
                finally:
                    self._waiting_for_ready.discard(change)
        finally:
            self._active()

    # For the owner of the lanes

    def refresh(self) -> None:
        """The replicas or the status of the function have changed."""
        self._read_endpoints(seen_s=time.monotonic())

    def close(self) -> None:
        """The function is deleted: nothing may wait any more; what runs goes on."""
        self._block(unknown_function(self.function))
        for target in self._targets.values():
            if target.ready_s is None:
                self._revoke(target)

    def demand(self) -> DemandReport:
        """What there is to do at this moment."""
        oldest = self._queue.oldest()
        return self._tally.demand(
            self.function,
            in_flight=self._in_flight,
            queued=self._queue.waiting + len(self._waiting_for_ready),
            oldest_wait_s=time.monotonic() - oldest.item.entered_s if oldest else 0.0,
        )

    def report(self) -> DemandReport:
        """The demand, to be sent: the next one's peak starts from here."""
        demand = self.demand()
        self._tally.reported(self._in_flight + self._queue.waiting)
        return demand

    def status(self) -> FunctionStatus | None:
        """What the endpoints say of the function; None where they do not know it (yet)."""
        try:
            return self._endpoints.status(self.function)
        except NotFound:
            return None

    # Inside

    def _read_endpoints(self, *, seen_s: float) -> None:
        listed = {
            replica.id: replica
            for replica in self._endpoints.replicas(self.function)
            if replica.state in (ReplicaState.STARTING, ReplicaState.READY)
        }
        before, self._targets = self._targets, {}
        for replica in listed.values():
            self._targets[replica.id] = self._seen(before.pop(replica.id, None), replica, seen_s)
        for target in before.values():
            if target.ready_s is None:  # it ended, or is ending, before it worked on anything
                self._revoke(target)
        if self._serving():
            for target in self._targets.values():
                if target.ready_s is None:
                    self._revoke(target)
            self._wake_waiting_for_ready()
        status = self.status()
        failed = status is not None and status.state is FunctionState.FAILED
        if status is not None and failed and not self._serving():  # an older revision may serve on
            self._block(function_failed(self.function, status.reason))
        elif isinstance(self._blocked, Unavailable):
            self._blocked = None
        self._pump()

    def _seen(self, target: Target | None, replica: Replica, seen_s: float) -> Target:
        ready = replica.state is ReplicaState.READY
        if target is None:
            return Target(replica, seen_s=seen_s, ready_s=seen_s if ready else None)
        target.replica = replica
        if ready and target.ready_s is None:
            self._became_ready(target, seen_s)
        return target

    def _became_ready(self, target: Target, now_s: float) -> None:
        target.ready_s = now_s
        target.refusals = 0
        target.resting = False
        for ticket in target.tickets:
            self._queue.discard(ticket.entry)
            if ticket.on_ready is not None:
                ticket.on_ready()

    def _serving(self) -> list[Target]:
        targets = self._targets.values()
        return [target for target in targets if target.ready_s is not None and not target.resting]

    def _pick(self) -> Target | None:
        candidates = self._serving() or [
            target for target in self._targets.values() if not target.resting
        ]
        with_room = [target for target in candidates if target.has_room]
        return min(with_room, key=lambda target: len(target.tickets), default=None)

    def _end_rest(self, target: Target) -> None:
        target.resting = False
        self._pump()

    def _pump(self) -> None:
        while (
            self._queue.waiting
            and (target := self._pick()) is not None
            and (entry := self._queue.take()) is not None
        ):
            self._in_flight += 1
            entry.item.hand(target)
            if target.ready_s is not None:
                self._queue.discard(entry)
        self._changed(self.function)

    def _take_back(self, ticket: Ticket) -> None:
        ticket.take_away()
        self._in_flight -= 1
        if self._blocked is not None:
            ticket.fail(again(self._blocked))
        else:
            self._queue.put_back(ticket.entry)

    def _revoke(self, target: Target) -> None:
        # The latest first, so that the tenant of the earliest ends up in front.
        for ticket in sorted(target.tickets, key=lambda each: each.entry.order, reverse=True):
            if ticket.answered:
                continue
            on_revoked = ticket.on_revoked
            self._take_back(ticket)
            if on_revoked is not None:
                on_revoked()

    def _block(self, error: GlowplugError) -> None:
        self._blocked = error
        while (entry := self._queue.take()) is not None:
            self._queue.discard(entry)
            entry.item.fail(again(error))
        self._wake_waiting_for_ready()
        self._changed(self.function)

    def _refuse_if_blocked(self) -> None:
        if isinstance(self._blocked, Unavailable):  # it may have ended by the mere passing of time
            self.refresh()
        if self._blocked is not None:
            raise again(self._blocked)

    def _wake_waiting_for_ready(self) -> None:
        for change in self._waiting_for_ready:
            if not change.done():
                change.set_result(None)

    def _arrived(self) -> None:
        self._tally.arrived()
        self._active()

    def _active(self) -> None:
        self._tally.active()
        self._changed(self.function)
