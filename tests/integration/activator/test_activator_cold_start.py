"""Requests at zero: they wait, start one replica, are served in fair order, and never lost."""

import asyncio
import re
from collections import Counter
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from activator.auth import Identity
from glowplug.contracts import ReplicaState
from glowplug.stages import from_server_timing

STARTING, READY = ReplicaState.STARTING, ReplicaState.READY


def test_two_hundred_at_zero_are_all_served_by_one_replica_in_order(tools: Any) -> None:
    served: list[int] = []
    running = most = 0

    async def complete(request: Request) -> JSONResponse:
        nonlocal running, most
        number = (await request.json())["number"]
        running += 1
        most = max(most, running)
        served.append(number)
        await asyncio.sleep(0.005)
        running -= 1
        return JSONResponse({"number": number})

    async def main(house: Any) -> None:
        await house.deploy(queue={"max_requests": 200})
        calls = []
        for number in range(200):
            body = {"model": "smollm2", "number": number}
            calls.append(asyncio.create_task(house.call(json=body)))
            await house.sink.until_queued(number + 1)
        refused = await house.call()
        assert refused.status == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert (await tools.error_of(refused))["type"] == "rate_limit_error"
        assert house.sink.last.queued == 200

        app = Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])
        url = await house.app_replica(app)
        house.endpoints.put(url, STARTING, capacity=16)
        house.endpoints.put(url, READY)
        answers = await asyncio.gather(*calls)
        assert [answer.status for answer in answers] == [200] * 200
        assert [(await answer.json())["number"] for answer in answers] == list(range(200))
        assert most == 16
        # In order, but for the sixteen connections at once that race each other to the replica.
        displaced = [abs(number - place) for place, number in enumerate(served)]
        assert sum(displaced) / len(displaced) < 16
        await house.sink.until_idle()
        assert house.sink.last.arrivals == 201

    tools.run(main)


def test_tenants_take_turns_and_priorities_come_first(tools: Any) -> None:
    served: list[str] = []

    async def behave(connection: Any) -> None:
        _, body = await connection.request()
        served.append(body.decode())
        await connection.answer()

    async def main(house: Any) -> None:
        await house.deploy()
        calls = []

        def call(name: str, key: str, priority: str) -> None:
            headers = {"authorization": f"Bearer {key}", "x-priority": priority}
            # A tenant header of the client's own changes nothing.
            headers["x-tenant"] = name
            calls.append(asyncio.create_task(house.call(data=name.encode(), headers=headers)))

        for name, key, priority in (
            *((f"a{n}", "key-a", "normal") for n in range(4)),
            ("b0", "key-b", "normal"),
            ("low", "key-c", "low"),
            ("b1", "key-b", "normal"),
            ("urgent", "key-a", "HIGH"),
        ):
            call(name, key, priority)
            await house.sink.until_queued(len(calls))
        replica = await house.raw_replica(behave)
        house.endpoints.put(replica.url, READY, capacity=1)
        answers = await asyncio.gather(*calls)
        assert {answer.status for answer in answers} == {200}
        assert served == ["urgent", "a0", "b0", "a1", "b1", "a2", "a3", "low"]
        assert replica.most_open == 1

    tools.run(
        main,
        keys={f"key-{name}": Identity(f"tenant-{name}") for name in "abc"},
    )


def test_a_request_is_sent_while_the_replica_starts(tools: Any) -> None:
    """The connection stands and the bytes are sent before the replica accepts anything."""

    async def behave(connection: Any) -> None:
        await connection.request()
        await connection.answer(headers="server-timing: tokenize;dur=1.5, queue;dur=0.25\r\n")

    async def main(house: Any) -> None:
        await house.deploy()
        call = asyncio.create_task(house.call())
        await house.sink.until_queued(1)
        await asyncio.sleep(0.05)
        replica = await house.raw_replica(behave, accepts=False)
        house.endpoints.put(replica.url, STARTING)
        await house.sink.until_in_flight(1)
        await asyncio.sleep(0.1)
        assert replica.connections == 0
        house.endpoints.put(replica.url, READY, stages_ms={"map": 12.0, "bind": 3.0})
        await replica.accept()
        answer = await call
        assert answer.status == 200
        assert replica.connections == 1
        assert answer.headers["x-cold-start"] == "true"
        assert answer.headers["x-start-kind"] == "snapshot"
        assert 140 < float(answer.headers["x-start-ms"]) < 1000
        assert float(answer.headers["x-queue-ms"]) == 0
        stages = from_server_timing(answer.headers["server-timing"])
        assert 45 < stages["assign"] < 500
        assert 95 < stages["start"] < 500
        assert (stages["start-map"], stages["start-bind"]) == (12.0, 3.0)
        assert (stages["tokenize"], stages["engine-queue"]) == (1.5, 0.25)
        assert {"admission", "read", "connect", "upstream"} <= set(stages)

    tools.run(main)


def test_a_starting_replica_that_dies_gives_the_request_back(tools: Any) -> None:
    """However it dies: by closing, by a reset, by news alone, by refusing connections."""

    async def main(house: Any) -> None:
        await house.deploy()

        async def closes(connection: Any) -> None:
            await connection.request()

        async def resets(connection: Any) -> None:
            await connection.request()
            connection.reset()

        async def hangs(connection: Any) -> None:
            await connection.until_gone()

        async def answers(connection: Any) -> None:
            _, body = await connection.request()
            await connection.answer(body)

        call = asyncio.create_task(house.call(data=b"the request"))
        await house.sink.until_queued(1)
        for name, behaviour in (("closes", closes), ("resets", resets)):
            replica = await house.raw_replica(behaviour)
            house.endpoints.put(replica.url, STARTING, name=name)
            await house.sink.until_in_flight(1)
            await house.sink.until_queued(1)
            house.endpoints.drop(name)

        replica = await house.raw_replica(hangs)
        house.endpoints.put(replica.url, STARTING, name="hangs")
        await house.sink.until_in_flight(1)
        house.endpoints.drop("hangs")  # its socket stays open: only the news says so
        await house.sink.until_queued(1)

        gone = await house.raw_replica(hangs)
        gone.close()
        house.endpoints.put(gone.url, STARTING, name="gone")
        await house.sink.until_in_flight(1)
        await house.sink.until_queued(1)
        house.endpoints.drop("gone")

        assert not call.done()
        replica = await house.raw_replica(answers)
        house.endpoints.put(replica.url, READY, name="answers")
        answer = await call
        assert (answer.status, await answer.read()) == (200, b"the request")
        assert "retry" in from_server_timing(answer.headers["server-timing"])

    tools.run(main)


def test_a_refusing_replica_is_not_hammered(tools: Any) -> None:
    async def never(_connection: Any) -> None:
        raise AssertionError

    async def main(house: Any) -> None:
        await house.deploy()
        gone = await house.raw_replica(never)
        gone.close()
        house.endpoints.put(gone.url, READY)
        started = len(house.sink.reports)
        answer = await house.call(headers={"x-start-timeout": "0.4"})
        assert answer.status == 504
        # 50, 100, 200 ms of rest: a handful of tries, each of them a few reports
        assert len(house.sink.reports) - started < 30

    tools.run(main)


def test_when_another_is_ready_first_it_takes_what_waits_in_a_starting_one(tools: Any) -> None:
    async def answers(connection: Any) -> None:
        _, body = await connection.request()
        await connection.answer(body)

    async def main(house: Any) -> None:
        await house.deploy()
        call = asyncio.create_task(house.call(data=b"hello"))
        slow = await house.raw_replica(answers, accepts=False)
        house.endpoints.put(slow.url, STARTING, name="slow")
        await house.sink.until_in_flight(1)
        fast = await house.raw_replica(answers)
        house.endpoints.put(fast.url, READY, name="fast")
        answer = await call
        assert (answer.status, await answer.read()) == (200, b"hello")
        assert (slow.connections, fast.connections) == (0, 1)

    tools.run(main)


def test_long_idle_then_zero_then_a_call(tools: Any) -> None:
    """A function that was served, went to zero and was left alone starts again at once."""

    async def answers(connection: Any) -> None:
        await connection.request()
        await connection.answer()

    async def main(house: Any) -> None:
        await house.deploy()
        replica = await house.raw_replica(answers)
        house.endpoints.put(replica.url, READY)
        assert (await house.call()).headers["x-cold-start"] == "false"
        house.endpoints.put(replica.url, ReplicaState.DRAINING)
        house.endpoints.drop()
        await house.sink.until_idle()
        await asyncio.sleep(1.1)  # the reports of an idle function go on
        quiet = house.sink.last
        assert (quiet.queued, quiet.in_flight, quiet.arrivals) == (0, 0, 1)
        call = asyncio.create_task(house.call())
        demand = await house.sink.until(lambda report: report.queued == 1)
        assert demand.arrivals == 2
        assert demand.last_active_s > quiet.last_active_s
        house.endpoints.put(replica.url, STARTING, name="r2")
        answer = await call
        assert (answer.status, answer.headers["x-cold-start"]) == (200, "true")

    tools.run(main)


def test_what_a_failed_function_says(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        waiting = asyncio.create_task(house.call())
        await house.sink.until_queued(1)
        house.endpoints.fail("smollm2", "model.gguf is truncated")
        for answer in (await waiting, await house.call()):
            assert answer.status == 503
            assert answer.headers["retry-after"] == "30"
            error = await tools.error_of(answer)
            assert "model.gguf is truncated" in error["message"]
            assert error["type"] == "service_unavailable"
        warming = await house.call("/f/smollm2/warm")
        assert warming.status == 503

    tools.run(main)


def test_deleting_a_function_ends_what_waits_with_404(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        waiting = asyncio.create_task(house.call())
        await house.sink.until_queued(1)
        deleted = await house.client.delete(house.url + "/v1/functions/smollm2")
        assert deleted.status == 204
        for answer in (await waiting, await house.call()):
            assert answer.status == 404
            assert (await tools.error_of(answer))["code"] == "model_not_found"

    tools.run(main)


def test_bytes_in_the_queue_are_bounded(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy(queue={"max_bytes": "1MiB"})
        first = asyncio.create_task(house.call(data=b"x" * 700_000))
        await house.sink.until_queued(1)
        second = await house.call(data=b"x" * 700_000)
        assert second.status == 429
        assert re.search("1048576 bytes", (await tools.error_of(second))["message"])
        too_large = await house.call(data=b"x" * 2_000_000)
        assert too_large.status == 413
        assert not first.done()
        first.cancel()
        await house.sink.until_queued(0)

    tools.run(main)


def test_large_bodies_arrive_whole(tools: Any) -> None:
    async def answers(connection: Any) -> None:
        _, body = await connection.request()
        counts = Counter(body)
        await connection.answer(f"{len(body)} {counts[ord('x')]}".encode())

    async def main(house: Any) -> None:
        await house.deploy()
        call = asyncio.create_task(house.call(data=b"x" * (20 << 20)))
        replica = await house.raw_replica(answers, accepts=False)
        house.endpoints.put(replica.url, STARTING)
        await house.sink.until_in_flight(1)
        await replica.accept()
        assert await (await call).read() == f"{20 << 20} {20 << 20}".encode()

    tools.run(main)
