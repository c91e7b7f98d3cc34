"""What the activator answers itself: models, probes, warm, keys, and every error."""

import asyncio
import json
import logging
from typing import Any

import openai
import pytest

from activator.auth import Identity
from activator.limits import Limits
from glowplug.contracts import ReplicaState

STARTING, READY = ReplicaState.STARTING, ReplicaState.READY
KEYS = {"admin-key": Identity("ops", admin=True), "user-key": Identity("team-a")}


async def answers(connection: Any) -> None:
    await connection.request()
    await connection.answer()


def test_models_and_probes_wake_nobody(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy(name="other")
        await house.deploy()
        model = {
            "id": "smollm2",
            "object": "model",
            "created": 1_700_000_000,
            "owned_by": "glowplug",
        }
        for path, expected in (
            ("/v1/models", {"object": "list", "data": [{**model, "id": "other"}, model]}),
            ("/v1/models/smollm2", model),
            ("/f/smollm2/v1/models", {"object": "list", "data": [model]}),
            ("/f/smollm2/v1/models/smollm2", model),
            ("/health", {"status": "ok"}),
            ("/ready", {"status": "ready"}),
        ):
            async with house.client.get(house.url + path) as response:
                assert (response.status, await response.json()) == (200, expected)
            async with house.client.head(house.url + path) as response:
                assert (response.status, await response.read()) == (200, b"")
        for path in ("/v1/models/none", "/f/none/v1/models", "/f/smollm2/v1/models/other"):
            async with house.client.get(house.url + path) as response:
                assert response.status == 404
                assert (await tools.error_of(response))["code"] == "model_not_found"
        for method in ("HEAD", "OPTIONS", "GET"):
            for path in ("/f/smollm2/v1/chat/completions", "/v1/completions"):
                async with house.client.request(method, house.url + path) as response:
                    assert (response.status, response.headers["allow"]) == (405, "POST")
        assert house.sink.reports == []  # no demand, not even a report of none

    tools.run(main)


def test_warm_waits_until_a_replica_is_ready(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        warming = [asyncio.create_task(house.call("/f/smollm2/warm")) for _ in range(2)]
        await house.sink.until_queued(2)
        house.endpoints.put("http://127.0.0.1:9", STARTING)
        house.endpoints.put("http://127.0.0.1:9", READY, stages_ms={"map": 12.0})
        for response in await asyncio.gather(*warming):
            body = await response.json()
            assert response.status == 200
            assert body["state"] == "ready"
            assert (body["start_kind"], body["stages_ms"]) == ("snapshot", {"map": 12.0})
            assert body["waited_ms"] > 0
            assert response.headers["x-cold-start"] == "true"
        response = await house.call("/f/smollm2/warm")
        assert (await response.json())["start_kind"] == "warm"
        await house.sink.until_idle()
        assert house.sink.last.in_flight == 0  # no replica was asked anything

    tools.run(main)


def test_warm_without_waiting(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        response = await house.call("/f/smollm2/warm", headers={"x-start-timeout": "0.05"})
        assert response.status == 202
        body = await response.json()
        assert (body["state"], body["stages_ms"]) == ("zero", {})
        assert int(response.headers["retry-after"]) >= 1
        assert any(report.queued == 1 for report in house.sink.reports)
        assert (await house.call("/f/none/warm")).status == 404
        async with house.client.get(house.url + "/f/smollm2/warm") as response:
            assert response.status == 405

    tools.run(main)


def test_keys(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        replica = await house.raw_replica(answers)
        house.endpoints.put(replica.url, READY)
        admin = {"authorization": "Bearer admin-key"}
        user = {"authorization": "Bearer user-key"}
        wrong = {"authorization": "Bearer wrong"}
        for method, path, headers, status in (
            ("GET", "/v1/models", user, 200),
            ("POST", "/f/smollm2/v1/completions", user, 200),
            ("POST", "/f/smollm2/warm", user, 200),
            ("GET", "/v1/functions", admin, 200),
            ("GET", "/v1/functions", user, 403),
            ("DELETE", "/v1/functions/smollm2", user, 403),
            ("POST", "/v1/functions", user, 403),
            ("GET", "/v1/functions", wrong, 401),
            ("POST", "/f/smollm2/v1/completions", wrong, 401),
            ("POST", "/f/smollm2/v1/completions", {}, 401),
            ("POST", "/f/none/v1/completions", {}, 401),
            ("GET", "/nothing", {}, 401),
            ("GET", "/health", {}, 200),
            ("GET", "/ready", {}, 200),
        ):
            async with house.client.request(method, house.url + path, headers=headers) as response:
                assert response.status == status, (method, path, headers)
                if status >= 400:
                    error = await tools.error_of(response)
                    assert (
                        error["type"]
                        == {401: "authentication_error", 403: "permission_error"}[status]
                    )
                if status == 401:
                    assert response.headers["www-authenticate"] == "Bearer"

    tools.run(main, keys=KEYS)


def test_every_answer_has_a_request_id(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        for path in ("/health", "/v1/models", "/nothing", "/f/none/v1/completions"):
            async with house.client.get(house.url + path) as response:
                assert len(response.headers["x-request-id"]) == 32
        for sent, kept in (
            ("abc-123", True),
            ("x" * 128, True),
            ("x" * 129, False),
            ("with space", False),
            ("ünsane", False),
        ):
            headers = {"x-request-id": sent}
            async with house.client.get(house.url + "/health", headers=headers) as response:
                assert (response.headers["x-request-id"] == sent) == kept

    tools.run(main)


def test_errors_are_openais(tools: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        async with house.client.get(house.url + "/nothing/here") as response:
            assert response.status == 404
            assert (await tools.error_of(response))["code"] == "unknown_url"
        async with house.client.post(house.url + "/health") as response:
            assert response.status == 405
            assert sorted(response.headers["allow"].split(", ")) == ["GET", "HEAD"]
            assert (await tools.error_of(response))["type"] == "invalid_request_error"
        house.registry.broken = True
        response = await house.call(headers={"x-request-id": "find-me"})
        assert response.status == 500
        error = await tools.error_of(response)
        assert "find-me" in error["message"]
        assert "fire" not in error["message"]
        assert any(
            "find-me" in record.message and record.exc_info and "fire" in str(record.exc_info[1])
            for record in caplog.records
        )
        house.registry.broken = False
        assert (await house.call("/f/smollm2/v1/a%2F..%2F..%2Fmetrics")).status == 404

    tools.run(main)


def test_log_lines_cannot_be_forged(tools: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main(house: Any) -> None:
        async with house.client.get(house.url + '/x%0A%22,"status":200') as response:
            assert response.status == 404

    with caplog.at_level(logging.INFO, logger="activator.access"):
        tools.run(main)
    (line,) = [r.message for r in caplog.records if r.name == "activator.access"]
    assert "\n" not in line
    assert json.loads(line)["status"] == 404


@pytest.mark.parametrize("path", ["/f/smollm2/v1/completions", "/v1/completions"])
def test_body_limit(tools: Any, path: str) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        # One that says so, and is not read at all:
        reader, writer = await house.connect()
        writer.write(
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n".encode()
        )
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 413 ")
        writer.close()
        # One that does not, and still gets its answer:
        reader, writer = await house.connect()
        writer.write(
            f"POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        )
        for _ in range(20):
            writer.write(b"2000\r\n" + b"x" * 0x2000 + b"\r\n")
        writer.write(b"0\r\n\r\n")
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 413 ")
        writer.close()
        # One that says less than it sends: the rest is no part of the request.
        reader, writer = await house.connect()
        writer.write(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n".encode())
        writer.write(b"x" * 200_000)
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 4")
        writer.close()
        response = await house.call(path, data=b"x" * 100_001)
        assert (response.status, (await tools.error_of(response))["code"]) == (
            413,
            "body_too_large",
        )
        await house.sink.until_idle() if house.sink.reports else None

    tools.run(main, limits=Limits(max_body_bytes=100_000))


def test_all_bodies_together_are_bounded(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        first = asyncio.create_task(house.call(data=b"x" * 60_000))
        await house.sink.until_queued(1)
        refused = await house.call(data=b"x" * 60_000)
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        replica = await house.raw_replica(answers)
        house.endpoints.put(replica.url, READY)
        assert (await first).status == 200
        assert (await house.call(data=b"x" * 60_000)).status == 200

    tools.run(main, limits=Limits(max_held_bytes=100_000))


def test_stopping_the_server_ends_what_waits_cleanly(tools: Any) -> None:
    async def stuck(connection: Any) -> None:
        await connection.request()
        await connection.begin_events()
        await connection.chunk(b"data: 1\n\n")
        await connection.until_gone()

    async def main(house: Any) -> None:
        await house.deploy()
        replica = await house.raw_replica(stuck)
        house.endpoints.put(replica.url, READY, capacity=1)
        reader, writer = await house.connect()
        writer.write(tools.request_bytes())
        await reader.readuntil(b"data: 1\n\n")
        queued_reader, queued_writer = await house.connect()
        queued_writer.write(tools.request_bytes())
        await house.sink.until_queued(1)
        await house.stop()
        streamed = await reader.read()
        assert b"the server is stopping" in streamed
        assert streamed.endswith(b"0\r\n\r\n")
        assert (await queued_reader.read()).startswith(b"HTTP/1.1 503 ")
        for each in (writer, queued_writer):
            each.close()

    tools.run(main, options={"timeout_graceful_shutdown": 1})


def test_no_websockets(tools: Any) -> None:
    async def main(house: Any) -> None:
        headers = {"upgrade": "websocket", "connection": "upgrade", "sec-websocket-version": "13"}
        async with house.client.get(house.url + "/v1/realtime", headers=headers) as response:
            assert response.status >= 400

    tools.run(main)


def test_openais_client_raises_the_matching_exceptions(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy(queue={"max_requests": 1})
        options: dict[str, Any] = {"max_retries": 0, "timeout": 10}
        chat: dict[str, Any] = {
            "model": "smollm2",
            "messages": [{"role": "user", "content": "hi"}],
        }

        async def raised(client: openai.AsyncOpenAI, **headers: str) -> openai.APIStatusError:
            with pytest.raises(openai.APIStatusError) as caught:
                await client.chat.completions.create(**chat, extra_headers=headers)
            return caught.value

        base = f"{house.url}/f/smollm2/v1"
        async with (
            openai.AsyncOpenAI(base_url=base, api_key="user-key", **options) as client,
            openai.AsyncOpenAI(base_url=base, api_key="wrong", **options) as stranger,
            openai.AsyncOpenAI(
                base_url=f"{house.url}/f/none/v1", api_key="user-key", **options
            ) as lost,
        ):
            assert [model.id async for model in client.models.list()] == ["smollm2"]
            assert isinstance(await raised(stranger), openai.AuthenticationError)
            error = await raised(lost)
            assert isinstance(error, openai.NotFoundError)
            assert error.code == "model_not_found"
            error = await raised(client, **{"X-Start-Timeout": "never"})
            assert isinstance(error, openai.BadRequestError)
            assert error.param == "X-Start-Timeout"
            error = await raised(client, **{"X-Start-Timeout": "0.1"})
            assert isinstance(error, openai.InternalServerError)
            assert error.status_code == 504
            waiting = asyncio.create_task(raised(client, **{"X-Start-Timeout": "1"}))
            await house.sink.until_queued(1)
            assert isinstance(await raised(client), openai.RateLimitError)
            await waiting

            async def dies(connection: Any) -> None:
                await connection.request()
                await connection.begin_events()
                chunk = {"id": "c", "object": "chat.completion.chunk", "choices": []}
                await connection.chunk(b"data: " + json.dumps(chunk).encode() + b"\n\n")

            replica = await house.raw_replica(dies)
            house.endpoints.put(replica.url, READY)
            seen = 0
            with pytest.raises(openai.APIError, match="broke off"):
                async for _ in await client.chat.completions.create(**chat, stream=True):
                    seen += 1
            assert seen == 1

    tools.run(main, keys=KEYS)


def test_adapters_are_models_of_their_own(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy(adapters={"pirate": "/p", "legal": "/l"})
        ids = ["smollm2", "smollm2:pirate", "smollm2:legal"]
        for path in ("/v1/models", "/f/smollm2/v1/models"):
            async with house.client.get(house.url + path) as response:
                assert [model["id"] for model in (await response.json())["data"]] == ids
        for path in ("/v1/models/smollm2:legal", "/f/smollm2/v1/models/smollm2:legal"):
            async with house.client.get(house.url + path) as response:
                assert (await response.json())["id"] == "smollm2:legal"
        # Refused without waking a replica.
        response = await house.call("/v1/chat/completions", json={"model": "smollm2:none"})
        assert response.status == 404
        error = await tools.error_of(response)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "legal, pirate" in error["message"]
        assert house.sink.reports == []

    tools.run(main)
