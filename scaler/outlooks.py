"""Outlooks: what lies ahead of each function, for plan(), on plan's clock.

The reconciler asks in every round, on its loop, and is told when to look again. Today the floors
are scheduled prewarms; a forecast adds its own in `look`.

A prewarm's replicas are launched ahead of its start by what a start of this function takes: the
95th percentile of the last ones, and a margin for the round, a failed try and a slow disk. A window
whose launch time has come stays on to its end, though the start time turns out shorter or the wall
clock is set back meanwhile; one that is set forward past a launch, or a start, finds the window on.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from glowplug.contracts import PrewarmRun
from glowplug.schedule import Schedule
from scaler.outlook import Floor, Outlook
from scaler.schedule import Window, windows
from scaler.state import Tracked

UNMEASURED_START_S = 4.0  # before the first start of a function
MARGIN_S = 4.0
AHEAD = 3  # windows of a schedule that are kept and shown, beside the one that is on
_SET_BACK_S = 600.0  # a wall clock set back by less does not end what was launched


@dataclass
class _Prewarm:
    """One schedule, with its windows around the time that it was asked last."""

    schedule: Schedule
    begun_s: float = -math.inf  # the start of the newest window whose launch time has come
    _windows: list[Window] = field(default_factory=list)
    _from_s: float = math.inf  # the windows are right from here
    _to_s: float = -math.inf  # up to here

    def windows(self, wall_s: float) -> list[Window]:
        """What is on, and the next."""
        if not self._from_s <= wall_s < self._to_s:
            self._windows = windows(self.schedule, wall_s, ahead=AHEAD)
            starts = (window.start_s for window in self._windows)
            self._from_s = wall_s
            self._to_s = min((start for start in starts if start > wall_s), default=math.inf)
        return [window for window in self._windows if window.end_s > wall_s]

    def launched(self, wall_s: float, lead_s: float) -> list[tuple[Window, bool]]:
        """The same, each with whether its replicas are wanted now."""
        if self.begun_s - lead_s - _SET_BACK_S > wall_s:  # the clock was wrong then, or is now
            self.begun_s = -math.inf
        found = self.windows(wall_s)
        due = (window.start_s for window in found if window.start_s - lead_s <= wall_s)
        self.begun_s = max(self.begun_s, *due, -math.inf)
        return [(window, window.start_s <= self.begun_s) for window in found]


_NOTHING: tuple[list[Schedule], list[_Prewarm]] = ([], [])


class Outlooks:
    """Keeps the next windows of all functions."""

    def __init__(self, *, now: Callable[[], float], wall: Callable[[], float]) -> None:
        """`now` is plan's clock, `wall` Unix time; either may be a test's."""
        self._now = now
        self._wall = wall
        self._prewarms: dict[str, tuple[list[Schedule], list[_Prewarm]]] = {}  # by function
        self._edges: dict[str, float] = {}  # when each function's floors change next, on `now`

    def look(self, functions: Iterable[Tracked], now_s: float) -> dict[str, Outlook]:
        """The outlook of each function that has one."""
        ahead_s = self._wall() - now_s
        found: dict[str, Outlook] = {}
        for tracked in functions:
            self._edges.pop(tracked.name, None)
            floors = self._scheduled(tracked, now_s, ahead_s)
            if floors:
                found[tracked.name] = Outlook(floors=tuple(floors))
                times = (time for floor in floors for time in (floor.from_s, floor.until_s))
                later = [time for time in times if time > now_s]
                self._edges[tracked.name] = min(later, default=math.inf)
        return found

    @property
    def next_edge_s(self) -> float:
        """When a floor begins or ends next, on `now`."""
        return min(self._edges.values(), default=math.inf)

    def due(self, now_s: float) -> set[str]:
        """The functions whose floors have begun or ended since they were looked at. Each is named
        once: a look finds the next edge."""
        names = {name for name, edge_s in self._edges.items() if edge_s <= now_s}
        for name in names:
            del self._edges[name]
        return names

    def runs(self, tracked: Tracked) -> Sequence[PrewarmRun]:
        """What is on and what is next of each enabled schedule, in the order of their starts."""
        if not tracked.function.spec.schedules:
            return ()
        wall_s, lead_s = self._wall(), start_s(tracked) + MARGIN_S
        runs = [
            PrewarmRun(
                name=prewarm.schedule.name,
                launch_s=window.start_s - lead_s,
                ready_by_s=window.start_s,
                until_s=window.end_s,
                replicas=prewarm.schedule.min_replicas,
                timezone=prewarm.schedule.timezone,
                active=active,
            )
            for prewarm in self._of(tracked)
            for window, active in prewarm.launched(wall_s, lead_s)
        ]
        return sorted(runs, key=lambda run: (run.ready_by_s, run.name))

    def forget(self, function: str) -> None:
        """It is deleted."""
        self._prewarms.pop(function, None)
        self._edges.pop(function, None)

    def _scheduled(self, tracked: Tracked, now_s: float, ahead_s: float) -> list[Floor]:
        """`ahead_s` is how far the wall clock is ahead of `now`."""
        lead_s = start_s(tracked) + MARGIN_S
        return [
            Floor(
                from_s=min(now_s, from_s) if launched else from_s,
                until_s=window.end_s - ahead_s,
                replicas=prewarm.schedule.min_replicas,
                reason=_reason(prewarm.schedule, window),
            )
            for prewarm in self._of(tracked)
            for window, launched in prewarm.launched(now_s + ahead_s, lead_s)
            for from_s in [window.start_s - lead_s - ahead_s]
        ]

    def _of(self, tracked: Tracked) -> list[_Prewarm]:
        """Its schedules as they are now; what has not changed keeps what is known of it."""
        schedules = tracked.function.spec.schedules
        last, known = self._prewarms.get(tracked.name, _NOTHING)
        if schedules is not last:
            known = [_continued(schedule, known) for schedule in schedules]
            self._prewarms[tracked.name] = schedules, known
        return known


def start_s(tracked: Tracked) -> float:
    """What a start of this function takes: the 95th percentile (nearest rank) of the last ones."""
    starts = sorted(tracked.starts_s)
    return starts[math.ceil(0.95 * len(starts)) - 1] if starts else UNMEASURED_START_S


def _continued(schedule: Schedule, known: list[_Prewarm]) -> _Prewarm:
    before = next((each for each in known if each.schedule.name == schedule.name), None)
    if before is None:
        return _Prewarm(schedule)
    return before if before.schedule == schedule else _Prewarm(schedule, begun_s=before.begun_s)


def _reason(schedule: Schedule, window: Window) -> str:
    from datetime import datetime

    from glowplug.schedule import zone_of

    start = datetime.fromtimestamp(window.start_s, zone_of(schedule.timezone))
    return f"prewarm '{schedule.name}' {start:%H:%M} {schedule.timezone}"
