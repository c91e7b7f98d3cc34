"""Requests through several real activators, their reports over a channel that loses, repeats and
reorders them, into the traffic history: every request once."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from glowplug.contracts import DemandReport, ReplicaState
from scaler.demand import DemandTable
from scaler.traffic import Traffic

PATH = "/v1/chat/completions"
SERVICE_S = 0.02


async def calls(house: Any, requests: int) -> list[int]:
    """Statuses of so many calls that are all there before the first is answered."""
    all_there = asyncio.Event()

    async def answer(request: Request) -> JSONResponse:
        await request.body()
        await all_there.wait()
        await asyncio.sleep(SERVICE_S)
        return JSONResponse({})

    app = Starlette(routes=[Route(PATH, answer, methods=["POST"])])
    house.endpoints.put(await house.app_replica(app), ReplicaState.READY, capacity=4)
    tasks = [asyncio.create_task(house.call()) for _ in range(requests)]
    await house.sink.until(lambda demand: demand.arrivals == requests)
    all_there.set()
    statuses = [response.status for response in await asyncio.gather(*tasks)]
    await house.stop()
    return statuses


def hostile(reports: list[list[DemandReport]], randomness: random.Random) -> list[DemandReport]:
    """What arrives of them: of each activator's stream a third is lost, some come twice or late;
    the last one comes, as those of a living activator go on."""
    arrived: list[tuple[float, DemandReport]] = []
    for stream in reports:
        for place, report in enumerate(stream):
            is_last = report is stream[-1]
            for _ in range(1 if is_last else randomness.choice((0, 1, 2))):
                late = 0 if is_last else randomness.uniform(0, len(stream) / 2)
                arrived.append(((place + late) / len(stream), report))
    return [report for _, report in sorted(arrived, key=lambda each: each[0])]


@pytest.mark.parametrize("seed", range(5))
def test_several_activators_over_a_bad_channel(tools: Any, tmp_path: Path, seed: int) -> None:
    randomness = random.Random(seed)

    async def one_activator(requests: int) -> list[DemandReport]:
        async with tools.open_house() as house:
            await house.deploy(name="smollm2", queue={"max_requests": 1})
            statuses = await calls(house, requests)
            assert statuses.count(200) == 5
            assert statuses.count(429) == requests - 5  # they came, too
            reports: list[DemandReport] = house.sink.reports
        return reports

    async def main() -> None:
        async with asyncio.timeout(30):
            # The last two are one activator that has been replaced.
            streams = await asyncio.gather(*(one_activator(n) for n in (7, 9, 12)))
            assert len({report.reporter for stream in streams for report in stream}) == 3
            traffic = Traffic(tmp_path / "traffic.sqlite")
            table = DemandTable(traffic.record)
            for report in hostile(streams, randomness):
                table.report(report)
                if randomness.random() < 0.2:  # the scaler is replaced
                    await traffic.stop()
                    traffic = Traffic(tmp_path / "traffic.sqlite")
                    table = DemandTable(traffic.record)
            minutes = await traffic.read("smollm2", 0, 1 << 40)
            await traffic.stop()
        assert sum(each.arrivals for each in minutes) == 7 + 9 + 12
        assert sum(each.finished for each in minutes) == 15
        service_s = sum(each.service_s for each in minutes)
        assert 15 * SERVICE_S <= service_s < 15 * 5.0
        # Of one activator 5 at once; of all together no more than 15.
        assert all(each.peak <= 15 for each in minutes)
        assert (table.in_flight("smollm2"), table.queued("smollm2")) == (0, 0)

    asyncio.run(main())


def test_the_peak_of_a_burst_reaches_the_history(tools: Any, tmp_path: Path) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        assert await calls(house, 12) == [200] * 12
        traffic = Traffic(tmp_path / "traffic.sqlite")
        table = DemandTable(traffic.record)
        for report in house.sink.reports:
            table.report(report)
        minutes = await traffic.read("smollm2", 0, 1 << 40)
        await traffic.stop()
        assert max(each.peak for each in minutes) == 12
        assert sum(each.arrivals for each in minutes) == 12

    tools.run(main)
