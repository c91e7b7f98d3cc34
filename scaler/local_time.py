"""Five-minute bins of a function's local time: what a season is counted in.

A bin is a whole number: minutes since 1970-01-01 00:00, divided by 5, in UTC or in local time. A
season repeats in local time, so a slot of the week is one of *local* bins; when clocks go forward
some slots have no bin that week, when they go back some have two.
"""

from datetime import datetime
from functools import cache
from zoneinfo import ZoneInfo

BIN_MINUTES = 5
BIN_S = 60 * BIN_MINUTES
BINS_PER_HOUR = 12
BINS_PER_DAY = 24 * BINS_PER_HOUR
BINS_PER_WEEK = 7 * BINS_PER_DAY
_THURSDAY = 3  # 1970-01-01 was one
_STEP = 3  # offsets from UTC change on quarter-hours only


class LocalTime:
    """Bins of one IANA zone. Remembers the last offset: bins are asked for in turn."""

    def __init__(self, timezone: str) -> None:
        """Raises zoneinfo.ZoneInfoNotFoundError (a KeyError)."""
        self._zone = ZoneInfo(timezone)
        self._step = -1
        self._offset_bins = 0

    def local_bin(self, utc_bin: int) -> int:
        """The bin that the clocks on the wall show. Some are passed over, some come twice."""
        if (step := utc_bin // _STEP) != self._step:
            local = datetime.fromtimestamp(step * _STEP * BIN_S, self._zone)
            offset = local.utcoffset()
            self._offset_bins = 0 if offset is None else int(offset.total_seconds() // BIN_S)
            self._step = step
        return utc_bin + self._offset_bins

    def slot(self, utc_bin: int) -> int:
        """Slot of the week: 0 from Monday 00:00, 2015 from Sunday 23:55."""
        return slot_of(self.local_bin(utc_bin))


def slot_of(local_bin: int) -> int:
    """Slot of the week of a bin of local time."""
    return (local_bin + _THURSDAY * BINS_PER_DAY) % BINS_PER_WEEK


@cache
def local_time(timezone: str) -> LocalTime:
    """The zone's, shared: what it remembers is only a shortcut."""
    return LocalTime(timezone)
