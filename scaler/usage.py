"""Usage: how many replica-seconds each function has had, and how many of them were wasted.

Exact: between two changes nothing changes, and each change of a function's replicas or of its
requests in flight ends a span. On the event loop.

A replica exists from the moment it is asked for until it is gone. It is wasted while it starts, and
while its function has no request in flight; a request that waits for it in the kernel does not make
it useful. What a rule is good for is measured by the same in the simulator (scaler/simulate).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class Present(NamedTuple):
    """What a function has at one moment."""

    loading: int  # replicas that have not been ready yet
    serving: int  # replicas that are, or have been
    in_flight: int  # requests


@dataclass(slots=True)
class Used:
    """Replica-seconds of one function, up to `at_s`."""

    at_s: float
    present: Present
    total_s: float = 0.0
    wasted_s: float = 0.0

    def until(self, now_s: float) -> None:
        """Bring it up to this time; a clock that was set back does not take away."""
        passed_s = max(0.0, now_s - self.at_s)
        present = self.present
        idle = present.loading + (present.serving if not present.in_flight else 0)
        self.total_s += (present.loading + present.serving) * passed_s
        self.wasted_s += idle * passed_s
        self.at_s = now_s


class Usage:
    """Of all functions. `present` says what one has now; `deployed` whether there is such a one."""

    def __init__(
        self,
        *,
        present: Callable[[str], Present],
        deployed: Callable[[str], bool],
        now: Callable[[], float],
    ) -> None:
        self._present = present
        self._deployed = deployed
        self._now = now
        self._used: dict[str, Used] = {}

    def touch(self, function: str) -> None:
        """Its replicas, their states or its requests may have changed just now."""
        present, used = self._present(function), self._used.get(function)
        if used is None:
            if present.loading or present.serving:
                self._used[function] = Used(self._now(), present)
        elif used.present != present:
            used.until(self._now())
            used.present = present
            if not (present.loading or present.serving or self._deployed(function)):
                del self._used[function]

    def of(self, function: str) -> tuple[float, float]:
        """Replica-seconds up to now: all, and the wasted ones among them."""
        used = self._used.get(function)
        if used is None:
            return 0.0, 0.0
        used.until(self._now())
        return used.total_s, used.wasted_s

    def forget(self, function: str) -> None:
        """It is deleted; what it still has is counted only if it comes back."""
        self._used.pop(function, None)
