"""From whatever went wrong to OpenAI's error shape.

The API's errors are GlowplugErrors; the two functions at the end make them of what pydantic and
Starlette raise.
"""

import json
from typing import Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from glowplug.errors import GlowplugError, InvalidRequest, MethodNotAllowed, NotFound
from runtime.server.request_fields import CONTRADICTION


def error_response(error: GlowplugError) -> Response:
    """The error as an HTTP response."""
    return Response(
        json.dumps(error.body()),
        status_code=error.status,
        headers=error.headers(),
        media_type="application/json",
    )


def invalid_request(error: ValidationError) -> InvalidRequest:
    """The first complaint about a request body, naming the field as OpenAI does: a[0].b."""
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        reason = first["msg"].removeprefix("Invalid JSON: ")
        return InvalidRequest(f"the body is not valid JSON: {reason}", code="invalid_json")
    location: tuple[int | str, ...] = first["loc"]
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == CONTRADICTION:
        location += (first["ctx"]["field"],)
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    param = param.removeprefix(".")[:200]
    if not param:
        return InvalidRequest("the body must be a JSON object")
    if first["type"] == "extra_forbidden":
        return InvalidRequest(
            f"unrecognized request argument supplied: {param}",
            param=param,
            code="unknown_parameter",
        )
    if first["type"] == "missing":
        message = "required"
    separator = "" if message.startswith("[") else ": "  # the complaint is about a list's entry
    return InvalidRequest(f"{param}{separator}{message}", param=param)


async def on_glowplug_error(_request: Request, error: GlowplugError) -> Response:
    """Starlette's handler of GlowplugErrors that are raised before the response starts."""
    return error_response(error)


async def on_http_error(request: Request, error: HTTPException) -> Response:
    """Starlette's handler of its own 404 and 405."""
    route = f"{request.method} {request.url.path[:200]}"
    if error.status_code == 405:
        response = error_response(MethodNotAllowed(f"{route}: this path takes another method"))
        response.headers.update(error.headers or {})
        return response
    return error_response(NotFound(f"{route}: there is no such route", code="unknown_url"))


async def on_bug(_request: Request, _error: Exception) -> Response:
    """Starlette's last handler: the server logs the traceback, the client gets a clean 500."""
    return error_response(internal_error())


def internal_error() -> GlowplugError:
    """What a client is told of a bug."""
    return GlowplugError("internal error; the server's log has the details", code="internal_error")


def error_event(error: GlowplugError) -> bytes:
    """The error as a server-sent event, for streams that have begun."""
    return b"data: " + json.dumps(error.body()).encode() + b"\n\n"


HANDLERS: dict[Any, Any] = {
    GlowplugError: on_glowplug_error,
    HTTPException: on_http_error,
    Exception: on_bug,
}
"""For Starlette's `exception_handlers`."""
