"""What a lane counts for the traffic history: peaks, services, warm calls, and its last report."""

import asyncio
import time
from typing import Any

import pytest

from glowplug.contracts import DemandReport, ReplicaState
from tests.unit.activator.test_lanes import House

READY, STARTING = ReplicaState.READY, ReplicaState.STARTING


@pytest.fixture
def house(world: Any) -> House:
    return House(world)


def served(lane: Any, ticket: Any) -> None:
    """The replica has answered, and the request is over."""
    lane.answered(ticket, ticket.target)
    lane.leave(ticket)


def test_a_burst_between_reports_shows_in_the_next_peak(world: Any) -> None:
    async def main() -> None:
        lane = world.lane()
        world.endpoints.put("r1", READY, capacity=2)
        tickets = [world.enter(lane) for _ in range(5)]
        for ticket in tickets[:4]:
            lane.leave(ticket)
        assert lane.demand().peak == lane.demand().peak == 5  # looking changes nothing
        reports = [lane.report(), lane.report()]
        assert [(each.in_flight, each.peak) for each in reports] == [(1, 5), (1, 1)]
        assert reports[0].sequence < reports[1].sequence
        lane.leave(tickets[4])
        assert [lane.report().peak, lane.report().peak] == [1, 0]

    asyncio.run(main())


def test_service_is_the_time_at_a_ready_replica(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)

    async def main() -> None:
        nonlocal now_s
        lane = world.lane()
        first, second, third, fourth = (world.enter(lane) for _ in range(4))
        now_s += 5  # in line at zero
        world.endpoints.put("r1", STARTING, capacity=2)
        now_s += 3  # handed over while it starts
        world.endpoints.put("r1", READY)
        now_s += 2
        served(lane, first)
        assert (lane.demand().finished, lane.demand().service_s) == (1, 2.0)
        now_s += 4  # the third was in line until now, the fourth still is
        served(lane, second)
        now_s += 1
        served(lane, third)
        assert (lane.demand().finished, lane.demand().service_s) == (3, 2.0 + 6.0 + 5.0)
        lane.leave(fourth)  # hung up before an answer
        assert (lane.demand().finished, lane.demand().service_s) == (3, 13.0)
        assert lane.demand().arrivals == 4

    asyncio.run(main())


def test_warm_calls_are_counted_apart(world: Any) -> None:
    async def main() -> None:
        lane = world.lane()
        waiting = asyncio.create_task(lane.ready())
        await asyncio.sleep(0)
        demand = lane.demand()
        assert (demand.arrivals, demand.warms, demand.queued, demand.peak) == (1, 1, 1, 0)
        world.endpoints.put("r1", READY)
        await waiting
        lane.leave(world.enter(lane))
        assert (lane.demand().arrivals, lane.demand().warms, lane.demand().peak) == (2, 1, 1)

    asyncio.run(main())


def test_each_lane_counts_under_a_name_of_its_own(world: Any) -> None:
    async def main() -> None:
        lanes = [world.lane(), world.lane()]
        assert len({lane.demand().reporter for lane in lanes}) == 2
        assert len({lanes[0].report().reporter for _ in range(3)}) == 1

    asyncio.run(main())


def assert_last_words(reports: list[DemandReport]) -> None:
    """The last report has all that was counted, and nothing to do."""
    last = reports[-1]
    assert (last.arrivals, last.in_flight, last.queued, last.oldest_wait_s) == (3, 0, 0, 0.0)
    assert last.sequence == max(report.sequence for report in reports)
    assert len({report.reporter for report in reports}) == 1


def test_what_was_counted_is_reported_before_the_end(house: House) -> None:
    async def main() -> None:
        lane = house.lanes.of("f")
        house.world.endpoints.put("r1", READY, capacity=1)
        tickets = [house.world.enter(lane) for _ in range(3)]
        await house.lanes.stop()  # before the loop came round to a report
        assert house.sink.reports[-1].peak == 3
        assert_last_words(house.sink.reports)
        for ticket in tickets:
            lane.leave(ticket)

    asyncio.run(main())


def test_a_deleted_function_reports_a_last_time(house: House) -> None:
    async def main() -> None:
        lane = house.lanes.of("f")
        house.world.endpoints.put("r1", READY, capacity=1)
        tickets = [house.world.enter(lane) for _ in range(3)]
        house.registry.change(None)
        for ticket in tickets[1:]:
            with pytest.raises(Exception, match="f"):
                await ticket.handed()
        assert_last_words(house.sink.reports)
        for ticket in tickets:
            lane.leave(ticket)
        count = len(house.sink.reports)
        await asyncio.sleep(0)
        assert len(house.sink.reports) == count

    asyncio.run(main())
