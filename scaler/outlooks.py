"""Outlooks: what lies ahead of each function, for plan(), on plan's clock.

The reconciler asks in every round, on its loop, and is told when to look again. The floors are
scheduled prewarms and those of the forecast, for which a tick is soon enough.

A prewarm's replicas are launched ahead of its start by what a start of this function takes: the
95th percentile of the last ones, and a margin for the round, a failed try and a slow disk. A window
whose launch time has come stays on to its end, though the start time turns out shorter or the wall
clock is set back meanwhile; one that is set forward past a launch, or a start, finds the window on.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

from glowplug.contracts import PrewarmRun
from glowplug.schedule import Schedule
from scaler.outlook import DEFAULT_START_S, MARGIN_S, Floor, Outlook, next_edge
from scaler.schedule import Window, windows
from scaler.state import Tracked

AHEAD = 4  # windows of a schedule that are looked for at once, beside the one that is on
_SET_BACK_S = 600.0  # a wall clock set back by less does not end what was launched
_DRIFT_S = 0.01  # of the clocks against each other, until floors are made anew


@dataclass
class _Prewarm:
    """One schedule, with its windows around the time that it was asked last."""

    schedule: Schedule
    spread: float  # 0 to 1: looking for windows takes a while, so not all do it at one moment
    begun_s: float = -math.inf  # the start of the newest window whose launch time has come
    _windows: list[Window] = field(default_factory=list)
    _from_s: float = math.inf  # they are right from here
    _to_s: float = -math.inf  # up to here

    def windows(self, wall_s: float) -> list[Window]:
        """What is on, and the next."""
        if not self._from_s <= wall_s < self._to_s:
            self._windows = windows(self.schedule, wall_s, ahead=AHEAD)
            self._from_s, self._to_s = wall_s, math.inf
            if len(self._windows) >= AHEAD:  # else these are all that there are
                before, until = (window.start_s for window in self._windows[-3:-1])
                self._to_s = before + (until - before) * (0.25 + self.spread / 2)
        begun = [window for window in self._windows if window.start_s <= wall_s]
        on = [window for window in begun[-1:] if window.end_s > wall_s]
        return on + self._windows[len(begun) :]

    def launched(self, wall_s: float, lead_s: float) -> list[tuple[Window, bool]]:
        """The same, each with whether its replicas are wanted now."""
        if self.begun_s - lead_s - _SET_BACK_S > wall_s:  # the clock was wrong then, or is now
            self.begun_s = -math.inf
        found = self.windows(wall_s)
        due = (window.start_s for window in found if window.start_s - lead_s <= wall_s)
        self.begun_s = max(self.begun_s, *due, -math.inf)
        return [(window, window.start_s <= self.begun_s) for window in found]


@dataclass(frozen=True, kw_only=True)
class _Look:
    """An outlook and what it was made from. It is right from `now_s` to `edge_s`, on plan's clock,
    where the next floor begins or ends."""

    schedules: list[Schedule]
    lead_s: float
    ahead_s: float
    now_s: float
    edge_s: float
    outlook: Outlook

    def holds(
        self, schedules: list[Schedule], *, lead_s: float, ahead_s: float, now_s: float
    ) -> bool:
        """Whether it would be the same now."""
        return (
            schedules is self.schedules
            and lead_s == self.lead_s
            and abs(ahead_s - self.ahead_s) < _DRIFT_S
            and self.now_s <= now_s < self.edge_s
        )


_NOTHING: tuple[list[Schedule], list[_Prewarm]] = ([], [])


class Outlooks:
    """Keeps the next windows of all functions."""

    def __init__(
        self,
        *,
        now: Callable[[], float],
        wall: Callable[[], float],
        forecast: Callable[[str], Outlook | None] = lambda _function: None,
    ) -> None:
        """`now` is plan's clock, `wall` Unix time; either may be a test's. `forecast` has what
        is foretold of a function, in Unix time."""
        self._forecast = forecast
        self._now = now
        self._wall = wall
        self._prewarms: dict[str, tuple[list[Schedule], list[_Prewarm]]] = {}  # by function
        self._looks: dict[str, _Look] = {}  # the last of each function that has an outlook
        self._edges: dict[str, float] = {}  # theirs, until they have been told

    def look(self, functions: Iterable[Tracked], now_s: float) -> dict[str, Outlook]:
        """The outlook of each of these functions."""
        ahead_s = self._wall() - now_s  # of the wall clock
        found: dict[str, Outlook] = {}
        for tracked in functions:
            name, schedules = tracked.name, tracked.function.spec.schedules
            takes_s = start_s(tracked)
            if not schedules:
                if name in self._prewarms:
                    self.forget(name)
                found[name] = Outlook(start_s=takes_s)
                continue
            lead_s = takes_s + MARGIN_S
            look = self._looks.get(name)
            known = look is not None and look.holds(
                schedules, lead_s=lead_s, ahead_s=ahead_s, now_s=now_s
            )
            if look is None or not known:
                floors = self._scheduled(tracked, lead_s=lead_s, ahead_s=ahead_s, now_s=now_s)
                look = self._looks[name] = _Look(
                    schedules=schedules,
                    lead_s=lead_s,
                    ahead_s=ahead_s,
                    now_s=now_s,
                    edge_s=next_edge(floors, now_s),
                    outlook=Outlook(floors=floors, start_s=takes_s),
                )
            self._edges[name] = look.edge_s
            found[name] = look.outlook
        return {
            name: self._with_forecast(name, outlook, ahead_s) for name, outlook in found.items()
        }

    def _with_forecast(self, function: str, outlook: Outlook, ahead_s: float) -> Outlook:
        if (foretold := self._forecast(function)) is None:
            return outlook
        floors = (
            replace(floor, from_s=floor.from_s - ahead_s, until_s=floor.until_s - ahead_s)
            for floor in foretold.floors
        )
        season = foretold.season and replace(
            foretold.season, start_s=foretold.season.start_s - ahead_s
        )
        return replace(outlook, floors=(*outlook.floors, *floors), season=season)

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
        self._looks.pop(function, None)
        self._edges.pop(function, None)

    def _scheduled(
        self, tracked: Tracked, *, lead_s: float, ahead_s: float, now_s: float
    ) -> tuple[Floor, ...]:
        floors = []
        for prewarm in self._of(tracked):
            for window, launched in prewarm.launched(now_s + ahead_s, lead_s):
                from_s = window.start_s - lead_s - ahead_s
                floor = Floor(
                    from_s=min(now_s, from_s) if launched else from_s,
                    until_s=window.end_s - ahead_s,
                    replicas=prewarm.schedule.min_replicas,
                    reason=_reason(prewarm.schedule, window),
                )
                floors.append(floor)
        return tuple(floors)

    def _of(self, tracked: Tracked) -> list[_Prewarm]:
        """Its schedules as they are now; what has not changed keeps what is known of it."""
        schedules = tracked.function.spec.schedules
        last, known = self._prewarms.get(tracked.name, _NOTHING)
        if schedules is not last:
            known = [_continued(tracked.name, schedule, known) for schedule in schedules]
            self._prewarms[tracked.name] = schedules, known
        return known


def start_s(tracked: Tracked) -> float:
    """What a start of this function takes: the 95th percentile (nearest rank) of the last ones."""
    starts = sorted(tracked.starts_s)
    return starts[math.ceil(0.95 * len(starts)) - 1] if starts else DEFAULT_START_S


def _continued(function: str, schedule: Schedule, known: list[_Prewarm]) -> _Prewarm:
    before = next((each for each in known if each.schedule.name == schedule.name), None)
    if before is not None and before.schedule == schedule:
        return before
    begun_s = -math.inf if before is None else before.begun_s
    spread = crc32(f"{function}/{schedule.name}".encode()) / 2**32
    return _Prewarm(schedule, spread, begun_s=begun_s)


def _reason(schedule: Schedule, window: Window) -> str:
    from datetime import datetime

    from glowplug.schedule import zone_of

    start = datetime.fromtimestamp(window.start_s, zone_of(schedule.timezone))
    return f"prewarm '{schedule.name}' {start:%H:%M} {schedule.timezone}"
