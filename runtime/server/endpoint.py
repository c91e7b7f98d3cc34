"""What every POST of the replica shares: admit → read the body → handle it, until the client goes.

When the client goes away, at any point, what is being done for it is cancelled.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from runtime.server.admission import Admission
from runtime.server.body import cancelled_on_disconnect, read_body

_BODY_TIMEOUT_S = 60.0

Handle = Callable[[bytes, Scope, Receive, Send], Awaitable[None]]
"""Answers a request with this body; may raise GlowplugErrors before the response has started."""


@dataclass(frozen=True, kw_only=True)
class PostEndpoint:
    """An ASGI app for one route."""

    admission: Admission
    handle: Handle
    max_body_bytes: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.admission.admit():
            try:
                body = await read_body(
                    scope, receive, max_bytes=self.max_body_bytes, timeout_s=_BODY_TIMEOUT_S
                )
            except ClientDisconnect:
                return
            async with cancelled_on_disconnect(receive):
                await self.handle(body, scope, receive, send)
