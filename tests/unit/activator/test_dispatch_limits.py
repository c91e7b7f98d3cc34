"""Lane: what the queue's limits count, and what is told to those who do not fit."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from activator.ticket import Ticket
from glowplug.contracts import ReplicaState
from glowplug.errors import Overloaded, PayloadTooLarge
from glowplug.spec import QueueLimits

STARTING, READY = ReplicaState.STARTING, ReplicaState.READY


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(10):
            await main()

    asyncio.run(limited())


def targets_of(*tickets: Ticket) -> list[str | None]:
    return [ticket.target.replica.id if ticket.target else None for ticket in tickets]


def test_what_waits_in_a_starting_replica_counts_against_the_limit(world: Any) -> None:
    async def main() -> None:
        world.limits = QueueLimits(max_requests=3)
        lane = world.lane()
        world.endpoints.put("r1", STARTING, capacity=2)
        tickets = [world.enter(lane) for _ in range(3)]
        assert targets_of(*tickets) == ["r1", "r1", None]
        with pytest.raises(Overloaded, match="3 requests") as caught:
            world.enter(lane)
        assert caught.value.retry_after_s == 5
        world.endpoints.put("r1", READY)  # the two are at work now
        world.enter(lane)
        world.enter(lane)
        with pytest.raises(Overloaded):
            world.enter(lane)
        assert lane.demand().arrivals == 7

    run(main)


def test_bytes_are_bounded(world: Any) -> None:
    async def main() -> None:
        world.limits = QueueLimits(max_bytes=2048)
        lane = world.lane()
        world.enter(lane, size_bytes=2000)
        with pytest.raises(Overloaded, match="2048 bytes") as caught:
            world.enter(lane, size_bytes=100)
        assert caught.value.code == "queue_full"
        with pytest.raises(PayloadTooLarge):  # waiting would never help
            world.enter(lane, size_bytes=4000)
        world.enter(lane, size_bytes=48)

    run(main)


def test_a_request_that_need_not_wait_is_not_bounded_by_the_queue(world: Any) -> None:
    async def main() -> None:
        world.limits = QueueLimits(max_bytes=1024)
        lane = world.lane()
        world.endpoints.put("r1", READY, capacity=1)
        assert targets_of(world.enter(lane, size_bytes=5000)) == ["r1"]
        with pytest.raises(PayloadTooLarge):
            lane.check_room(5000, world.limits)

    run(main)


def test_retry_after_is_about_one_start(world: Any) -> None:
    async def main() -> None:
        world.limits = QueueLimits(max_requests=1)
        world.endpoints.last_start_ms = {"restore": 2000.0, "warm": 500.0}
        lane = world.lane()
        world.enter(lane)
        with pytest.raises(Overloaded) as caught:
            world.enter(lane)
        assert caught.value.retry_after_s == 3

    run(main)
