"""A forecast's series in slices of some hours: what the table and the plots show."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

if TYPE_CHECKING:
    from glowplug.client import Json


@dataclass(frozen=True, kw_only=True)
class Slice:
    """Some time in a row. What came is None for what lies ahead."""

    start: datetime  # in the function's zone
    hours: float
    foretold: float  # requests
    came: int | None
    chance: float  # of a request in the likeliest five minutes
    replicas: int  # foretold, at most
    peak: int | None  # requests at once

    @property
    def middle_s(self) -> float:
        """Unix time."""
        return self.start.timestamp() + self.hours * 1800


def slices(report: "Json", *, hours: float) -> list[Slice]:
    """Past and future, cut at multiples of `hours` (24 by a whole number) of the zone's clock; the
    first and the last of each may be shorter."""
    return [
        *_slices(report, report["past"], hours=hours),
        *_slices(report, report["ahead"], hours=hours),
    ]


def _slices(report: "Json", series: Mapping[str, Any] | None, *, hours: float) -> Iterator[Slice]:
    if series is None:
        return
    bin_s, zone = report["bin_s"], ZoneInfo(report["timezone"])
    size_s = hours * 3600
    count = len(series["chance"])
    first = 0
    for end in range(1, count + 1):
        start_s = series["start"] + first * bin_s
        if end < count and _cut(start_s, zone, size_s) == _cut(
            series["start"] + end * bin_s, zone, size_s
        ):
            continue
        came = series.get("arrivals")
        yield Slice(
            start=datetime.fromtimestamp(start_s, zone),
            hours=(end - first) * bin_s / 3600,
            foretold=sum(series["expected_arrivals"][first:end]),
            came=None if came is None else sum(came[first:end]),
            chance=max(series["chance"][first:end]),
            replicas=max(series["replicas"][first:end]),
            peak=None if came is None else max(series["peak"][first:end]),
        )
        first = end


def _cut(at_s: float, zone: ZoneInfo, size_s: float) -> tuple[object, int]:
    """Which slice of which day a moment is in."""
    local = datetime.fromtimestamp(at_s, zone)
    return local.date(), int((local.hour * 3600 + local.minute * 60) // size_s)
