"""Reports as an activator makes them, for tests of the traffic history."""

from dataclasses import dataclass, field, replace
from typing import Any

from glowplug.contracts import DemandReport
from glowplug.spec import FunctionSpec


@dataclass
class Reporter:
    """Counts as a lane of an activator does."""

    name: str
    function: str = "f"
    counts: dict[str, Any] = field(default_factory=dict)
    sequence: int = 0

    def count(self, **more: float) -> None:
        for counter, by in more.items():
            self.counts[counter] = self.counts.get(counter, 0) + by

    def report(self, **gauges: int) -> DemandReport:
        self.sequence += 1
        empty = DemandReport(
            function=self.function,
            reporter=self.name,
            sequence=self.sequence,
            in_flight=0,
            queued=0,
            oldest_wait_s=0.0,
            arrivals=0,
            last_active_s=0.0,
        )
        return replace(empty, **self.counts, **gauges)


class Deployed:
    """A registry that only lists names."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)

    async def list(self) -> list[Any]:
        class Row:
            def __init__(self, name: str) -> None:
                self.spec = FunctionSpec(name=name, model="m")

        return [Row(name) for name in self.names]


class Clock:
    """Unix time that a test sets."""

    def __init__(self, now_s: float = 1_800_000_000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    @property
    def minute(self) -> int:
        return int(self.now_s // 60)
