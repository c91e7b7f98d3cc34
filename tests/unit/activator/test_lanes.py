"""Functions, lanes and demand reports follow registry and endpoints."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from activator import demand
from activator.functions import Functions
from activator.lanes import Lanes
from glowplug.contracts import DemandReport, Function, ReplicaState
from glowplug.errors import NotFound
from glowplug.spec import FunctionSpec


class Registry:
    """One function, f, and a count of the look-ups."""

    def __init__(self) -> None:
        self.function: Function | None = Function(
            spec=FunctionSpec(name="f", model="m"), generation=1
        )
        self.looked_up = 0
        self.hold: asyncio.Event | None = None
        self._subscribers: list[Callable[[str], None]] = []

    async def get(self, name: str) -> Function:
        self.looked_up += 1
        found = self.function
        if self.hold is not None:
            await self.hold.wait()
        if found is None or name != "f":
            raise NotFound("no such row")
        return found

    def subscribe(self, changed: Callable[[str], None]) -> None:
        self._subscribers.append(changed)

    def change(self, function: Function | None) -> None:
        self.function = function
        for changed in self._subscribers:
            changed("f")


class Sink:
    def __init__(self) -> None:
        self.reports: list[DemandReport] = []
        self.broken = False
        self.refused = asyncio.Event()
        self.three = asyncio.Event()

    def report(self, demand: DemandReport) -> None:
        if self.broken:
            self.refused.set()
            raise RuntimeError("the sink is broken")
        self.reports.append(demand)
        if len(self.reports) >= 3:
            self.three.set()

    def figures(self) -> Sequence[tuple[int, int, int]]:
        return [(each.queued, each.in_flight, each.arrivals) for each in self.reports]


class House:
    def __init__(self, world: Any) -> None:
        self.world = world
        self.registry, self.sink = Registry(), Sink()
        self.functions = Functions(self.registry)
        self.lanes = Lanes(
            functions=self.functions,
            registry=self.registry,
            endpoints=world.endpoints,
            sink=self.sink,
        )


@pytest.fixture
def house(world: Any) -> House:
    return House(world)


def test_functions_are_looked_up_once_until_they_change(house: House) -> None:
    async def main() -> None:
        for _ in range(3):
            assert (await house.functions.get("f")).generation == 1
        assert house.registry.looked_up == 1
        house.registry.change(Function(spec=FunctionSpec(name="f", model="n"), generation=2))
        assert (await house.functions.get("f")).generation == 2
        house.registry.change(None)
        for _ in range(2):
            with pytest.raises(NotFound) as caught:
                await house.functions.get("f")
            assert caught.value.code == "model_not_found"
        assert house.registry.looked_up == 4  # what does not exist is not kept

    asyncio.run(main())


def test_a_look_up_that_a_change_overtakes_is_not_kept(house: House) -> None:
    async def main() -> None:
        house.registry.hold = asyncio.Event()
        slow = asyncio.create_task(house.functions.get("f"))
        await asyncio.sleep(0)
        house.registry.change(Function(spec=FunctionSpec(name="f", model="n"), generation=2))
        house.registry.hold.set()
        assert (await slow).generation == 1
        assert (await house.functions.get("f")).generation == 2

    asyncio.run(main())


def test_a_burst_makes_one_report_and_every_change_is_reported(house: House) -> None:
    async def main() -> None:
        lane = house.lanes.of("f")
        tickets = [house.world.enter(lane) for _ in range(3)]
        assert house.sink.reports == []
        await asyncio.sleep(0)
        assert house.sink.figures() == [(3, 0, 3)]
        house.world.endpoints.put("r1", ReplicaState.READY, capacity=2)
        await asyncio.sleep(0)
        assert house.sink.figures()[-1] == (1, 2, 3)
        for ticket in tickets:
            lane.leave(ticket)
        await asyncio.sleep(0)
        assert house.sink.figures()[-1] == (0, 0, 3)
        assert house.lanes.of("f") is lane

    asyncio.run(main())


def test_reports_come_by_themselves_and_survive_a_broken_sink(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        lane = house.lanes.of("f")
        await asyncio.sleep(0)
        house.sink.broken = True
        house.world.enter(lane)
        house.lanes.start()
        await house.sink.refused.wait()
        assert house.sink.figures() == [(0, 0, 0)]
        house.sink.broken = False
        async with asyncio.timeout(5):
            await house.sink.three.wait()
        waits = [report.oldest_wait_s for report in house.sink.reports[1:]]
        assert waits == sorted(waits)
        assert waits[0] > 0
        await house.lanes.stop()

    monkeypatch.setattr(demand, "PERIOD_S", 0.005)
    asyncio.run(main())


def test_deleting_a_function_closes_its_lane_and_a_new_one_has_a_new_lane(house: House) -> None:
    async def main() -> None:
        lane = house.lanes.of("f")
        ticket = house.world.enter(lane)
        house.registry.change(None)
        with pytest.raises(NotFound) as caught:
            async with asyncio.timeout(5):
                await ticket.handed()
        assert caught.value.code == "model_not_found"
        lane.leave(ticket)
        house.registry.change(Function(spec=FunctionSpec(name="f", model="m"), generation=1))
        assert house.lanes.of("f") is not lane

    asyncio.run(main())


def test_changing_a_function_keeps_its_lane(house: House) -> None:
    async def main() -> None:
        lane = house.lanes.of("f")
        ticket = house.world.enter(lane)
        house.registry.change(Function(spec=FunctionSpec(name="f", model="n"), generation=2))
        await asyncio.sleep(0.01)
        assert house.lanes.of("f") is lane
        house.world.endpoints.put("r1", ReplicaState.STARTING)
        assert (await ticket.handed()).replica.id == "r1"

    asyncio.run(main())


def test_endpoints_of_functions_nobody_called_make_no_lane(house: House) -> None:
    async def main() -> None:
        house.world.endpoints.put("r1", ReplicaState.READY)
        await asyncio.sleep(0)
        assert house.sink.reports == []

    asyncio.run(main())


def test_a_model_may_name_an_adapter_of_its_function(house: House) -> None:
    async def main() -> None:
        adapters = {"pirate": "/p", "legal": "/l"}
        spec = FunctionSpec(name="f", model="m", adapters=adapters)
        house.registry.change(Function(spec=spec, generation=2))
        for model in ("f", "f:pirate", "f:legal"):
            assert (await house.functions.of_model(model)).spec.name == "f"
        for model in ("f:", "f:other", "f:pirate:x"):
            with pytest.raises(NotFound, match="legal, pirate") as caught:
                await house.functions.of_model(model)
            assert caught.value.code == "model_not_found"
        with pytest.raises(NotFound, match="GET /v1/models"):
            await house.functions.of_model("g:pirate")

    asyncio.run(main())
