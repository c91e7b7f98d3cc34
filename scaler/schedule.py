"""Windows of scheduled prewarms: from when to when one wants replicas. Pure: no clock, no state.

- A cron expression names *local* times in the schedule's time zone; each has one window.
- A local time that the clocks skip (the gap when summer time begins) stands for the first instant
  after the gap. One that comes twice (the fold when it ends) stands for the first of both. So each
  has exactly one, and the order of local times is kept; times that a gap makes equal are one.
- A window's duration is elapsed time: two hours are two hours over a change of the clocks too.
- The windows of one schedule may overlap; all have the same duration, so the latest that has begun
  ends last.

Times are Unix time in seconds; a window is [start, end).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

from glowplug.schedule import Schedule, parse_at, zone_of

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

_SECOND = timedelta(seconds=1)
_FOLD_S = 26 * 3600  # no zone ever set its clocks by more


@dataclass(frozen=True, kw_only=True, order=True)
class Window:
    """Replicas are ready by `start_s` and kept until `end_s`."""

    start_s: float
    end_s: float


def windows(schedule: Schedule, at_s: float, *, ahead: int) -> list[Window]:
    """The window that is on at `at_s` – the latest, if several are –, then the next `ahead` ones,
    in order. None for a schedule that is paused."""
    if not schedule.enabled:
        return []
    starts = list(islice(next_starts(schedule, at_s), ahead))
    latest = _latest_start(schedule, at_s)
    if latest is not None and at_s < latest + schedule.duration:
        starts.insert(0, latest)
    return [Window(start_s=start, end_s=start + schedule.duration) for start in starts]


def next_starts(schedule: Schedule, after_s: float) -> Iterator[int]:
    """The starts of its windows after `after_s`, strictly increasing, enabled or not."""
    from cronsim import CronSim

    if schedule.cron is None:
        if (start := _start_at(schedule)) > after_s:
            yield start
        return
    zone, last = zone_of(schedule.timezone), math.floor(after_s)
    # Whatever begins after `after_s` has a later local time than it, also within a fold.
    for local in CronSim(schedule.cron, _local(last, zone)):
        start = instant(local, zone)
        if start > last:
            yield start
            last = start


def instant(local: datetime, zone: "ZoneInfo") -> int:
    """The first instant at which the zone's clocks show `local` or, where they skip it, the first
    one after the gap. `local` is naive and of whole seconds."""
    before = local.replace(tzinfo=zone, fold=0)
    shown_s = round(before.timestamp())
    if _local(shown_s, zone) == local:  # zoneinfo moves what is in a gap without a word
        return shown_s
    after_s = round(local.replace(tzinfo=zone, fold=1).timestamp())
    offset = before.utcoffset()
    low_s, high_s = after_s, shown_s  # before the change of the clocks, and not before it
    while high_s - low_s > 1:
        middle_s = (low_s + high_s) // 2
        if datetime.fromtimestamp(middle_s, zone).utcoffset() == offset:
            low_s = middle_s
        else:
            high_s = middle_s
    return high_s


def _latest_start(schedule: Schedule, at_s: float) -> int | None:
    """The start of the latest window that has begun by `at_s`."""
    from cronsim import CronSim

    if schedule.cron is None:
        start = _start_at(schedule)
        return start if start <= at_s else None
    zone, whole_s = zone_of(schedule.timezone), math.floor(at_s)
    # In the second pass of a fold the first one's later times have begun too.
    latest = max(_local(whole_s, zone), _local(whole_s, zone, offset_at_s=whole_s - _FOLD_S))
    for local in CronSim(schedule.cron, latest + _SECOND, reverse=True):
        if (start := instant(local, zone)) <= whole_s:
            return start
    return None


def _start_at(schedule: Schedule) -> int:
    time = parse_at(schedule.at or "")
    if time.tzinfo is not None:
        return round(time.timestamp())
    return instant(time, zone_of(schedule.timezone))


def _local(at_s: int, zone: "ZoneInfo", *, offset_at_s: int | None = None) -> datetime:
    """What the zone's clocks show, naive; or would show, had they not been set since then."""
    if offset_at_s is None:
        return datetime.fromtimestamp(at_s, zone).replace(tzinfo=None, fold=0)
    offset = datetime.fromtimestamp(offset_at_s, zone).utcoffset() or timedelta()
    return datetime.fromtimestamp(at_s, UTC).replace(tzinfo=None) + offset
