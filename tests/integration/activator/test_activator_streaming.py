"""Answers on their way back: as they come, whole or visibly broken, with the headers promised."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from glowplug.contracts import ReplicaState
from glowplug.stages import from_server_timing

STARTING, READY = ReplicaState.STARTING, ReplicaState.READY


def events_of(text: bytes) -> list[bytes]:
    return [event for event in text.split(b"\n\n") if event]


def test_each_event_arrives_before_the_next_is_sent(tools: Any) -> None:
    """Neither side can lump: the replica sends an event only once the client has the last."""
    seen = asyncio.Event()

    async def events(_request: Request) -> StreamingResponse:
        async def stream() -> AsyncIterator[bytes]:
            for number in range(20):
                yield b"data: %d\n\n" % number
                await seen.wait()
                seen.clear()
            yield b"data: [DONE]\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def main(house: Any) -> None:
        await house.deploy()
        app = Starlette(routes=[Route("/v1/chat/completions", events, methods=["POST"])])
        house.endpoints.put(await house.app_replica(app), READY)
        response = await house.post()
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        for number in range(20):
            assert await response.content.readany() == b"data: %d\n\n" % number
            seen.set()
        assert await response.content.readany() == b"data: [DONE]\n\n"
        assert await response.content.readany() == b""

    tools.run(main)


def test_headers_and_stages_of_a_warm_answer(tools: Any) -> None:
    async def behave(connection: Any) -> None:
        head, body = await connection.request()
        assert head.startswith(b"POST /v1/chat/completions?trace=1&x=%20y HTTP/1.1\r\n")
        lines = [line.lower() for line in head.split(b"\r\n")]
        assert b"x-request-id: my-id" in lines
        assert b"accept-encoding: identity" in lines
        assert not any(line.startswith((b"authorization", b"user-agent: python")) for line in lines)
        await asyncio.sleep(0.05)
        await connection.answer(
            body,
            headers="server-timing: tokenize;dur=3.25, queue;dur=1, prefill;dur=20.5\r\n"
            "x-request-id: forged\r\nkeep-alive: timeout=5\r\nx-mine: 1\r\n",
        )

    async def main(house: Any) -> None:
        await house.deploy()
        replica = await house.raw_replica(behave)
        house.endpoints.put(replica.url, READY, stages_ms={"map": 12.0})
        await house.call("/f/smollm2/warm")
        response = await house.call(
            "/f/smollm2/v1/chat/completions?trace=1&x=%20y",
            data=b'{"odd":   "spacing"}',
            headers={"x-request-id": "my-id", "authorization": "Bearer k", "user-agent": "curl"},
        )
        assert await response.read() == b'{"odd":   "spacing"}'
        headers = response.headers
        assert headers.getall("x-request-id") == ["my-id"]
        assert headers["x-cold-start"] == "false"
        assert headers["x-start-kind"] == "warm"
        assert headers["x-revision"] == "0123456789"
        assert headers["x-function"] == "smollm2"
        assert headers["x-mine"] == "1"
        assert float(headers["x-queue-ms"]) < 50
        assert float(headers["x-start-ms"]) == 0
        assert "keep-alive" not in headers
        assert len(headers.getall("date")) == len(headers.getall("server-timing")) == 1
        stages = from_server_timing(headers["server-timing"])
        assert stages["tokenize"] == 3.25
        assert stages["engine-queue"] == 1
        assert stages["prefill"] == 20.5
        assert stages["upstream"] > 50 - 3.25 - 1 - 20.5 - 1
        assert not any(name.startswith("start") for name in stages)

    tools.run(main)


def test_every_millisecond_is_in_some_stage(tools: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def behave(connection: Any) -> None:
        await connection.request()
        await asyncio.sleep(0.03)
        await connection.begin_events("server-timing: prefill;dur=12.5\r\n")
        await connection.chunk(b"data: 1\n\n")
        await asyncio.sleep(0.03)
        await connection.send(b"0\r\n\r\n")

    async def main(house: Any) -> None:
        await house.deploy()
        call = asyncio.create_task(house.call(headers={"x-request-id": "all-of-it"}))
        await house.sink.until_queued(1)
        await asyncio.sleep(0.03)
        replica = await house.raw_replica(behave, accepts=False)
        house.endpoints.put(replica.url, STARTING)
        await asyncio.sleep(0.03)
        house.endpoints.put(replica.url, READY, stages_ms={"map": 5.0})
        await replica.accept()
        response = await call
        in_headers = from_server_timing(response.headers["server-timing"])
        (line,) = [
            json.loads(record.message)
            for record in caplog.records
            if record.name == "activator.access" and "all-of-it" in record.message
        ]
        stages = line["stages_ms"]
        booked_ms = sum(ms for name, ms in stages.items() if not name.startswith("start-"))
        assert booked_ms == pytest.approx(line["total_ms"], abs=1.0)
        assert line["total_ms"] > 120
        assert stages["stream"] > 29
        assert stages["start-map"] == 5.0
        for name in ("assign", "start", "upstream", "prefill"):
            assert stages[name] == pytest.approx(in_headers[name], abs=0.01)
        assert (line["function"], line["status"], line["start_kind"]) == (
            "smollm2",
            200,
            "snapshot",
        )
        assert (line["replica"], line["tenant"], line["method"]) == ("r1", "default", "POST")

    with caplog.at_level(logging.INFO, logger="activator.access"):
        tools.run(main)


def test_errors_of_the_replica_pass_unchanged(tools: Any) -> None:
    async def refuse(_request: Request) -> JSONResponse:
        return JSONResponse({"error": {"message": "no"}}, 422, {"retry-after": "7"})

    async def main(house: Any) -> None:
        await house.deploy()
        app = Starlette(routes=[Route("/v1/completions", refuse, methods=["POST"])])
        house.endpoints.put(await house.app_replica(app), READY)
        response = await house.call("/f/smollm2/v1/completions")
        assert (response.status, response.headers["retry-after"]) == (422, "7")
        assert await response.json() == {"error": {"message": "no"}}
        response = await house.call("/f/smollm2/v1/tokenize")
        assert (response.status, await response.text()) == (404, "Not Found")

    tools.run(main)


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_replica_that_dies_in_a_stream_of_events_is_an_event(tools: Any, how: str) -> None:
    async def behave(connection: Any) -> None:
        await connection.request()
        await connection.begin_events()
        await connection.chunk(b'data: {"n": 1}\n\n')
        await go_on.wait()
        if how == "reset":
            connection.reset()

    async def main(house: Any) -> None:
        await house.deploy()
        replica = await house.raw_replica(behave)
        house.endpoints.put(replica.url, READY)
        response = await house.post()
        assert await response.content.readany() == b'data: {"n": 1}\n\n'
        go_on.set()
        (event,) = events_of(await response.content.read())  # the end is a clean one
        error = json.loads(event.removeprefix(b"data: "))["error"]
        assert (error["type"], error["code"]) == ("service_unavailable", "replica_lost")
        assert (error["status"], error["param"]) == (503, None)
        await house.sink.until_idle()
        assert (await house.call()).status == 200  # and the next request works

    go_on = asyncio.Event()
    tools.run(main)


@pytest.mark.parametrize("framing", ["content-length: 100", "transfer-encoding: chunked"])
def test_a_body_that_breaks_off_never_looks_whole(tools: Any, framing: str) -> None:
    async def behave(connection: Any) -> None:
        await connection.request()
        await connection.send(
            f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{framing}\r\n\r\n".encode()
        )
        part = b'{"half": '
        await connection.send(part if "length" in framing else b"9\r\n" + part + b"\r\n")

    async def main(house: Any) -> None:
        await house.deploy()
        replica = await house.raw_replica(behave)
        house.endpoints.put(replica.url, READY)
        response = await house.post()
        assert response.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()

    tools.run(main)


@pytest.mark.parametrize("how", ["close", "reset", "garbage", "half a head"])
def test_a_ready_replica_that_breaks_off_before_headers_is_not_asked_again(
    tools: Any, how: str
) -> None:
    async def behave(connection: Any) -> None:
        await connection.request()
        if how == "reset":
            connection.reset()
        elif how == "garbage":
            await connection.send(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        elif how == "half a head":
            await connection.send(b"HTTP/1.1 200 OK\r\ncontent-")

    async def main(house: Any) -> None:
        await house.deploy()
        replica = await house.raw_replica(behave)
        house.endpoints.put(replica.url, READY)
        response = await house.call()
        assert response.status == 503
        assert response.headers["retry-after"] == "1"
        assert (await tools.error_of(response))["code"] == "replica_lost"
        assert replica.connections == 1
        await house.sink.until_idle()

    tools.run(main)


def test_a_slow_client_slows_the_replica_and_nothing_piles_up(tools: Any) -> None:
    chunk = b"x" * 65536
    sent = 0

    async def events(_request: Request) -> StreamingResponse:
        async def stream() -> AsyncIterator[bytes]:
            nonlocal sent
            for _ in range(1024):  # 64 MiB
                yield chunk
                sent += len(chunk)

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def main(house: Any) -> None:
        await house.deploy()
        app = Starlette(routes=[Route("/v1/chat/completions", events, methods=["POST"])])
        house.endpoints.put(await house.app_replica(app), READY)
        reader, writer = await house.connect()
        writer.write(tools.request_bytes())
        await reader.readuntil(b"\r\n\r\n")
        last = -1
        while sent != last:  # until everything between them is full
            last = sent
            await asyncio.sleep(0.2)
        assert sent < 32 << 20  # socket buffers, and a little of ours
        received = 0
        while received < 64 << 20:
            received += len(await reader.read(1 << 20))
        writer.close()
        await house.sink.until_idle()

    tools.run(main)


def test_an_answer_without_a_body(tools: Any) -> None:
    async def behave(connection: Any) -> None:
        await connection.request()
        await connection.send(b"HTTP/1.1 204 No Content\r\n\r\n")

    async def main(house: Any) -> None:
        await house.deploy()
        replica = await house.raw_replica(behave)
        house.endpoints.put(replica.url, READY)
        async with house.client.post(house.url + "/f/smollm2/v1/tokenize") as response:
            assert (response.status, await response.read()) == (204, b"")

    tools.run(main)


def test_routed_by_the_model_in_the_body(tools: Any) -> None:
    async def behave(connection: Any) -> None:
        head, _ = await connection.request()
        await connection.answer(head.split(b"\r\n")[0])

    async def main(house: Any) -> None:
        await house.deploy(name="other")
        await house.deploy()
        replica = await house.raw_replica(behave)
        house.endpoints.put(replica.url, READY)
        response = await house.call("/v1/completions", json={"model": "smollm2", "prompt": "x"})
        assert response.headers["x-function"] == "smollm2"
        assert await response.read() == b"POST /v1/completions HTTP/1.1"
        for body, status, code in (
            (b'{"model": "none"}', 404, "model_not_found"),
            (b"{}", 400, "model_required"),
            (b"model=smollm2", 400, "invalid_json"),
        ):
            response = await house.call("/v1/completions", data=body)
            assert response.status == status
            assert (await tools.error_of(response))["code"] == code

    tools.run(main)


def test_works_on_uvloop_too(tools: Any) -> None:
    """`glowplug serve` runs on it; its clock has milliseconds only."""
    uvloop = pytest.importorskip("uvloop")

    async def behave(connection: Any) -> None:
        await connection.request()
        await connection.begin_events()
        for number in range(3):
            await connection.chunk(b"data: %d\n\n" % number)
        await connection.send(b"0\r\n\r\n")

    async def main() -> None:
        async with asyncio.timeout(20), tools.open_house() as house:
            await house.deploy()
            call = asyncio.create_task(house.call())
            await house.sink.until_queued(1)
            late = await house.call(headers={"x-start-timeout": "50ms"})
            assert late.status == 504
            gone = await house.raw_replica(behave)
            gone.close()
            house.endpoints.put(gone.url, READY, name="gone")  # refuses, rests, refuses, …
            await asyncio.sleep(0.3)
            replica = await house.raw_replica(behave, accepts=False)
            house.endpoints.put(replica.url, STARTING)
            await replica.accept()
            response = await call
            assert events_of(await response.read()) == [b"data: 0", b"data: 1", b"data: 2"]
            writer = await house.hang_up_later()
            writer.close()
            await house.sink.until_idle()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
