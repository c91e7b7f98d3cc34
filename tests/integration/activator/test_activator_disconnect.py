"""A client that hangs up, in every phase: nothing of its request is left, nobody else suffers."""

import asyncio
import json
import logging
import socket
from typing import Any

import pytest

from glowplug.contracts import ReplicaState

STARTING, READY = ReplicaState.STARTING, ReplicaState.READY


async def wait_for_client(connection: Any) -> None:
    await connection.request()
    await connection.until_gone()
    connection.gone.set()


def test_while_it_sends_its_body(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        _, writer = await house.connect()
        writer.write(tools.request_bytes(b"x" * 1000)[:-500])
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()
        await asyncio.sleep(0.05)
        assert all(report.queued == 0 for report in house.sink.reports)
        assert all(report.arrivals == 0 for report in house.sink.reports)
        other = asyncio.create_task(house.call())
        await house.sink.until_queued(1)
        other.cancel()
        await house.sink.until_idle()

    tools.run(main)


def test_in_the_queue_and_the_others_keep_their_start(tools: Any) -> None:
    async def behave(connection: Any) -> None:
        _, body = await connection.request()
        await connection.answer(body)

    async def main(house: Any) -> None:
        await house.deploy()
        writer = await house.hang_up_later()
        await house.sink.until_queued(1)
        other = asyncio.create_task(house.call(data=b"other"))
        await house.sink.until_queued(2)
        writer.close()
        demand = await house.sink.until(lambda report: report.queued == 1)
        assert demand.arrivals == 2
        replica = await house.raw_replica(behave)
        house.endpoints.put(replica.url, STARTING)
        assert await (await other).read() == b"other"
        assert replica.connections == 1

    tools.run(main)


def test_in_the_queue_alone_withdraws_the_demand(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        writer = await house.hang_up_later()
        await house.sink.until_queued(1)
        writer.close()
        await house.sink.until_idle()

    tools.run(main)


def test_while_the_replica_starts(tools: Any) -> None:
    """Its connection in the replica's backlog is closed; the one of the other client is not."""

    async def main(house: Any) -> None:
        await house.deploy()
        ended: list[str] = []

        async def behave(connection: Any) -> None:
            _, body = await connection.request()
            try:
                await connection.until_gone() if body == b"leaves" else None
                await connection.answer(body)
            finally:
                ended.append(body.decode())

        _, writer = await house.connect()
        writer.write(tools.request_bytes(b"leaves"))
        await house.sink.until_queued(1)
        stays = asyncio.create_task(house.call(data=b"stays"))
        await house.sink.until_queued(2)
        replica = await house.raw_replica(behave, accepts=False)
        house.endpoints.put(replica.url, STARTING)
        await house.sink.until_in_flight(2)
        await asyncio.sleep(0.05)
        writer.close()
        await house.sink.until_in_flight(1)
        house.endpoints.put(replica.url, READY)
        await replica.accept()
        assert await (await stays).read() == b"stays"
        await house.sink.until_idle()

    tools.run(main)


def test_while_connecting(tools: Any, caplog: pytest.LogCaptureFixture) -> None:
    """To a replica whose backlog is full: the kernel answers nothing at all."""

    async def main(house: Any) -> None:
        await house.deploy()
        listener = socket.create_server(("127.0.0.1", 0), backlog=0)
        address = listener.getsockname()
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(address)
            fillers.append(filler)
        await asyncio.sleep(0.05)
        house.endpoints.put(f"http://127.0.0.1:{address[1]}", READY)
        writer = await house.hang_up_later()
        await house.sink.until_in_flight(1)
        await asyncio.sleep(0.05)
        writer.close()
        await house.sink.until_idle()
        for each in (*fillers, listener):
            each.close()
        (line,) = [json.loads(record.message) for record in caplog.records]
        assert (line["status"], line["replica"]) == (499, "r1")
        assert "connect" not in line["stages_ms"]

    with caplog.at_level(logging.INFO, logger="activator.access"):
        tools.run(main)


@pytest.mark.parametrize("state", [STARTING, READY])
def test_while_waiting_for_headers(tools: Any, state: ReplicaState) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        there, gone = asyncio.Event(), asyncio.Event()

        async def behave(connection: Any) -> None:
            await connection.request()
            there.set()
            await connection.until_gone()
            gone.set()

        replica = await house.raw_replica(behave)
        house.endpoints.put(replica.url, state)
        writer = await house.hang_up_later()
        await there.wait()
        writer.close()
        await gone.wait()  # the replica sees its connection close: it stops generating
        await house.sink.until_idle()

    tools.run(main)


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
def test_while_streaming(tools: Any, how: str) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        gone = asyncio.Event()

        async def behave(connection: Any) -> None:
            await connection.request()
            await connection.begin_events()
            await connection.chunk(b"data: 1\n\n")
            await connection.until_gone()  # it sends nothing more: no write can tell
            gone.set()

        replica = await house.raw_replica(behave)
        house.endpoints.put(replica.url, READY)
        reader, writer = await house.connect()
        writer.write(tools.request_bytes())
        await reader.readuntil(b"data: 1\n\n")
        if how == "close":
            writer.close()
        elif how == "reset":
            writer.transport.abort()
        else:
            writer.write_eof()
        await gone.wait()
        await house.sink.until_idle()
        writer.close()

    tools.run(main)


def test_while_it_does_not_read(tools: Any) -> None:
    """The front door is blocked in a write to it when it goes."""

    async def main(house: Any) -> None:
        await house.deploy()
        full, gone = asyncio.Event(), asyncio.Event()

        async def behave(connection: Any) -> None:
            await connection.request()
            await connection.begin_events()
            try:
                while True:
                    async with asyncio.timeout(0.3):
                        await connection.chunk(b"x" * 100_000)
            except TimeoutError:
                full.set()
            await connection.until_gone()
            gone.set()

        replica = await house.raw_replica(behave)
        house.endpoints.put(replica.url, READY)
        writer = await house.hang_up_later()
        await full.wait()
        writer.transport.abort()
        await gone.wait()
        await house.sink.until_idle()

    tools.run(main)


def test_while_it_warms(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        _, writer = await house.connect()
        writer.write(tools.request_bytes(path="/f/smollm2/warm"))
        await house.sink.until_queued(1)
        writer.close()
        await house.sink.until_idle()

    tools.run(main)


def test_a_freed_place_goes_to_the_next(tools: Any) -> None:
    async def main(house: Any) -> None:
        await house.deploy()
        there = asyncio.Event()

        async def behave(connection: Any) -> None:
            _, body = await connection.request()
            if body == b"next":
                await connection.answer(body)
            else:
                there.set()
                await connection.until_gone()

        replica = await house.raw_replica(behave)
        house.endpoints.put(replica.url, READY, capacity=1)
        writer = await house.hang_up_later()
        await there.wait()
        following = asyncio.create_task(house.call(data=b"next"))
        await house.sink.until_queued(1)
        writer.close()
        assert await (await following).read() == b"next"
        assert replica.most_open == 1

    tools.run(main)
