"""Minute: one function's traffic in one minute. History keeps them, forecasts read them."""

from dataclasses import dataclass

KEPT_MINUTES = 8 * 7 * 1440  # how far back history goes


@dataclass(frozen=True, kw_only=True, order=True)
class Minute:
    """One bin of one function. Minutes without a request are not kept."""

    minute: int  # since 1970-01-01 00:00 UTC
    arrivals: int = 0
    peak: int = 0  # most requests in flight and queued at one moment
    finished: int = 0
    service_s: float = 0.0  # of the finished ones, together: at a replica, not in the queue


@dataclass
class Bin:
    """What is gathered of one minute, to be added to it."""

    arrivals: int = 0
    peak: int = 0
    finished: int = 0
    service_s: float = 0.0

    def add(self, other: "Bin") -> None:
        """Both together."""
        self.arrivals += other.arrivals
        self.peak = max(self.peak, other.peak)
        self.finished += other.finished
        self.service_s += other.service_s
