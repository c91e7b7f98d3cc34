"""Upstream: one HTTP request to a replica.

Each request has a connection of its own. A kept-alive one would save 0.3 ms, but a
replica may close it just as a request is sent, and then nobody can tell whether that request was
worked on. So here a refused connection always means: not processed, safe to hand to another one.

There are no time limits of its own: the caller's clocks cancel it, which closes the connection.
TCP keep-alive notices a node that has vanished without a word.
"""

import io
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
from aiohttp import ClientResponse, TraceConfig
from yarl import URL

from activator.timing import Laps

KEEPALIVE_IDLE_S = 10
KEEPALIVE_INTERVAL_S = 5
KEEPALIVE_PROBES = 3
STREAMED_BODY_BYTES = 1 << 20  # larger bodies are written in pieces, so they do not block the loop
_NO_TIMEOUTS = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)


class Refused(Exception):
    """There was no connection: the replica has seen nothing of the request."""


class Broken(Exception):
    """The connection broke, or what came over it is not HTTP, before response headers."""


@dataclass(frozen=True, kw_only=True)
class UpstreamRequest:
    """What to send; may be sent again to another replica."""

    method: str
    path: str  # raw, with its query string
    headers: Sequence[tuple[str, str]]
    body: bytes


class Upstream:
    """The HTTP client to all replicas."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    @property
    def is_open(self) -> bool:
        """Between start and stop."""
        return self._session is not None

    async def start(self) -> None:
        """Make the session, on the event loop that will use it."""
        if self._session is not None:
            return
        trace = TraceConfig()
        trace.on_connection_create_end.append(_connected)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, force_close=True, socket_factory=_socket_with_keepalive
            ),
            timeout=_NO_TIMEOUTS,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            auto_decompress=False,
            trace_configs=[trace],
        )

    async def stop(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(self, replica_url: str, request: UpstreamRequest, laps: Laps) -> ClientResponse:
        """Send the request and wait for response headers; the caller closes the response.

        Books the stage `connect`.

        Raises:
            Refused, Broken.
        """
        if self._session is None:
            raise RuntimeError("the activator has not been started; run its lifespan")
        data: bytes | io.BytesIO | None = request.body or None
        if len(request.body) > STREAMED_BODY_BYTES:
            data = io.BytesIO(request.body)
        try:
            return await self._session.request(
                request.method,
                URL(replica_url + request.path, encoded=True),
                headers=request.headers,
                data=data,
                allow_redirects=False,
                trace_request_ctx=laps,
            )
        except aiohttp.ClientConnectorError as error:
            raise Refused(str(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Broken(str(error) or type(error).__name__) from error


async def _connected(
    _session: aiohttp.ClientSession,
    context: object,
    _params: aiohttp.TraceConnectionCreateEndParams,
) -> None:
    laps = getattr(context, "trace_request_ctx", None)
    if isinstance(laps, Laps):
        laps.until("connect")


def _socket_with_keepalive(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    connection = socket.socket(family, kind, protocol)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # Linux
        for option, value in (
            (socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S),
            (socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S),
            (socket.TCP_KEEPCNT, KEEPALIVE_PROBES),
        ):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
    return connection
