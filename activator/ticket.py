"""Tickets and targets: a waiting request and a replica, as a lane sees them.

Both are plain records that only the lane changes; the request's own task waits on its ticket.
"""

import asyncio
import time
from collections.abc import Callable

from activator.queue import Entry
from glowplug.contracts import Replica
from glowplug.errors import GlowplugError


class Target:
    """One replica as this activator sees it. Times are time.monotonic() of this process."""

    __slots__ = ("ready_s", "refusals", "replica", "resting", "seen_s", "tickets")

    def __init__(self, replica: Replica, *, seen_s: float, ready_s: float | None) -> None:
        self.replica = replica
        self.seen_s = seen_s  # when it was first listed
        self.ready_s = ready_s  # when it was first ready; None: it still starts
        self.tickets: set[Ticket] = set()  # handed to it, not finished
        self.refusals = 0  # failed connections in a row
        self.resting = False  # after one: nothing is handed to it

    @property
    def has_room(self) -> bool:
        """Whether it can take one more at once."""
        return len(self.tickets) < self.replica.capacity


class Ticket:
    """One request in a lane: in line, or handed to a target.

    `on_ready` and `on_revoked` are called once when the target that it was handed to becomes
    ready, or when the ticket is taken away from it and is in line again.
    """

    __slots__ = (
        "_error",
        "_turn",
        "answered",
        "entered_s",
        "entry",
        "found_asleep",
        "handed_s",
        "on_ready",
        "on_revoked",
        "target",
    )

    entry: "Entry[Ticket]"

    def __init__(self) -> None:
        self.entered_s = time.monotonic()
        self.target: Target | None = None
        self.found_asleep = False  # the target was, when the ticket was handed to it
        self.handed_s = 0.0  # when it was, last
        self.answered = False  # response headers came
        self.on_ready: Callable[[], None] | None = None
        self.on_revoked: Callable[[], None] | None = None
        self._error: GlowplugError | None = None
        self._turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def handed(self) -> Target:
        """Wait for the ticket's turn: the target that it is handed to.

        Raises:
            GlowplugError: what the lane ended the wait with.
        """
        while self.target is None:
            if self._error is not None:
                raise self._error
            await self._turn
        return self.target

    def hand(self, target: Target) -> None:
        """It is its turn."""
        self.target = target
        self.handed_s = time.monotonic()
        self.found_asleep = target.replica.asleep
        target.tickets.add(self)
        self._wake()

    def take_away(self) -> None:
        """It has no target any more."""
        if self.target is not None:
            self.target.tickets.discard(self)
        self.target = None
        self.on_ready = self.on_revoked = None
        self._turn = asyncio.get_running_loop().create_future()

    def fail(self, error: GlowplugError) -> None:
        """Its turn will not come."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if not self._turn.done():
            self._turn.set_result(None)
