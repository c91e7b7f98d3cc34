"""Traffic histories for tests: seconds of arrivals as the minutes that a history keeps of them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scaler.minutes import Minute


def minutes_of(requests: Iterable[tuple[float, float]]) -> list[Minute]:
    """Minutes of requests (arrival in Unix time, seconds it takes), in the order of arrival, each
    served at once."""
    arrivals: dict[int, int] = defaultdict(int)
    moves = []
    for at_s, service_s in requests:
        arrivals[int(at_s // 60)] += 1
        moves += [(at_s, 1), (at_s + service_s, -1)]
    peaks: dict[int, int] = defaultdict(int)
    running, last = 0, 0
    for at_s, move in sorted(moves):
        minute = int(at_s // 60)
        if running:
            for between in range(last, minute + 1):
                peaks[between] = max(peaks[between], running)
        running, last = running + move, minute
        peaks[minute] = max(peaks[minute], running)
    return [
        Minute(minute=minute, arrivals=arrivals[minute], peak=peaks[minute])
        for minute in sorted(peaks)
    ]


@dataclass
class MemoryTraffic:
    """Implements scaler.forecasts.TrafficReader."""

    minutes: Mapping[str, Sequence[Minute]] = field(default_factory=dict)
    reads: list[tuple[str, int, int]] = field(default_factory=list)

    async def read(self, function: str, from_minute: int, until_minute: int) -> Sequence[Minute]:
        self.reads.append((function, from_minute, until_minute))
        return [
            each
            for each in self.minutes.get(function, ())
            if from_minute <= each.minute < until_minute
        ]
