"""An event loop whose time passes only while everybody waits, and then at once."""

import asyncio
from typing import Any


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Sockets are real; timers fire in order and without waiting. Nothing to wait for is an error,
    as it would be for ever."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        selector: Any = self._selector  # type: ignore[attr-defined]
        self._real_select = selector.select
        selector.select = self._select

    def time(self) -> float:
        return self._now_s

    def _select(self, timeout_s: float | None) -> Any:
        events = self._real_select(0)
        if not events and timeout_s is None:
            raise RuntimeError("everybody waits, and nothing will come")
        if not events and timeout_s:
            self._now_s += timeout_s
        return events
