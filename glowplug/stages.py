"""Where the time of a request or a start goes: named stages in milliseconds.

On the wire stages travel in the standard `Server-Timing` header, so browsers and proxies
understand them too.
"""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_ENTRY = re.compile(r"\s*([A-Za-z0-9_-]+)\s*;\s*dur=(\d+(?:\.\d+)?)\s*")


class Stopwatch:
    """Collects stage durations in order; `stages` maps a name to milliseconds."""

    def __init__(self) -> None:
        self.stages: dict[str, float] = {}
        self._last_s = time.perf_counter()

    def lap(self, name: str) -> None:
        """Book the time since the last lap (or the start) under `name`."""
        now_s = time.perf_counter()
        self.stages[name] = self.stages.get(name, 0.0) + (now_s - self._last_s) * 1e3
        self._last_s = now_s

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Book the time of the `with` block under `name`; laps go on after it."""
        self._last_s = time.perf_counter()
        try:
            yield
        finally:
            self.lap(name)


def to_server_timing(stages: Mapping[str, float]) -> str:
    """Format stages (milliseconds) as a `Server-Timing` header value."""
    return ", ".join(f"{name};dur={ms:.2f}" for name, ms in stages.items())


def from_server_timing(value: str) -> dict[str, float]:
    """Parse a `Server-Timing` header value; entries that are not ours are passed over."""
    stages = {}
    for entry in value.split(","):
        if match := _ENTRY.fullmatch(entry):
            stages[match[1]] = float(match[2])
    return stages
