"""Heartbeat: notices that a pod's supervisor has stopped turning without ending.

On the event loop; a task of LocalFleet's. The kernel tells of a process that dies; one that is
stopped or stuck keeps its stream open, and its replicas can neither be started nor released.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

_GRACE_S = 1.0  # this process may have been stopped itself: what has come meanwhile is read first


class Heartbeat:
    """Pings every `every_s`; anything that is heard within `limit_s` is a sign of life."""

    def __init__(
        self, ping: Callable[[], Awaitable[None]], *, every_s: float, limit_s: float
    ) -> None:
        """`ping` may raise ConnectionError: the end of the stream is noticed elsewhere."""
        self._ping = ping
        self._every_s = every_s
        self._limit_s = limit_s
        self._heard = asyncio.Event()

    def heard(self) -> None:
        """The pod has said something."""
        self._heard.set()

    async def until_silent(self) -> None:
        """Returns when the pod has not been heard for too long."""
        while True:
            await asyncio.sleep(self._every_s)
            self._heard.clear()
            try:
                async with asyncio.timeout(self._limit_s):
                    with suppress(ConnectionError):
                        await self._ping()
                    await self._heard.wait()
            except TimeoutError:
                await asyncio.sleep(_GRACE_S)
                if not self._heard.is_set():
                    return
