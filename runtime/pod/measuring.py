"""Sends a replica's metrics to its pod: a moment after they change, and once more at its end.

So they outlive the replica, and nobody has to ask it; an idle one sends nothing. On its event loop.
"""

import asyncio
from collections.abc import Callable

_DELAY_S = 1.0  # what a crash can lose


class Measuring:
    """Call `changed` after changes, `flush` at the end."""

    def __init__(self, *, text: Callable[[], str], send: Callable[[str], None]) -> None:
        self._text = text
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def changed(self) -> None:
        """Send them soon."""
        if self._timer is None:
            self._timer = self._loop.call_later(_DELAY_S, self.flush)

    def flush(self) -> None:
        """Send them now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._send(self._text())
