"""Reading a request: its body within limits, and then whether the client is still there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import CancelScope
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from glowplug.errors import BodyTimeout, PayloadTooLarge


async def read_body(scope: Scope, receive: Receive, *, max_bytes: int, timeout_s: float) -> bytes:
    """The whole body.

    Raises:
        PayloadTooLarge: the body, or the size its header announces, is over the limit.
        BodyTimeout: it did not come in time.
        ClientDisconnect: the client went away.
    """
    header = Headers(scope=scope).get("content-length", "")
    announced = int(header[:20]) if header.isdecimal() else 0
    received = 0
    chunks: list[bytes] = []
    try:
        async with asyncio.timeout(timeout_s):
            while max(announced, received) <= max_bytes:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                chunks.append(message.get("body", b""))
                received += len(chunks[-1])
                if not message.get("more_body", False) and received <= max_bytes:
                    return b"".join(chunks)
    except TimeoutError:
        raise BodyTimeout(f"the body did not arrive within {timeout_s:g} s") from None
    raise PayloadTooLarge(f"the body is over {max_bytes} bytes, the limit")


@asynccontextmanager
async def cancelled_on_disconnect(receive: Receive) -> AsyncIterator[None]:
    """Cancels the block when the client goes away, and swallows that cancellation.

    Only for after the body has been read: then `receive` waits for the disconnect.
    """
    with CancelScope() as scope:
        watcher = asyncio.create_task(_cancel_on_disconnect(receive, scope))
        try:
            yield
        finally:
            watcher.cancel()


async def _cancel_on_disconnect(receive: Receive, scope: CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
