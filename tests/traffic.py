"""A traffic history in memory, for tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scaler.minutes import Minute


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
