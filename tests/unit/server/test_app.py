"""Routes, limits, probes and draining."""

import asyncio

import pytest
from starlette.requests import ClientDisconnect

from glowplug.errors import BodyTimeout, Overloaded, PayloadTooLarge, Unavailable
from runtime.engine.request import Delta, FinishReason
from runtime.server.admission import Admission
from runtime.server.body import read_body

CHAT = "/v1/chat/completions"
PLAIN = "/v1/completions"
BODY = {"model": "tiny", "prompt": "hello"}


def get(replica, *paths, method="GET", **settings):
    async def main():
        async with replica(**settings) as r:
            return [await r.http.request(method, path) for path in paths]

    return asyncio.run(main())


def test_models_are_the_name_and_its_aliases(replica):
    listed, one, alias, other = get(
        replica,
        "/v1/models",
        "/v1/models/tiny",
        "/v1/models/alias/of-tiny",
        "/v1/models/gpt-4o",
    )
    assert listed.json()["object"] == "list"
    assert [model["id"] for model in listed.json()["data"]] == ["tiny", "alias/of-tiny"]
    assert listed.json()["data"][0] == one.json()
    assert one.json() | {"created": 0} == {
        "id": "tiny",
        "object": "model",
        "created": 0,
        "owned_by": "glowplug",
        "max_model_len": 512,
        "tasks": ["generate", "embed"],
    }
    assert alias.json()["id"] == "alias/of-tiny"
    assert other.status_code == 404
    assert other.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/chat", "/v1/models/", "/v1/images"])
def test_unknown_routes(replica, path):
    [response] = get(replica, path)
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", CHAT, "POST"), ("PUT", PLAIN, "POST"), ("POST", "/v1/models", "GET")],
)
def test_wrong_methods(replica, method, path, allowed):
    [response] = get(replica, path, method=method)
    assert response.status_code == 405
    assert allowed in response.headers["allow"]
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_the_tenant_that_the_activator_names_keeps_its_cached_prefixes_apart(replica):
    async def main():
        async with replica() as r:
            await r.http.post(PLAIN, json=BODY, headers={"X-Glowplug-Tenant": "team%20a"})
            await r.http.post(PLAIN, json=BODY)
            return [request.cache_salt for request in r.engine.submitted]

    assert asyncio.run(main()) == ["team%20a", ""]


def test_tenant_and_class_reach_the_engine(replica):
    async def main():
        async with replica() as r:
            for name in ("high", "low", None, "no such class"):
                headers = {"X-Glowplug-Tenant": "t"} | (
                    {"X-Glowplug-Priority": name} if name else {}
                )
                await r.http.post(PLAIN, json=BODY, headers=headers)
            return [(request.tenant, request.priority.name) for request in r.engine.submitted]

    assert asyncio.run(main()) == [("t", "HIGH"), ("t", "LOW"), ("t", "NORMAL"), ("t", "NORMAL")]


def test_a_bug_is_a_clean_500(replica, monkeypatch):
    def broken(*_args, **_kwargs):
        raise ZeroDivisionError("a secret")

    async def main():
        async with replica() as r:
            monkeypatch.setattr(r.engine, "submit", broken)
            return await r.http.post(PLAIN, json=BODY)

    response = asyncio.run(main())
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "secret" not in response.text


def test_a_bug_in_the_middle_of_a_stream_is_in_the_stream(served, caplog):
    async def main():
        script = [Delta(text="one", tokens=(1,)), Delta(text=b"not text", tokens=(1,))]
        async with served(script=lambda request: script) as r:
            return await r.http.post(PLAIN, json=BODY | {"stream": True})

    *_, last, end = asyncio.run(main()).text.split("\n\n")
    assert end == ""
    assert '"code": "internal_error"' in last
    assert "not JSON serializable" in caplog.text  # the log has the traceback


def test_probes_follow_the_engine_and_the_draining(replica):
    async def main():
        async with replica() as r:

            async def states():
                return [(await r.http.get(path)).status_code for path in ("/health", "/ready")]

            assert await states() == [200, 200]
            r.admission.drain()
            assert await states() == [200, 503]
            r.client.engine_failed("out of memory")
            await asyncio.sleep(0)
            assert await states() == [503, 503]
            assert "out of memory" in (await r.http.get("/health")).text

    asyncio.run(main())


def test_a_dead_engine_is_a_503(replica):
    async def main():
        async with replica(script=lambda request: []) as r:
            waiting = asyncio.create_task(r.http.post(PLAIN, json=BODY))
            await r.engine.has(1)
            r.client.engine_failed("the engine stopped")
            return [await waiting, await r.http.post(PLAIN, json=BODY)]

    for response in asyncio.run(main()):
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert response.json()["error"]["message"] == "the engine stopped"


def test_draining_refuses_the_new_and_finishes_the_old(served):
    async def main():
        go_on = asyncio.Event()
        loop = asyncio.get_running_loop()

        def script(_request):
            yield Delta(text="one", tokens=(1,))
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(timeout=10)
            yield Delta(text="two", tokens=(1,), finish=FinishReason.STOP)

        async with (
            served(script=script) as r,
            r.http.stream("POST", PLAIN, json=BODY | {"stream": True}) as response,
        ):
            lines = response.aiter_lines()
            assert "one" in await anext(lines)
            r.admission.drain()
            refused = await r.http.post(PLAIN, json=BODY)
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"
            idle = asyncio.create_task(r.admission.idle())
            await asyncio.sleep(0)
            assert not idle.done()
            assert r.admission.running == 1
            go_on.set()
            rest = [line async for line in lines]
            assert "two" in "".join(rest)
            assert rest[-2:] == ["data: [DONE]", ""]
            await idle
            assert r.admission.running == 0

    asyncio.run(main())


class TestAdmission:
    def test_bound(self):
        admission = Admission(max_running=1)
        with admission.admit(), pytest.raises(Overloaded) as caught, admission.admit():
            pass
        assert caught.value.headers() == {"retry-after": "1"}
        with admission.admit():
            assert admission.running == 1

    def test_idle_waits_for_all(self):
        async def main():
            admission = Admission()
            await admission.idle()
            with admission.admit():
                with admission.admit():
                    pass
                idle = asyncio.create_task(admission.idle())
                await asyncio.sleep(0)
                assert not idle.done()
            await idle

        asyncio.run(main())

    def test_a_failure_counts_as_over(self):
        admission = Admission()
        with pytest.raises(ZeroDivisionError), admission.admit():
            raise ZeroDivisionError
        assert admission.running == 0

    def test_draining(self):
        admission = Admission()
        admission.drain()
        with pytest.raises(Unavailable), admission.admit():
            pass


class TestBody:
    """Reading within limits; `messages` is what the ASGI server hands over."""

    def read(self, *messages, announced=None, max_bytes=10, timeout_s=10):
        headers = [] if announced is None else [(b"content-length", announced)]
        rest = iter(messages)

        async def receive():
            message = next(rest, None)
            return await asyncio.Future() if message is None else message

        return asyncio.run(
            read_body(
                {"type": "http", "headers": headers},
                receive,
                max_bytes=max_bytes,
                timeout_s=timeout_s,
            )
        )

    def part(self, body, more=True):
        return {"type": "http.request", "body": body, "more_body": more}

    def test_parts_are_joined(self):
        assert self.read(self.part(b"abc"), self.part(b"defghij", more=False)) == b"abcdefghij"
        assert self.read({"type": "http.request"}) == b""

    @pytest.mark.parametrize(
        "sizes", [(11,), (10, 1), (5, 5, 1)], ids=["one part", "a last byte", "the third"]
    )
    def test_too_large(self, sizes):
        *first, last = [b"x" * size for size in sizes]
        with pytest.raises(PayloadTooLarge, match="10 bytes"):
            self.read(*map(self.part, first), self.part(last, more=False))

    @pytest.mark.parametrize("announced", [b"11", b"9" * 100])
    def test_an_announced_size_is_refused_unread(self, announced):
        with pytest.raises(PayloadTooLarge):
            self.read(announced=announced)

    def test_an_odd_announcement_is_passed_over(self):
        assert self.read(self.part(b"abc", more=False), announced=b"-3") == b"abc"

    def test_a_body_that_does_not_come(self):
        with pytest.raises(BodyTimeout):
            self.read(self.part(b"abc"), timeout_s=0.01)

    def test_a_client_that_leaves(self):
        with pytest.raises(ClientDisconnect):
            self.read(self.part(b"abc"), {"type": "http.disconnect"})


def test_too_large_a_body_over_a_socket(served):
    async def main():
        async with served(max_body_bytes=1000) as r:

            async def chunks():
                for _ in range(20):
                    yield b" " * 100

            for content in (b" " * 5_000_000, chunks()):
                response = await r.http.post(PLAIN, content=content)
                assert response.status_code == 413
                assert response.json()["error"]["type"] == "invalid_request_error"
            assert (await r.http.post(PLAIN, json=BODY)).status_code == 200

    asyncio.run(main())
