"""A clock that runs so many times faster than real time, the same in all processes of a machine."""

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class FastClock:
    """At `since_s` of time.monotonic(), which is one for the whole machine, it is `unix_s`."""

    rate: float
    since_s: float
    unix_s: float

    def wall(self) -> float:
        """Unix time."""
        return self.unix_s + self.rate * (time.monotonic() - self.since_s)

    def now(self) -> float:
        """Monotonic time. Never behind time.monotonic(), which demand reports are stamped with."""
        return self.since_s + self.rate * (time.monotonic() - self.since_s)

    def real_s(self, until_s: float) -> float:
        """Real seconds until the wall clock shows this time; 0 where it is over."""
        return max(0.0, (until_s - self.wall()) / self.rate)
