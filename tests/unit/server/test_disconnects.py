"""A client that goes away frees its sequences at once, over real sockets, in every phase."""

import asyncio
import json

import pytest

from runtime.engine.request import Delta, FinishReason

CHAT = "/v1/chat/completions"
PLAIN = "/v1/completions"
BODIES = {
    CHAT: {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]},
    PLAIN: {"model": "tiny", "prompt": "hello"},
}


def post(path, body):
    content = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (
        path.encode(),
        len(content),
        content,
    )


async def nothing_runs(r):
    await r.engine.saw_abort.wait()
    await r.admission.idle()
    assert not r.client._routes


@pytest.mark.parametrize("path", [CHAT, PLAIN])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_during_prefill(served, path, stream, n):
    async def main():
        async with served(script=lambda request: []) as r:
            _, writer = await asyncio.open_connection(*r.address)
            writer.write(post(path, BODIES[path] | {"stream": stream, "n": n}))
            await r.engine.has(n)
            writer.close()
            await nothing_runs(r)
            assert sorted(r.engine.aborted) == sorted(s.id for s in r.engine.submitted)

    asyncio.run(main())


@pytest.mark.parametrize("path", [CHAT, PLAIN])
def test_in_the_middle_of_a_stream(served, path):
    async def main():
        async with served(script=lambda request: [Delta(text="first", tokens=(1,))]) as r:
            reader, writer = await asyncio.open_connection(*r.address)
            writer.write(post(path, BODIES[path] | {"stream": True}))
            await reader.readuntil(b"first")
            writer.close()
            await nothing_runs(r)
            assert r.engine.aborted == [r.engine.submitted[0].id]

    asyncio.run(main())


def test_in_the_middle_of_a_whole_answer(served):
    async def main():
        async with served(script=lambda request: [Delta(text="first", tokens=(1,))] * 3) as r:
            _, writer = await asyncio.open_connection(*r.address)
            writer.write(post(CHAT, BODIES[CHAT]))
            await r.engine.has(1)
            writer.close()
            await nothing_runs(r)

    asyncio.run(main())


def test_a_reset_connection_counts_too(served):
    async def main():
        async with served(script=lambda request: [Delta(text="first", tokens=(1,))]) as r:
            reader, writer = await asyncio.open_connection(*r.address)
            writer.write(post(CHAT, BODIES[CHAT] | {"stream": True}))
            await reader.readuntil(b"first")
            writer.transport.abort()
            await nothing_runs(r)

    asyncio.run(main())


def test_in_the_middle_of_the_body(served):
    async def main():
        async with served() as r:
            reader, writer = await asyncio.open_connection(*r.address)
            body = post(CHAT, BODIES[CHAT])[:-10]
            writer.write(body.replace(b"host: x", b"expect: 100-continue"))
            await reader.readuntil(b"100 Continue")  # the app is reading
            assert r.admission.running == 1
            writer.close()
            await r.admission.idle()
            assert not r.engine.submitted

    asyncio.run(main())


def test_while_a_long_prompt_is_tokenised(served, tiny_tokenizer):
    """The request never reaches the engine."""

    async def main():
        began, go_on = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        class Slow:
            def encode(self, text, **kwargs):
                loop.call_soon_threadsafe(began.set)
                asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(timeout=10)
                return tiny_tokenizer.encode(text, **kwargs)

            def get_vocab_size(self):
                return 300

        async with served(tokenizer=Slow(), max_context=8192) as r:
            _, writer = await asyncio.open_connection(*r.address)
            writer.write(post(PLAIN, {"model": "tiny", "prompt": "hello " * 3000}))
            await began.wait()
            writer.close()
            await r.admission.idle()
            go_on.set()
            assert not r.engine.submitted

    asyncio.run(main())


def test_a_finished_answer_aborts_nothing_and_the_connection_goes_on(served):
    async def main():
        async with served() as r:
            for stream in (True, False, True):
                response = await r.http.post(CHAT, json=BODIES[CHAT] | {"stream": stream})
                assert "world" in response.text
            assert not r.engine.aborted
            await r.admission.idle()

    asyncio.run(main())


def test_others_are_not_touched(served):
    """One of two streams is cut; the other ends as it would have."""

    async def main():
        go_on = asyncio.Event()
        loop = asyncio.get_running_loop()

        def script(_request):
            yield Delta(text="first", tokens=(1,))
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(timeout=10)
            yield Delta(text="last", tokens=(1,), finish=FinishReason.STOP)

        async with served(script=script) as r:
            streams = []
            for _ in range(2):
                reader, writer = await asyncio.open_connection(*r.address)
                writer.write(post(CHAT, BODIES[CHAT] | {"stream": True}))
                streams.append((reader, writer))
            (reader, _), (_, cut) = streams
            await reader.readuntil(b"first")
            await r.engine.has(2)
            cut.close()
            go_on.set()
            await reader.readuntil(b"[DONE]")
            streams[0][1].close()
            await r.admission.idle()

    asyncio.run(main())
