"""Which requests may begin: none while the replica drains, and no more than a bound at once.

Used on the event loop only.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from glowplug.errors import Overloaded, Unavailable


class Admission:
    """Counts running requests; the pod drains it when it releases the replica."""

    def __init__(self, *, max_running: int = 1024) -> None:
        self._max_running = max_running
        self._running = 0
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> int:
        """Requests that have begun and are not answered yet."""
        return self._running

    @property
    def draining(self) -> bool:
        """Whether new requests are refused for good."""
        return self._draining

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Counts as running while the block runs.

        Raises:
            Unavailable: the replica is draining.
            Overloaded: too many requests run already.
        """
        if self._draining:
            raise Unavailable("this replica is shutting down; try again", retry_after_s=1)
        if self._running >= self._max_running:
            raise Overloaded(
                f"{self._running} requests are running, the limit; try again", retry_after_s=1
            )
        self._running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if self._running == 0:
                self._idle.set()

    def drain(self) -> None:
        """Refuse new requests from now on; those that run go on."""
        self._draining = True

    async def idle(self) -> None:
        """Wait until nothing runs."""
        await self._idle.wait()
