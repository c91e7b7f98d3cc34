"""Tally: what one lane counts of its requests, for its demand reports. See DemandReport."""

import time
import uuid

from activator.ticket import Ticket
from glowplug.contracts import DemandReport


class Tally:
    """Counters of one lane, under an identity of their own. Only the lane changes them."""

    __slots__ = (
        "_arrivals",
        "_finished",
        "_last_active_s",
        "_peak",
        "_reporter",
        "_reports",
        "_service_s",
        "_warms",
    )

    def __init__(self) -> None:
        self._reporter = uuid.uuid4().hex
        self._reports = 0
        self._arrivals = 0
        self._warms = 0
        self._finished = 0
        self._service_s = 0.0
        self._peak = 0
        self._last_active_s = time.monotonic()

    def arrived(self) -> None:
        """A request has come, also one that is refused."""
        self._arrivals += 1

    def warm_arrived(self) -> None:
        """One has come that only waits for a ready replica."""
        self._arrivals += 1
        self._warms += 1

    def active(self) -> None:
        """Something has come or ended."""
        self._last_active_s = time.monotonic()

    def at_once(self, requests: int) -> None:
        """So many are open now."""
        self._peak = max(self._peak, requests)

    def left(self, ticket: Ticket) -> None:
        """A request is over; its service began when a ready replica had it."""
        target = ticket.target
        if ticket.answered and target is not None and target.ready_s is not None:
            self._finished += 1
            self._service_s += time.monotonic() - max(ticket.handed_s, target.ready_s)

    def reported(self, requests: int) -> None:
        """A report has been made, with so many open: the next one's peak starts from there."""
        self._reports += 1
        self._peak = requests

    def demand(
        self, function: str, *, in_flight: int, queued: int, oldest_wait_s: float
    ) -> DemandReport:
        """These with the counters."""
        return DemandReport(
            function=function,
            reporter=self._reporter,
            sequence=self._reports,
            in_flight=in_flight,
            queued=queued,
            oldest_wait_s=oldest_wait_s,
            arrivals=self._arrivals,
            warms=self._warms,
            finished=self._finished,
            service_s=self._service_s,
            peak=self._peak,
            last_active_s=self._last_active_s,
        )
