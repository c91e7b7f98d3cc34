"""Outlooks: the windows of schedules as floors on plan's clock, and what they survive."""

from collections import deque
from datetime import datetime

import pytest

from glowplug.contracts import Function
from glowplug.spec import parse_spec
from scaler.outlook import DEFAULT_START_S, Floor, Outlook, highest
from scaler.outlooks import MARGIN_S, Outlooks, start_s
from scaler.state import STARTS_KEPT, Tracked

MONDAY_8 = datetime.fromisoformat("2028-06-05T08:00+02:00").timestamp()
LEAD_S = DEFAULT_START_S + MARGIN_S
MORNING = {
    "name": "morning",
    "cron": "0 8 * * 1-5",
    "duration": "2h",
    "timezone": "Europe/Berlin",
    "min_replicas": 2,
}


def tracked(*schedules: dict[str, object], **fields: object) -> Tracked:
    spec = {"name": "f", "model": "/m", "max_replicas": 9, "schedules": list(schedules)}
    return Tracked(function=Function(spec=parse_spec(spec | fields), generation=1))


class Clocks:
    """Two clocks that pass together, unless the wall clock is set."""

    def __init__(self, wall_s: float = MONDAY_8 - 3600) -> None:
        self.now_s = 500.0
        self.wall_s = wall_s
        self.outlooks = Outlooks(now=lambda: self.now_s, wall=lambda: self.wall_s)

    def go(self, seconds: float) -> None:
        self.now_s += seconds
        self.wall_s += seconds

    def go_to(self, wall_s: float) -> None:
        self.go(wall_s - self.wall_s)

    def wanted(self, function: Tracked) -> int:
        """Replicas that the outlook asks for now."""
        outlook = self.outlooks.look([function], self.now_s).get(function.name)
        floor = highest(outlook.floors, self.now_s) if outlook else None
        return floor.replicas if floor else 0


def test_what_is_foretold_is_a_floor_beside_the_scheduled_ones() -> None:
    clocks = Clocks()
    foretold = Floor(from_s=MONDAY_8 - 60, until_s=MONDAY_8 + 60, replicas=3, reason="foretold")
    clocks.outlooks = Outlooks(
        now=lambda: clocks.now_s,
        wall=lambda: clocks.wall_s,
        forecast=lambda name: Outlook(floors=(foretold,)) if name == "f" else None,
    )
    scheduled, alone = tracked(MORNING), tracked()
    for wall_s, both, only in (
        (MONDAY_8 - 60.1, 0, 0),
        (MONDAY_8 - 59.9, 3, 3),
        (MONDAY_8 + 59.9, 3, 3),
        (MONDAY_8 + 60.1, 2, 0),
    ):
        clocks.go_to(wall_s)
        assert (clocks.wanted(scheduled), clocks.wanted(alone)) == (both, only)
    assert clocks.wanted(tracked(name="g")) == 0


def test_launched_ahead_of_the_start_and_kept_to_the_end() -> None:
    clocks, function = Clocks(), tracked(MORNING)
    for time, replicas in (
        (MONDAY_8 - LEAD_S - 0.01, 0),
        (MONDAY_8 - LEAD_S + 0.01, 2),
        (MONDAY_8, 2),
        (MONDAY_8 + 7199.9, 2),
        (MONDAY_8 + 7200.1, 0),
        (MONDAY_8 + 86400 - LEAD_S + 0.01, 2),  # the next day
    ):
        clocks.go_to(time)
        assert clocks.wanted(function) == replicas, time


def test_the_reason_is_for_people() -> None:
    clocks, function = Clocks(MONDAY_8), tracked(MORNING)
    floors = clocks.outlooks.look([function], clocks.now_s)["f"].floors
    assert floors[0].reason == "prewarm 'morning' 08:00 Europe/Berlin"


def test_floors_are_on_the_clock_of_plan() -> None:
    clocks, function = Clocks(MONDAY_8 - 3600), tracked(MORNING)
    first, *_ = clocks.outlooks.look([function], clocks.now_s)["f"].floors
    assert first.from_s == pytest.approx(500 + 3600 - LEAD_S, abs=1e-3)
    assert first.until_s == pytest.approx(500 + 3600 + 7200, abs=1e-3)
    assert clocks.outlooks.next_edge_s == first.from_s


def test_a_function_without_schedules_has_no_floors() -> None:
    clocks = Clocks()
    assert clocks.outlooks.look([tracked()], clocks.now_s) == {"f": Outlook()}
    assert clocks.outlooks.next_edge_s == float("inf")
    assert clocks.outlooks.runs(tracked()) == ()


def test_edges_are_each_told_once() -> None:
    clocks, function = Clocks(), tracked(MORNING)
    clocks.wanted(function)
    assert clocks.outlooks.due(clocks.now_s) == set()
    edges = []
    for _ in range(4):
        edge_s = clocks.outlooks.next_edge_s
        clocks.go(edge_s - clocks.now_s)
        edges.append(clocks.wall_s - MONDAY_8)
        assert clocks.outlooks.due(clocks.now_s) == {"f"}
        assert clocks.outlooks.due(clocks.now_s) == set()
        clocks.wanted(function)
    day = 86400
    assert edges == pytest.approx([-LEAD_S, 7200, day - LEAD_S, day + 7200], abs=1e-3)


def test_the_lead_is_the_measured_start_time() -> None:
    clocks, function = Clocks(), tracked(MORNING)
    function.starts_s.extend([1.0] * 18 + [30.0] * 2)
    assert start_s(function) == 30.0
    clocks.go_to(MONDAY_8 - 30 - MARGIN_S + 0.01)
    assert clocks.wanted(function) == 2


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        ([], DEFAULT_START_S),
        ([0.2], 0.2),
        ([3.0, 1.0], 3.0),
        (range(1, 21), 19),
        (range(1, 101), 98),  # of the last 50: 51 to 100
    ],
)
def test_the_95th_percentile(starts: list[float], expected: float) -> None:
    function = tracked()
    function.starts_s = deque(starts, maxlen=STARTS_KEPT)
    assert start_s(function) == expected


def test_a_launch_stays_though_the_start_was_faster_than_thought() -> None:
    clocks, function = Clocks(), tracked(MORNING)
    clocks.go_to(MONDAY_8 - LEAD_S + 0.1)
    assert clocks.wanted(function) == 2
    function.starts_s.append(0.05)  # from now on one would launch later
    for _ in range(40):
        clocks.go(0.1)
        assert clocks.wanted(function) == 2


@pytest.mark.parametrize("back_s", [0.5, 30, 300])
def test_a_clock_that_is_set_back_does_not_end_what_was_launched(back_s: float) -> None:
    clocks, function = Clocks(), tracked(MORNING)
    clocks.go_to(MONDAY_8 - 1)
    assert clocks.wanted(function) == 2
    clocks.wall_s -= back_s
    for _ in range(int(back_s) + 10):
        assert clocks.wanted(function) == 2
        clocks.go(1)
    clocks.go_to(MONDAY_8 + 7201)
    assert clocks.wanted(function) == 0


def test_a_clock_that_was_wrong_by_days_is_believed_when_it_is_right() -> None:
    clocks, function = Clocks(MONDAY_8 + 86400 + 10), tracked(MORNING)
    assert clocks.wanted(function) == 2
    clocks.wall_s = MONDAY_8 - 7200
    assert clocks.wanted(function) == 0
    clocks.go_to(MONDAY_8 - LEAD_S - 1)
    assert clocks.wanted(function) == 0
    clocks.go(2)
    assert clocks.wanted(function) == 2


@pytest.mark.parametrize("into_s", [-3, 0, 1, 3600, 7199])
def test_a_clock_that_is_set_forward_finds_the_window_on(into_s: float) -> None:
    clocks, function = Clocks(MONDAY_8 - 40_000), tracked(MORNING)
    assert clocks.wanted(function) == 0
    clocks.wall_s = MONDAY_8 + into_s
    assert clocks.wanted(function) == 2


def test_of_overlapping_windows_the_highest_counts() -> None:
    late = MORNING | {"name": "late", "cron": "0 9 * * *", "min_replicas": 5}
    clocks, function = Clocks(), tracked(MORNING, late)
    seen = []
    for hours in (0.5, 1.5, 2.5, 3.5):
        clocks.go_to(MONDAY_8 + hours * 3600)
        seen.append(clocks.wanted(function))
    assert seen == [2, 5, 5, 0]


def test_windows_that_follow_each_other_have_no_gap() -> None:
    every = MORNING | {"cron": "*/5 * * * *", "duration": "5m"}
    clocks, function = Clocks(), tracked(every)
    for _ in range(700):
        clocks.go(1)
        assert clocks.wanted(function) == 2


def test_a_changed_schedule_counts_at_once() -> None:
    clocks = Clocks(MONDAY_8 + 60)
    assert clocks.wanted(tracked(MORNING)) == 2
    assert clocks.wanted(tracked(MORNING | {"enabled": False})) == 0
    assert clocks.wanted(tracked(MORNING)) == 2
    assert clocks.wanted(tracked(MORNING | {"min_replicas": 3})) == 3
    assert clocks.wanted(tracked(MORNING | {"cron": "0 9 * * *"})) == 0
    assert clocks.wanted(tracked()) == 0


def test_a_change_after_the_launch_keeps_what_was_launched() -> None:
    clocks, function = Clocks(), tracked(MORNING)
    clocks.go_to(MONDAY_8 - LEAD_S + 0.1)
    clocks.wanted(function)
    changed = tracked(MORNING | {"duration": "3h"})
    changed.starts_s.append(0.05)
    assert clocks.wanted(changed) == 2


def test_a_forgotten_function_has_no_edge() -> None:
    clocks, function = Clocks(), tracked(MORNING)
    clocks.wanted(function)
    clocks.outlooks.forget("f")
    assert clocks.outlooks.next_edge_s == float("inf")


def test_what_is_shown_is_right_however_it_was_looked_for() -> None:
    """The windows that are kept, over weeks in odd steps, against those looked for anew."""
    hourly = MORNING | {"name": "h", "cron": "7 */5 * * *", "duration": "90m"}
    clocks, function = Clocks(), tracked(MORNING, hourly)
    for step in range(400):
        clocks.go((step * 7919) % 9000)
        kept = clocks.outlooks.runs(function)
        anew = Clocks(clocks.wall_s).outlooks.runs(function)
        for name in ("morning", "h"):
            mine = [run for run in kept if run.name == name]
            assert mine == [run for run in anew if run.name == name][: len(mine)]
            assert sum(not run.active for run in mine) >= 1


def test_runs_are_the_one_that_is_on_and_the_next() -> None:
    once = {"name": "once", "at": "2028-06-05T09:00", "duration": "1h", "timezone": "Europe/Berlin"}
    clocks = Clocks(MONDAY_8 + 60)
    runs = clocks.outlooks.runs(tracked(MORNING, once, MORNING | {"name": "p", "enabled": False}))
    day = 86400
    assert [(run.name, run.ready_by_s - MONDAY_8, run.active) for run in runs] == [
        ("morning", 0, True),
        ("once", 3600, False),
        ("morning", day, False),
        ("morning", 2 * day, False),
        ("morning", 3 * day, False),
        ("morning", 4 * day, False),
    ]
    assert runs[0].until_s == MONDAY_8 + 7200
    assert runs[0].replicas == 2
    assert runs[1].launch_s == MONDAY_8 + 3600 - LEAD_S
    clocks.go_to(MONDAY_8 + 2 * 3600)
    assert [run.name for run in clocks.outlooks.runs(tracked(once))] == []
