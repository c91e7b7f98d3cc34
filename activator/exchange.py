"""Exchange: one HTTP request and what becomes of it.

The boundary makes one for each request and every layer below finds it in the scope. It adds
`X-Request-Id` to whatever is answered, and can turn an error into an answer at any point of it.
"""

import asyncio
import json
import re
import uuid
from typing import cast

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from activator.auth import ANYONE, Identity
from activator.headers import RawHeaders, encoded
from activator.timing import Laps
from glowplug.errors import GlowplugError
from glowplug.stages import to_server_timing

LAST_WORDS_S = 5.0  # for an error event to a client that has stopped reading
_KEY = "glowplug.exchange"
_SANE_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Exchange:
    """See the module's text."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, arrived_s: float) -> None:
        self.receive = receive
        self.pass_on = send  # for body chunks: what it sends is not looked at
        self.headers = Headers(scope=scope)
        self.method: str = scope["method"]
        self.raw_path: str = scope.get("raw_path", b"").decode("latin-1") or scope["path"]
        self.arrived_s = arrived_s  # time.monotonic()
        self.laps = Laps(arrived_s)
        self.identity: Identity = ANYONE
        asked_id = self.headers.get("x-request-id", "")
        self.request_id = asked_id if _SANE_ID.fullmatch(asked_id) else uuid.uuid4().hex
        # For the log and for headers of errors, as far as known:
        self.function: str | None = None
        self.replica: str | None = None
        self.start_kind: str | None = None
        self.start_stages_ms: dict[str, float] = {}
        self.status: int | None = None
        self.error: GlowplugError | None = None
        self._events = False  # the body is a stream of server-sent events, of unknown length
        self._complete = False
        scope[_KEY] = self

    async def send(self, message: Message) -> None:
        """ASGI send for all messages but those of `pass_on`."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers: RawHeaders = list(message.get("headers", ()))
            by_name = dict(headers)
            self._events = (
                by_name.get(b"content-type", b"").startswith(b"text/event-stream")
                and b"content-length" not in by_name
            )
            headers += encoded(("x-request-id", self.request_id))
            message = {**message, "headers": headers}
        elif not message.get("more_body", False):
            self._complete = True
        await self.pass_on(message)

    async def fail(self, error: GlowplugError, headers: RawHeaders | None = None) -> None:
        """Answer with the error; after the response has begun, say it in-band or break it off.

        Returning without an end of the body makes the server cut the connection: the client sees
        an incomplete answer, never a short one that looks whole.
        """
        self.error = error
        if self.status is None:
            await self._answer(error, headers or [])
        elif self._events and not self._complete:
            try:
                async with asyncio.timeout(LAST_WORDS_S):
                    await self.send({"type": "http.response.body", "body": _event(error)})
            except TimeoutError:
                pass

    async def _answer(self, error: GlowplugError, headers: RawHeaders) -> None:
        body = json.dumps(error.body()).encode()
        headers = [
            *headers,
            *encoded(
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                *error.headers().items(),
            ),
        ]
        if self.function is not None:
            headers += encoded(
                ("x-function", self.function),
                ("server-timing", to_server_timing(self.laps.stages)),
            )
        await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


def exchange_of(scope: Scope) -> Exchange:
    """The exchange that the boundary put into the scope."""
    return cast(Exchange, scope[_KEY])


def _event(error: GlowplugError) -> bytes:
    # The blank line ends an event that broke off in the middle; between events it means nothing.
    # The HTTP status has gone out as 200, so the one that it should have been stands in the event.
    body = {"error": {**error.body()["error"], "status": error.status}}
    return b"\n\ndata: " + json.dumps(body).encode() + b"\n\n"
