"""What the activator adds to a direct call, within wide bounds: it must not grow unnoticed.

Client, activator and replica share one loop here, so the figures are upper bounds; the goals are
1 ms a request and 60 µs a chunk with a process each.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from glowplug.contracts import ReplicaState

PATH = "/v1/chat/completions"
MAX_REQUEST_S = 10e-3
MAX_CHUNK_S = 1e-3


async def answer(_request: Request) -> JSONResponse:
    return JSONResponse({})


async def stream(_request: Request) -> StreamingResponse:
    async def events() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"data: %d\n\n" % time.monotonic_ns()
            await asyncio.sleep(0.001)

    return StreamingResponse(events(), media_type="text/event-stream")


def test_a_request(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        app = Starlette(routes=[Route(PATH, answer, methods=["POST"])])
        direct = await house.app_replica(app)
        house.endpoints.put(direct, ReplicaState.READY)

        async def median_s(url: str) -> float:
            times_s = []
            for _ in range(100):
                start_s = time.perf_counter()
                async with house.client.post(url, json={}) as response:
                    await response.read()
                    assert response.status == 200
                times_s.append(time.perf_counter() - start_s)
            return statistics.median(times_s)

        direct_s = await median_s(direct + PATH)
        added_s = await median_s(f"{house.url}/f/smollm2{PATH}") - direct_s
        assert added_s < MAX_REQUEST_S, f"{added_s * 1e6:.0f} µs a request"

    tools.run(main)


def test_a_chunk(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        app = Starlette(routes=[Route(PATH, stream, methods=["POST"])])
        direct = await house.app_replica(app)
        house.endpoints.put(direct, ReplicaState.READY)

        async def median_s(url: str) -> float:
            async with house.client.post(url, json={}) as response:
                times_s = [
                    (time.monotonic_ns() - int(line[6:])) / 1e9
                    async for line in response.content
                    if line.startswith(b"data: ")
                ]
            assert len(times_s) == 100
            return statistics.median(times_s)

        direct_s = await median_s(direct + PATH)
        added_s = await median_s(f"{house.url}/f/smollm2{PATH}") - direct_s
        assert added_s < MAX_CHUNK_S, f"{added_s * 1e6:.0f} µs a chunk"

    tools.run(main)
