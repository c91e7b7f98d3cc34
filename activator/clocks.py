"""The two clocks of a request, and the scope that ends when one runs out or the client hangs up.

The *start* clock runs from the moment the request is queued until a ready replica has it; the
*request* clock from the request's arrival to the end of its answer.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import Receive

from glowplug.errors import GlowplugError, InvalidRequest
from glowplug.fields import parse_duration
from glowplug.spec import FunctionSpec


class ClientGone(Exception):
    """The client closed the connection; nobody is left to answer."""


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """The clocks' lengths."""

    start_s: float
    request_s: float


def timeouts_of(spec: FunctionSpec, headers: Headers) -> Timeouts:
    """The function's timeouts; a client may lower them for its request, never raise them.

    Raises:
        InvalidRequest: X-Start-Timeout or X-Request-Timeout is not a positive duration.
    """
    return Timeouts(
        start_s=min(spec.start_timeout_s, seconds_of(headers, "X-Start-Timeout")),
        request_s=min(spec.request_timeout_s, seconds_of(headers, "X-Request-Timeout")),
    )


def seconds_of(headers: Headers, name: str) -> float:
    """A duration header in seconds; infinite where the client did not send it.

    Raises:
        InvalidRequest: it is not a positive duration.
    """
    text = headers.get(name)
    if text is None:
        return float("inf")
    try:
        seconds = parse_duration(text)
    except ValueError:
        seconds = None
    if not isinstance(seconds, float) or seconds <= 0:
        raise InvalidRequest(
            f"{name}: {text[:50]!r} is not a positive duration; write for example 30 or 1m30s",
            param=name,
        )
    return seconds


@asynccontextmanager
async def deadline(
    when_s: float | None, error: Callable[[], GlowplugError]
) -> AsyncIterator[asyncio.Timeout]:
    """Cancel the block at `when_s` (time.monotonic(); None: never) and raise `error()` instead."""
    try:
        async with asyncio.timeout_at(when_s) as scope:
            yield scope
    except TimeoutError:
        if scope.expired():
            raise error() from None
        raise


@asynccontextmanager
async def client_present(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block when the client goes away and raise ClientGone instead.

    Only for after the body has been read: from then on `receive` waits for the disconnect.
    """
    try:
        async with asyncio.timeout(None) as scope:
            watcher = asyncio.create_task(_expire_on_disconnect(receive, scope))
            try:
                yield
            finally:
                watcher.cancel()
    except TimeoutError:
        if scope.expired():
            raise ClientGone from None
        raise


def reschedule(scope: asyncio.Timeout, when_s: float | None) -> None:
    """Move a scope's deadline (None: there is none), unless it has run out already."""
    if not scope.expired():
        scope.reschedule(when_s)


def expire(scope: asyncio.Timeout) -> None:
    """End a scope's block now, from outside."""
    reschedule(scope, asyncio.get_running_loop().time())


async def _expire_on_disconnect(receive: Receive, scope: asyncio.Timeout) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    expire(scope)
