"""Breaker: when a function whose replicas fail may be started again, and what its callers hear.

A circuit breaker (Nygard, Release It!) kept as a value: every method returns the next one. The
reconciler holds one per function, reset by a new revision and by deploying again.

Starts that fail in a row wait 1, 2, 4 ... 60 s. From the third on the breaker is open for that
time: callers are refused with the cause. After it, it is half-open: one start is tried when someone
asks, and decides. Replicas that become ready and die within seconds are started again with the same
waits, the first one at once; from the third in a row on the breaker is open for them, too.
"""

import math
from dataclasses import dataclass, replace

OPEN_AFTER = 3
_SOON_S = 10.0
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Breaker:
    """Failures in a row and the time of the next try (time.monotonic())."""

    failures: int = 0  # starts that failed
    deaths: int = 0  # replicas that died soon after they were ready
    cause: str | None = None
    retry_at_s: float = -math.inf

    @property
    def failing(self) -> bool:
        """The last start failed, or replicas keep dying: try one at a time, for requests only."""
        return self.failures > 0 or self.deaths > 1

    def may_start(self, now_s: float) -> bool:
        """Whether the wait is over."""
        return now_s >= self.retry_at_s

    def is_open(self, now_s: float) -> bool:
        """Whether callers should be refused with the cause."""
        return max(self.failures, self.deaths) >= OPEN_AFTER and not self.may_start(now_s)

    def start_failed(self, now_s: float, cause: str) -> "Breaker":
        """A start failed. Those that fail during a wait began before it and are one failure."""
        if not self.may_start(now_s):
            return replace(self, cause=cause)
        failures = self.failures + 1
        return replace(
            self, failures=failures, cause=cause, retry_at_s=now_s + _wait_s(failures - 1)
        )

    def became_ready(self) -> "Breaker":
        """A replica is ready: starts work."""
        return Breaker(deaths=self.deaths)

    def died(self, now_s: float, *, lived_s: float, cause: str) -> "Breaker":
        """A ready replica died by itself, `lived_s` after it became ready. Those that die during a
        wait may have died of the same, and are one death."""
        if lived_s >= _SOON_S:
            return replace(self, deaths=0)
        if not self.may_start(now_s):
            return replace(self, cause=cause)
        deaths = self.deaths + 1
        wait_s = 0.0 if deaths == 1 else _wait_s(deaths - 2)
        return replace(self, deaths=deaths, cause=cause, retry_at_s=now_s + wait_s)

    def ended_well(self) -> "Breaker":
        """A ready replica was released as planned."""
        return replace(self, deaths=0)


def _wait_s(doublings: int) -> float:
    return float(min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** min(doublings, 16)))
