"""Laps: where the time of one request goes, from its arrival to the headers of its answer.

The activator's stages follow each other without gap or overlap, so they add up to the whole:

    admission   key, function and limits checked
    read        the request's body came in from the client
    decision    waiting until the scaler had decided and the pod had the assignment
    assign      waiting until the replica, listening already, was known here
    start       waiting while the replica that answered was starting
    queue       waiting until that replica, ready by then, had room
    connect     the connection to the replica
    retry       lost on a replica that ended before it was ready, or refused the connection
    upstream    the replica worked on it, beyond the stages that it reports itself
    stream      (log only) from the headers to the end of the answer

Between them stand the replica's own stages (tokenize, prefill, …), as its `Server-Timing` header
reports them; where a name is taken it gets the prefix `engine-`. A request that waited for a start
also gets `start-NAME` for each stage of that start; those lie inside `assign` and `start`.
"""

import time
from collections.abc import Mapping

OWN_STAGES = frozenset(
    (
        *("admission", "read", "decision", "assign", "start", "queue", "connect"),
        *("retry", "upstream", "stream"),
    )
)


class Laps:
    """Books time under stage names; `stages` maps a name to milliseconds, in order of first use."""

    __slots__ = ("_last_s", "stages")

    def __init__(self, start_s: float) -> None:
        self.stages: dict[str, float] = {}
        self._last_s = start_s  # time.monotonic()

    def until(self, stage: str, when_s: float | None = None) -> None:
        """Book the time since the last booking, up to `when_s` (default: now) under `stage`.

        A moment before the last booking books nothing.
        """
        when_s = time.monotonic() if when_s is None else when_s
        spent_s = when_s - self._last_s
        if spent_s > 0:
            self.stages[stage] = self.stages.get(stage, 0.0) + spent_s * 1e3
            self._last_s = when_s

    def split_upstream(self, theirs: Mapping[str, float]) -> None:
        """Put the replica's own stages in, at the expense of `upstream`."""
        rest_ms = self.stages.pop("upstream", 0.0)
        for name, ms in theirs.items():
            self.stages[f"engine-{name}" if name in OWN_STAGES else name] = ms
            rest_ms -= ms
        self.stages["upstream"] = max(rest_ms, 0.0)

    def sum_ms(self, *stages: str) -> float:
        """What is booked under these names."""
        return sum(self.stages.get(stage, 0.0) for stage in stages)
