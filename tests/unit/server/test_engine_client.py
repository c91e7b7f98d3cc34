"""The engine's output reaches the request it belongs to, and nothing is left behind."""

import asyncio

import pytest

from glowplug.errors import GlowplugError, ReplicaLost, Unavailable
from runtime.engine.request import Delta, FinishReason, GenerationRequest, SamplingParams
from runtime.server.engine_client import EngineClient


class Recorder:
    """An EnginePort that does nothing by itself."""

    max_context = 64
    vocab_size = 300

    def __init__(self):
        self.submitted = []
        self.aborted = []

    def submit(self, request):
        self.submitted.append(request.id)

    def abort(self, request_id):
        self.aborted.append(request_id)


def request(name):
    return GenerationRequest(id=name, prompt=(1,), params=SamplingParams(max_tokens=5))


def text(value):
    return Delta(text=value, tokens=(1,))


END = Delta(finish=FinishReason.STOP)


@pytest.fixture
def connected():
    """Runs `scenario(client, engine)` on a loop."""

    def run(scenario):
        async def main():
            client, engine = EngineClient(asyncio.get_running_loop()), Recorder()
            client.connect(engine)
            async with asyncio.timeout(10):
                await scenario(client, engine)
            assert not client._routes

        asyncio.run(main())

    return run


def test_each_request_gets_its_own(connected):
    async def scenario(client, engine):
        async def read(name):
            with client.generate([request(name)]) as generation:
                return [delta.text async for arrivals in generation for _, delta in arrivals]

        readers = [asyncio.create_task(read(name)) for name in "ab"]
        await asyncio.sleep(0)
        client.emit([("a", text("1")), ("b", text("2"))])
        client.emit([("b", END), ("a", text("3"))])
        client.emit([("a", END)])
        assert await asyncio.gather(*readers) == [["1", "3", ""], ["2", ""]]
        assert engine.submitted == ["a", "b"]
        assert not engine.aborted

    connected(scenario)


def test_sequences_of_one_request_come_together_and_a_late_reader_gets_all(connected):
    async def scenario(client, engine):
        with client.generate([request("a"), request("b")]) as generation:
            client.emit([("a", text("1")), ("b", text("2"))])
            client.emit([("b", text("3"))])
            await asyncio.sleep(0)
            arrivals = await anext(generation)
            assert [(position, delta.text) for position, delta in arrivals] == [
                (0, "1"),
                (1, "2"),
                (1, "3"),
            ]
            client.emit([("a", END)])
            client.emit([("b", END)])
            rest = [delta async for arrivals in generation for _, delta in arrivals]
            assert rest == [END, END]

    connected(scenario)


def test_leaving_early_aborts_what_has_not_finished(connected):
    async def scenario(client, engine):
        with client.generate([request("a"), request("b")]) as generation:
            client.emit([("a", END)])
            await anext(generation)
        assert engine.aborted == ["b"]
        client.emit([("b", text("late")), ("nobody", END)])
        await asyncio.sleep(0)

    connected(scenario)


def test_cancelling_the_reader_aborts(connected):
    async def scenario(client, engine):
        async def read():
            with client.generate([request("a")]) as generation:
                async for _ in generation:
                    pass

        reader = asyncio.create_task(read())
        await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert engine.aborted == ["a"]

    connected(scenario)


def test_a_dead_engine_fails_every_request_now_and_later(connected):
    async def scenario(client, engine):
        with client.generate([request("a")]) as waiting, client.generate([request("b")]) as busy:
            client.emit([("b", text("1"))])
            client.engine_failed("out of memory")
            with pytest.raises(ReplicaLost, match="out of memory"):
                await anext(waiting)
            assert [delta.text for _, delta in await anext(busy)] == ["1"]
            with pytest.raises(ReplicaLost):
                await anext(busy)
        assert client.failure == "out of memory"
        assert not engine.aborted  # nobody is there to abort
        with pytest.raises(ReplicaLost):
            client.generate([request("c")])
        assert engine.submitted == ["a", "b"]

    connected(scenario)


@pytest.mark.parametrize(
    ("finish", "kind"), [(FinishReason.ERROR, GlowplugError), (FinishReason.ABORT, Unavailable)]
)
def test_one_failed_sequence_ends_its_request_only(connected, finish, kind):
    async def scenario(client, engine):
        two = [request("a"), request("b")]
        with client.generate(two) as failing, client.generate([request("c")]) as other:
            client.emit([("a", Delta(finish=finish, error="broken")), ("c", END)])
            with pytest.raises(kind):
                await anext(failing)
            assert [delta for _, delta in await anext(other)] == [END]
        assert engine.aborted == ["b"]

    connected(scenario)


def test_before_the_engine_is_connected():
    async def main():
        client = EngineClient(asyncio.get_running_loop())
        with pytest.raises(Unavailable, match="starting"):
            client.generate([request("a")])
        assert not client._routes

    asyncio.run(main())


def test_output_after_the_loop_has_closed_is_dropped():
    async def main():
        return EngineClient(asyncio.get_running_loop())

    client = asyncio.run(main())
    client.emit([("a", END)])
    client.engine_failed("late")
