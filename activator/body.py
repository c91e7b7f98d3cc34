"""Reading request bodies within limits, and finding the model that one names."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.datastructures import Headers
from starlette.types import Receive

from activator.clocks import ClientGone
from glowplug.errors import InvalidRequest, Overloaded, PayloadTooLarge


class BodyMemory:
    """Counts the bytes of all bodies that the activator has in memory, up to a maximum."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.held_bytes = 0

    @contextmanager
    def share(self) -> Iterator["BodyShare"]:
        """One request's share, given back when the block ends."""
        share = BodyShare(self)
        try:
            yield share
        finally:
            self.held_bytes -= share.held_bytes

    def take(self, size_bytes: int) -> None:
        """Raises Overloaded when it would be too much."""
        if self.held_bytes + size_bytes > self._max_bytes:
            raise Overloaded(
                "too many large requests are being served at this moment; try again",
                code="overloaded",
                retry_after_s=1,
            )
        self.held_bytes += size_bytes


class BodyShare:
    """What one request holds of a BodyMemory."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self.held_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Raises Overloaded when it would be too much."""
        self._memory.take(size_bytes)
        self.held_bytes += size_bytes


async def read_body(
    receive: Receive, *, declared_bytes: int, max_bytes: int, share: BodyShare
) -> bytes:
    """The whole body; the limits hold whatever its Content-Length says (0: none).

    Raises:
        PayloadTooLarge: it is, or says it is, over `max_bytes`.
        Overloaded: all bodies together are too much for this activator.
        ClientGone: the client hung up on the way.
    """
    body = bytearray()
    async for chunk in body_chunks(receive, declared_bytes=declared_bytes, max_bytes=max_bytes):
        share.take(len(chunk))
        body += chunk
    return bytes(body)


async def body_chunks(
    receive: Receive, *, declared_bytes: int, max_bytes: int
) -> AsyncIterator[bytes]:
    """The body as it comes; the limit holds whatever its Content-Length says (0: none).

    Raises:
        PayloadTooLarge: it is, or says it is, over `max_bytes`.
        ClientGone: the client hung up on the way.
    """
    check_size(declared_bytes, max_bytes)
    size_bytes = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        if chunk := message.get("body", b""):
            size_bytes += len(chunk)
            check_size(size_bytes, max_bytes)
            yield chunk
        more = message.get("more_body", False)


def declared_bytes(headers: Headers) -> int:
    """The Content-Length, 0 where there is none; read_body does not rely on it."""
    text = headers.get("content-length", "0")
    return int(text[:20]) if text.isdecimal() else 0


def check_size(size_bytes: int, max_bytes: int) -> None:
    """Raises PayloadTooLarge over the maximum."""
    if size_bytes > max_bytes:
        raise PayloadTooLarge(
            f"the request body is over {max_bytes} bytes, the most that is taken; send less",
            code="body_too_large",
        )


class _Routed(BaseModel):
    model_config = ConfigDict(strict=True)  # other fields are the replica's business

    model: str


def model_of(body: bytes) -> str:
    """The `model` that a JSON body names.

    Raises:
        InvalidRequest: the body is not a JSON object with a string `model`.
    """
    try:
        return _Routed.model_validate_json(body).model
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            reason = first["msg"].removeprefix("Invalid JSON: ")
            raise InvalidRequest(
                f"the body is not valid JSON: {reason}", code="invalid_json"
            ) from None
        raise InvalidRequest(
            "model: name the function to call, as a string; GET /v1/models lists them",
            param="model",
            code="model_required",
        ) from None
