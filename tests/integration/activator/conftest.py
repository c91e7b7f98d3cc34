"""A whole activator behind a real socket, over contracts in memory and replicas of our making.

Everything runs on the test's own event loop: the front door under uvicorn, the replicas as real
servers on 127.0.0.1, and a client that talks to the front door's socket.
"""

import asyncio
import contextlib
import io
import json
import socket
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import uvicorn
from starlette.types import ASGIApp

from activator.app import build_app
from activator.auth import Identity
from activator.limits import Limits
from glowplug.contracts import ForecastReport
from glowplug.spec import FunctionSpec
from tests.integration.activator.memory import MemoryEndpoints, MemoryRegistry, Sink
from tests.integration.activator.raw_replica import Behaviour, RawReplica

TEST_LIMIT_S = 30.0


@contextlib.asynccontextmanager
async def served(app: ASGIApp, **options: Any) -> AsyncIterator[tuple[str, Callable[[], Any]]]:
    """The app under uvicorn: its URL, and what stops it and waits until it has."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    server = uvicorn.Server(
        uvicorn.Config(app, log_config=None, access_log=False, ws="none", **options)
    )
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    task = asyncio.create_task(server.serve(sockets=[listener]))

    async def stop() -> None:
        server.should_exit = True
        await task

    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", stop
    finally:
        await stop()
        listener.close()


class House:
    """The front door at `url`, what it was given, and a client of it."""

    def __init__(self) -> None:
        self.registry = MemoryRegistry()
        self.endpoints = MemoryEndpoints(self.registry)
        self.sink = Sink()
        self.url = ""
        self.stop: Callable[[], Any]
        self.client: aiohttp.ClientSession
        self._stack = contextlib.AsyncExitStack()

    async def deploy(self, **fields: Any) -> None:
        await self.registry.put(FunctionSpec(**{"name": "smollm2", "model": "m", **fields}))

    async def raw_replica(self, behaviour: Behaviour, *, accepts: bool = True) -> RawReplica:
        replica = RawReplica(behaviour)
        self._stack.push_async_callback(replica.stop)
        if accepts:
            await replica.accept()
        return replica

    async def app_replica(self, app: ASGIApp) -> str:
        """A replica that is an ASGI app; its URL."""
        url, _ = await self._stack.enter_async_context(served(app))
        return url

    def post(
        self, path: str = "/f/smollm2/v1/chat/completions", **options: Any
    ) -> Coroutine[Any, Any, aiohttp.ClientResponse]:
        options.setdefault("json", {"model": "smollm2"})
        if "data" in options:
            del options["json"]
            if isinstance(options["data"], bytes):
                options["data"] = io.BytesIO(options["data"])
        return self.client.post(self.url + path, **options)._coro

    async def call(
        self, path: str = "/f/smollm2/v1/chat/completions", **options: Any
    ) -> aiohttp.ClientResponse:
        """A POST, its answer read to the end."""
        response = await self.post(path, **options)
        await response.read()
        return response

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection to the front door."""
        host, port = self.url.removeprefix("http://").split(":")
        return await asyncio.open_connection(host, int(port))

    async def hang_up_later(self, **headers: str) -> asyncio.StreamWriter:
        """A request whose client will close the connection: a bare connection, request sent."""
        _, writer = await self.connect()
        writer.write(request_bytes(headers=headers))
        await writer.drain()
        return writer


def request_bytes(
    body: bytes = b'{"model": "smollm2"}',
    *,
    path: str = "/f/smollm2/v1/chat/completions",
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """A whole POST."""
    lines = [f"POST {path} HTTP/1.1", "host: test", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def error_of(response: aiohttp.ClientResponse) -> dict[str, Any]:
    """The error of an OpenAI-shaped body."""
    body = json.loads(await response.read())
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


@contextlib.asynccontextmanager
async def open_house(
    *,
    keys: Mapping[str, Identity] | None = None,
    limits: Limits | None = None,
    public_url: str | None = None,
    options: Mapping[str, Any] | None = None,
    forecast: ForecastReport | None = None,
    accelerators: Collection[str] = (),
) -> AsyncIterator[House]:
    house = House()
    app = build_app(
        registry=house.registry,
        endpoints=house.endpoints,
        demand=house.sink,
        keys=keys,
        limits=limits or Limits(),
        public_url=public_url,
        forecast=forecast,
        accelerators=lambda: accelerators,
    )
    async with house._stack:
        house.url, house.stop = await house._stack.enter_async_context(
            served(app, **(options or {}))
        )
        house.client = await house._stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        yield house


@dataclass
class Tools:
    """What the tests import from here, as one fixture (this folder is no package)."""

    open_house: Any = open_house
    request_bytes: Any = request_bytes
    error_of: Any = error_of

    def run(self, main: Callable[[House], Coroutine[Any, Any, None]], **options: Any) -> None:
        """Run the test with a house, for a limited time."""

        async def limited() -> None:
            async with asyncio.timeout(TEST_LIMIT_S), open_house(**options) as house:
                await main(house)

        asyncio.run(limited())


@pytest.fixture
def tools() -> Tools:
    return Tools()
