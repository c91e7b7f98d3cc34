"""Lane: who gets which request when, what comes back, and what is refused. No sockets here."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from activator.dispatch import Lane
from activator.ticket import Ticket
from glowplug.contracts import FunctionState, ReplicaState
from glowplug.errors import NotFound, Unavailable

STARTING, READY, DRAINING = ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(10):
            await main()

    asyncio.run(limited())


def targets_of(*tickets: Ticket) -> list[str | None]:
    return [ticket.target.replica.id if ticket.target else None for ticket in tickets]


async def failure(awaitable: Awaitable[Any]) -> BaseException:
    with pytest.raises(Exception) as caught:
        await awaitable
    return caught.value


def test_waits_at_zero_and_goes_to_a_replica_that_starts(world: Any) -> None:
    async def main() -> None:
        lane = world.lane()
        ticket = world.enter(lane)
        assert (lane.demand().queued, lane.demand().in_flight) == (1, 0)
        handed = asyncio.create_task(ticket.handed())
        await asyncio.sleep(0)
        assert not handed.done()
        world.endpoints.put("r1", STARTING)
        assert (await handed).replica.id == "r1"
        assert (lane.demand().queued, lane.demand().in_flight) == (0, 1)

    run(main)


def test_never_more_than_the_capacity_and_in_order(world: Any) -> None:
    async def main() -> None:
        lane = world.lane()
        tickets = [world.enter(lane) for _ in range(5)]
        world.endpoints.put("r1", READY, capacity=2)
        assert targets_of(*tickets) == ["r1", "r1", None, None, None]
        lane.leave(tickets[1])
        assert targets_of(*tickets) == ["r1", None, "r1", None, None]
        lane.leave(tickets[3])  # hangs up in line
        lane.leave(tickets[0])
        assert targets_of(*tickets) == [None, None, "r1", None, "r1"]

    run(main)


def test_least_loaded_first_and_the_oldest_of_equals(world: Any) -> None:
    async def main() -> None:
        lane = world.lane()
        for name in ("old", "new"):
            world.endpoints.put(name, READY, capacity=2)
        first, second, third = (world.enter(lane) for _ in range(3))
        assert targets_of(first, second, third) == ["old", "new", "old"]
        lane.leave(first)
        lane.leave(third)
        assert targets_of(world.enter(lane)) == ["old"]

    run(main)


def test_while_one_is_ready_nothing_waits_in_one_that_starts(world: Any) -> None:
    async def main() -> None:
        lane = world.lane()
        tickets = [world.enter(lane) for _ in range(4)]
        revoked: list[int] = []
        world.endpoints.put("slow", STARTING, capacity=3)
        world.endpoints.put("fast", STARTING, capacity=1)
        assert targets_of(*tickets) == ["slow", "slow", "slow", "fast"]
        for number, ticket in enumerate(tickets):
            ticket.on_revoked = lambda number=number: revoked.append(number)
        world.endpoints.put("fast", READY)
        assert sorted(revoked) == [0, 1, 2]
        assert targets_of(*tickets) == [None, None, None, "fast"]
        assert lane.demand().queued == 3
        lane.leave(tickets[3])
        assert targets_of(*tickets[:3]) == ["fast", None, None]
        world.endpoints.put("slow", READY)
        assert targets_of(*tickets[:3]) == ["fast", "slow", "slow"]

    run(main)


def test_a_starting_replica_that_ends_gives_its_requests_back_in_order(world: Any) -> None:
    async def main() -> None:
        lane = world.lane()
        tickets = [world.enter(lane) for _ in range(3)]
        world.endpoints.put("r1", STARTING, capacity=2)
        assert targets_of(*tickets) == ["r1", "r1", None]
        world.endpoints.drop("r1")
        assert targets_of(*tickets) == [None, None, None]
        world.endpoints.put("r2", READY, capacity=1)
        assert targets_of(*tickets) == ["r2", None, None]
        lane.leave(tickets[0])
        assert targets_of(*tickets) == [None, "r2", None]

    run(main)


def test_a_ready_replica_keeps_what_it_has_when_it_drains(world: Any) -> None:
    async def main() -> None:
        lane = world.lane()
        world.endpoints.put("r1", READY)
        running = world.enter(lane)
        world.endpoints.put("r1", DRAINING)
        assert targets_of(running, world.enter(lane)) == ["r1", None]
        world.endpoints.drop("r1")
        assert targets_of(running) == ["r1"]
        assert lane.demand().in_flight == 1
        lane.leave(running)
        assert lane.demand().in_flight == 0

    run(main)


def test_what_has_been_answered_is_not_taken_away(world: Any) -> None:
    async def main() -> None:
        lane = world.lane()
        ticket = world.enter(lane)
        world.endpoints.put("r1", STARTING)
        target = await ticket.handed()
        lane.answered(ticket, target)  # its headers overtook the news that it is ready
        assert target.ready_s is not None
        world.endpoints.drop("r1")
        assert targets_of(ticket) == ["r1"]

    run(main)


def test_on_ready_is_told_once(world: Any) -> None:
    async def main() -> None:
        lane = world.lane()
        ticket = world.enter(lane)
        world.endpoints.put("r1", STARTING)
        told: list[str] = []
        ticket.on_ready = lambda: told.append("ready")
        world.endpoints.put("r1", READY)
        world.endpoints.changed()
        assert told == ["ready"]

    run(main)


def test_a_replica_that_refuses_rests_and_is_tried_again(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        lane = world.lane()
        world.endpoints.put("r1", READY, capacity=4)
        tickets = [world.enter(lane) for _ in range(2)]
        target = await tickets[0].handed()
        for ticket in tickets:  # both connections fail at once: one rest, not a doubled one
            lane.put_back(ticket, target)
        assert target.refusals == 1
        assert targets_of(*tickets) == [None, None]
        assert await tickets[0].handed() is target  # by itself, without any change
        assert targets_of(*tickets) == ["r1", "r1"]
        lane.put_back(tickets[1], target)
        assert target.refusals == 2
        lane.answered(tickets[0], target)
        assert target.refusals == 0

    monkeypatch.setattr("activator.dispatch.FIRST_BACKOFF_S", 0.001)
    run(main)


def test_while_a_replica_rests_others_are_used(world: Any) -> None:
    async def main() -> None:
        lane = world.lane()
        world.endpoints.put("dead", READY)
        ticket = world.enter(lane)
        world.endpoints.put("starting", STARTING)
        lane.put_back(ticket, await ticket.handed())
        assert targets_of(ticket) == ["starting"]

    run(main)


def test_put_back_after_the_lane_has_moved_the_request_does_nothing(world: Any) -> None:
    async def main() -> None:
        lane = world.lane()
        ticket = world.enter(lane)
        world.endpoints.put("r1", STARTING)
        first = await ticket.handed()
        world.endpoints.put("r2", READY)  # takes it over
        lane.put_back(ticket, first)
        assert targets_of(ticket) == ["r2"]
        assert (lane.demand().in_flight, lane.demand().queued) == (1, 0)
        lane.leave(ticket)
        assert (lane.demand().in_flight, lane.demand().queued) == (0, 0)

    run(main)


def test_a_failed_function_ends_the_wait_with_its_reason(world: Any) -> None:
    async def main() -> None:
        lane = world.lane()
        waiting = world.enter(lane)
        handed = world.enter(lane)
        world.endpoints.put("r1", STARTING, capacity=1)
        assert targets_of(waiting) == ["r1"]
        waiting, handed = handed, waiting
        world.endpoints.fail("no such file: model.gguf")
        error = await failure(waiting.handed())
        assert isinstance(error, Unavailable)
        assert "no such file: model.gguf" in error.message
        assert error.retry_after_s == 30
        world.endpoints.drop("r1")
        assert isinstance(await failure(handed.handed()), Unavailable)
        with pytest.raises(Unavailable):
            world.enter(lane)
        assert (lane.demand().queued, lane.demand().in_flight) == (0, 0)

    run(main)


def test_a_failure_that_passes_without_news_is_noticed_by_the_next_request(world: Any) -> None:
    async def main() -> None:
        lane = world.lane()
        world.endpoints.fail("three starts failed")
        with pytest.raises(Unavailable):
            world.enter(lane)
        world.endpoints.state = FunctionState.ZERO  # a time has passed: nobody says so
        assert targets_of(world.enter(lane)) == [None]

    run(main)


def test_an_older_revision_serves_on_while_the_new_one_has_failed(world: Any) -> None:
    async def main() -> None:
        lane = world.lane()
        world.endpoints.put("r1", READY)
        world.endpoints.fail("the new model cannot be sealed")
        assert targets_of(world.enter(lane)) == ["r1"]

    run(main)


def test_deleting_ends_the_wait_but_not_what_runs(world: Any) -> None:
    async def main() -> None:
        lane = world.lane()
        world.endpoints.put("ready", READY, capacity=1)
        running, waiting = world.enter(lane), world.enter(lane)
        lane.close()
        assert isinstance(await failure(waiting.handed()), NotFound)
        assert targets_of(running) == ["ready"]
        lane.leave(running)

    run(main)


def test_deleting_takes_requests_away_from_a_replica_that_starts(world: Any) -> None:
    async def main() -> None:
        lane = world.lane()
        world.endpoints.put("r1", STARTING)
        ticket = world.enter(lane)
        revoked: list[bool] = []
        ticket.on_revoked = lambda: revoked.append(True)
        lane.close()
        assert revoked == [True]
        assert isinstance(await failure(ticket.handed()), NotFound)

    run(main)


def test_warming_counts_as_one_queued_request_until_a_replica_is_ready(world: Any) -> None:
    async def main() -> None:
        lane = world.lane()
        warming = asyncio.create_task(lane.ready())
        await asyncio.sleep(0)
        assert lane.demand().queued == 1
        world.endpoints.put("r1", STARTING)
        await asyncio.sleep(0)
        assert not warming.done()
        world.endpoints.put("r1", READY)
        assert (await warming).replica.id == "r1"
        assert (lane.demand().queued, lane.demand().arrivals) == (0, 1)
        assert (await lane.ready()).replica.id == "r1"

    run(main)


def test_warming_a_function_that_fails_ends_and_giving_up_withdraws(world: Any) -> None:
    async def main() -> None:
        lane = world.lane()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await lane.ready()
        assert lane.demand().queued == 0
        warming = asyncio.create_task(lane.ready())
        await asyncio.sleep(0)
        world.endpoints.fail("broken")
        assert isinstance(await failure(warming), Unavailable)

    run(main)


def test_demand_reports_the_oldest_wait_and_the_last_activity(world: Any) -> None:
    async def main() -> None:
        lane: Lane = world.lane()
        first = world.enter(lane)
        arrived_s = lane.demand().last_active_s
        await asyncio.sleep(0.02)
        world.enter(lane)
        assert 0.02 <= lane.demand().oldest_wait_s < 5
        entered_s = lane.demand().last_active_s
        assert entered_s >= arrived_s + 0.02
        await asyncio.sleep(0.02)
        before = world.changes
        lane.leave(first)
        assert world.changes > before
        assert lane.demand().last_active_s >= entered_s + 0.02
        assert lane.demand().oldest_wait_s < 0.02 + 5

    run(main)


def test_the_endpoints_may_not_know_the_function_yet(world: Any) -> None:
    async def main() -> None:
        world.endpoints.state = None
        lane = world.lane()
        ticket = world.enter(lane)
        world.endpoints.state = FunctionState.STARTING
        world.endpoints.put("r1", STARTING)
        assert targets_of(ticket) == ["r1"]

    run(main)
