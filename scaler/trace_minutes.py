"""Traces as minutes of traffic, and old minutes moved to where a forecast looks. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from scaler.minutes import Bin, Minute
from scaler.traces import Trace

DAY = 1440
WEEK = 7 * DAY


def minutes_of(trace: Trace, *, start_s: float, service_s: float) -> list[Minute]:
    """The trace's traffic, if it starts at this Unix time and every request is served at once, for
    `service_s` (up to a day): traces do not say how long requests took."""
    bins: dict[int, Bin] = {}
    arrivals = trace.arrivals_s
    begun = ended = 0  # requests; those between are open
    now = 0

    def go_to(at_s: float) -> Bin:
        nonlocal now
        minute = int((start_s + at_s) // 60)
        if begun > ended:  # those that are open are so in every minute on the way
            for passed in range(now + 1, minute + 1):
                bins.setdefault(passed, Bin()).peak = begun - ended
        now = minute
        return bins.setdefault(minute, Bin())

    while ended < len(arrivals):
        ends_s = arrivals[ended] + service_s
        if begun < len(arrivals) and (begun == ended or arrivals[begun] < ends_s):
            entry = go_to(arrivals[begun])
            begun += 1
            entry.arrivals += 1
            entry.peak = max(entry.peak, begun - ended)
        else:
            entry = go_to(ends_s)
            ended += 1
            entry.finished += 1
            entry.service_s += service_s
    return [
        Minute(
            minute=minute,
            arrivals=entry.arrivals,
            peak=entry.peak,
            finished=entry.finished,
            service_s=entry.service_s,
        )
        for minute, entry in sorted(bins.items())
    ]


def shifted(minutes: Sequence[Minute], *, newest: int, step: int) -> list[Minute]:
    """Moved by a multiple of `step` minutes so that the last of them is in the step up to and
    including the minute `newest`. By whole weeks, hours of the week stay what they are in UTC."""
    if not minutes:
        return []
    by = (newest - minutes[-1].minute) // step * step
    return [replace(each, minute=each.minute + by) for each in minutes]
