"""The client to the replicas has no limits of its own, and no memory."""

import asyncio
import socket

import aiohttp
import pytest

from activator.timing import Laps
from activator.upstream import Refused, Upstream, UpstreamRequest


def test_no_hidden_timeouts_cookies_or_kept_connections() -> None:
    """Quiet times longer than a library's default would show only in minutes, so look."""

    async def main() -> None:
        upstream = Upstream()
        await upstream.start()
        session = upstream._session
        assert session is not None
        assert session.timeout == aiohttp.ClientTimeout(
            total=None, connect=None, sock_read=None, sock_connect=None
        )
        assert isinstance(session.cookie_jar, aiohttp.DummyCookieJar)
        connector = session.connector
        assert connector is not None
        assert (connector.limit, connector.limit_per_host, connector.force_close) == (0, 0, True)
        await upstream.stop()
        assert session.closed

    asyncio.run(main())


def test_used_before_it_is_started() -> None:
    async def main() -> None:
        request = UpstreamRequest(method="POST", path="/v1/completions", headers=(), body=b"")
        with pytest.raises(RuntimeError, match="not been started"):
            await Upstream().send("http://127.0.0.1:9", request, Laps(0.0))

    asyncio.run(main())


def test_a_closed_port_is_a_refusal() -> None:
    async def main() -> None:
        upstream = Upstream()
        await upstream.start()
        request = UpstreamRequest(method="POST", path="/v1/completions", headers=(), body=b"")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        try:
            with pytest.raises(Refused):
                await upstream.send(f"http://127.0.0.1:{port}", request, Laps(0.0))
        finally:
            await upstream.stop()

    asyncio.run(main())
