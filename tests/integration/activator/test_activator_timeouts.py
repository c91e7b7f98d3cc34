"""Each clock, by itself: what it cuts, what it says, and what it does not cut."""

import asyncio
import json
import time
from typing import Any

import aiohttp
import pytest

from activator.limits import Limits
from glowplug.contracts import ReplicaState

STARTING, READY = ReplicaState.STARTING, ReplicaState.READY


async def never_answers(connection: Any) -> None:
    await connection.request()
    await connection.until_gone()


async def timed(call: Any) -> tuple[float, aiohttp.ClientResponse]:
    start_s = time.monotonic()
    response = await call
    return time.monotonic() - start_s, response


@pytest.mark.parametrize(
    ("spec_s", "header"), [(0.3, None), (60, "0.3"), (0.3, "60"), (60, "300ms")]
)
def test_start_timeout_at_zero(tools: Any, spec_s: float, header: str | None) -> None:
    async def main(house: Any) -> None:
        await house.deploy(start_timeout_s=spec_s)
        headers = {"x-start-timeout": header} if header else {}
        took_s, response = await timed(house.call(headers=headers))
        assert 0.3 <= took_s < 2
        assert response.status == 504
        assert int(response.headers["retry-after"]) >= 1
        assert response.headers["x-function"] == "smollm2"
        error = await tools.error_of(response)
        assert (error["type"], error["code"]) == ("timeout_error", "start_timeout")
        assert "0.3 s" in error["message"]
        await house.sink.until_idle()

    tools.run(main)


def test_start_timeout_while_a_replica_starts(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy(start_timeout_s=0.3)
        replica = await house.raw_replica(never_answers)
        house.endpoints.put(replica.url, STARTING)
        took_s, response = await timed(house.call())
        assert 0.3 <= took_s < 2
        assert response.status == 504
        assert "a replica is starting" in (await tools.error_of(response))["message"]

    tools.run(main)


def test_start_timeout_while_all_are_busy(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy(start_timeout_s=0.3)
        replica = await house.raw_replica(never_answers)
        house.endpoints.put(replica.url, READY, capacity=1)
        writer = await house.hang_up_later()
        await house.sink.until_in_flight(1)
        _, response = await timed(house.call())
        assert response.status == 504
        assert "busy" in (await tools.error_of(response))["message"]
        writer.close()

    tools.run(main)


def test_the_start_clock_stops_when_the_replica_is_ready(tools: Any) -> None:
    """A long generation is not cut by it, whether the replica was ready before or becomes so."""

    async def slow(connection: Any) -> None:
        await connection.request()
        await asyncio.sleep(0.6)
        await connection.answer()

    async def main(house: Any) -> None:
        await house.deploy(start_timeout_s=0.4)
        replica = await house.raw_replica(slow)
        house.endpoints.put(replica.url, STARTING)
        call = asyncio.create_task(house.call())
        await house.sink.until_in_flight(1)
        await asyncio.sleep(0.1)
        house.endpoints.put(replica.url, READY)
        assert (await call).status == 200
        assert (await house.call()).status == 200

    tools.run(main)


def test_the_start_clock_goes_on_after_a_replica_has_refused(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy(start_timeout_s=0.4)
        replica = await house.raw_replica(never_answers)
        replica.close()
        house.endpoints.put(replica.url, READY)
        took_s, response = await timed(house.call())
        assert 0.4 <= took_s < 2
        assert (await tools.error_of(response))["code"] == "start_timeout"

    tools.run(main)


@pytest.mark.parametrize(("spec_s", "header"), [(0.3, None), (600, "0.3")])
@pytest.mark.parametrize("state", [STARTING, READY])
def test_request_timeout_before_headers(
    tools: Any, spec_s: float, header: str | None, state: ReplicaState
) -> None:
    async def main(house: Any) -> None:
        await house.deploy(request_timeout_s=spec_s)
        replica = await house.raw_replica(never_answers)
        house.endpoints.put(replica.url, state)
        headers = {"x-request-timeout": header} if header else {}
        took_s, response = await timed(house.call(headers=headers))
        assert 0.3 <= took_s < 2
        assert response.status == 504
        assert (await tools.error_of(response))["code"] == "request_timeout"
        await house.sink.until_idle()

    tools.run(main)


def test_request_timeout_in_a_stream_is_an_event(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy(request_timeout_s=0.3)
        gone = asyncio.Event()

        async def stuck(connection: Any) -> None:
            await connection.request()
            await connection.begin_events()
            await connection.chunk(b"data: 1\n\n")
            await connection.until_gone()
            gone.set()

        replica = await house.raw_replica(stuck)
        house.endpoints.put(replica.url, READY)
        _, response = await timed(house.call())
        assert response.status == 200
        first, _, rest = (await response.read()).partition(b"\n\n")
        assert first == b"data: 1"
        error = json.loads(rest.strip().removeprefix(b"data: "))["error"]
        assert (error["code"], error["status"]) == ("request_timeout", 504)
        await gone.wait()

    tools.run(main)


def test_request_timeout_in_a_body_breaks_it_off(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy(request_timeout_s=0.3)

        async def stuck(connection: Any) -> None:
            await connection.request()
            await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
            await connection.until_gone()

        replica = await house.raw_replica(stuck)
        house.endpoints.put(replica.url, READY)
        response = await house.post()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()

    tools.run(main)


def test_request_timeout_of_a_client_that_does_not_read(
    tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica is freed although the error cannot be delivered."""

    async def endless(connection: Any) -> None:
        await connection.request()
        await connection.begin_events()
        while True:
            await connection.chunk(b"x" * 100_000)

    async def main(house: Any) -> None:
        await house.deploy(request_timeout_s=0.5)
        replica = await house.raw_replica(endless)
        house.endpoints.put(replica.url, READY)
        writer = await house.hang_up_later()
        await house.sink.until_in_flight(1)
        await house.sink.until_idle()
        writer.transport.abort()

    monkeypatch.setattr("activator.exchange.LAST_WORDS_S", 0.1)
    tools.run(main)


def test_a_slow_body(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        for path in ("/f/smollm2/v1/chat/completions", "/v1/chat/completions", "/v1/functions"):
            reader, writer = await house.connect()
            writer.write(tools.request_bytes(b"x" * 1000, path=path)[:-10])
            answer = await reader.read()  # to the end: the server closes the connection
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b'"type": "timeout_error"' in answer
            writer.close()
        assert all(report.queued == 0 for report in house.sink.reports)

    tools.run(main, limits=Limits(body_timeout_s=0.2))


@pytest.mark.parametrize("header", ["x-start-timeout", "x-request-timeout", "x-priority"])
def test_headers_that_make_no_sense_are_refused_before_anything_waits(
    tools: Any, header: str
) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        for path in ("/f/smollm2/v1/completions", "/v1/completions"):
            response = await house.call(path, headers={header: "soon"})
            assert response.status == 400
            error = await tools.error_of(response)
            assert error["param"].lower() == header
        assert all(report.queued == 0 for report in house.sink.reports)

    tools.run(main)
