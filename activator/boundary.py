"""Boundary: the outermost layer. No request leaves it without an id, a clean answer and a log line.

Pure ASGI, because Starlette's BaseHTTPMiddleware hides disconnects. Every error below it becomes an
OpenAI-shaped answer here: ours as they are, Starlette's 404 and 405, and anything unexpected as a
500 whose traceback is in the log under the request's id.
"""

import asyncio
import json
import logging
import time

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from activator.auth import Keys
from activator.clocks import ClientGone
from activator.exchange import Exchange
from activator.headers import RawHeaders, encoded
from activator.metrics import FrontDoorMetrics
from glowplug.errors import (
    BodyTimeout,
    GlowplugError,
    MethodNotAllowed,
    NotFound,
    ReplicaLost,
    Unauthorized,
    Unavailable,
)

PROBES = frozenset(("/health", "/ready"))
NOT_COUNTED = PROBES | {"/metrics"}  # asked for by machines, all the time
CLIENT_GONE_STATUS = 499  # nginx's; only in the log, for nobody is there to read it

log = logging.getLogger(__name__)
access = logging.getLogger("activator.access")


class Boundary:
    """Wraps the router."""

    def __init__(self, app: ASGIApp, keys: Keys, metrics: FrontDoorMetrics) -> None:
        self._app = app
        self._keys = keys
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request."""
        exchange = Exchange(scope, receive, send, arrived_s=time.monotonic())
        scope["app"] = (
            self  # makes Starlette raise HTTPException instead of answering in plain text
        )
        try:
            if scope["path"] not in PROBES:
                exchange.identity = self._keys.identify(exchange.headers.get("authorization"))
            await self._app(scope, receive, exchange.send)
        except ClientGone:
            exchange.status = CLIENT_GONE_STATUS
        except GlowplugError as error:
            if isinstance(error, ReplicaLost):  # what exactly went wrong is for the operator
                lost = (exchange.request_id, exchange.replica, error.__cause__)
                log.warning("request %s lost its replica %s: %r", *lost)
            await exchange.fail(error, _headers_of(error))
        except HTTPException as error:
            await exchange.fail(_from_starlette(exchange, error), encoded(*_items(error)))
        except asyncio.CancelledError:  # the server has waited long enough for a graceful stop
            await exchange.fail(Unavailable("the server is stopping; try again", retry_after_s=1))
        except Exception:
            log.exception("request %s failed", exchange.request_id)
            await exchange.fail(
                GlowplugError(
                    f"internal error; the server's log has it under {exchange.request_id}",
                    code="internal_error",
                )
            )
        finally:
            counted = scope["path"] not in NOT_COUNTED
            if counted:
                self._metrics.observe(exchange)
            _write_log(exchange, logging.INFO if counted else logging.DEBUG)


def _headers_of(error: GlowplugError) -> RawHeaders:
    if isinstance(error, Unauthorized):
        return encoded(("www-authenticate", "Bearer"))
    if isinstance(error, BodyTimeout):  # the rest of the body is not waited for
        return encoded(("connection", "close"))
    return []


def _from_starlette(exchange: Exchange, error: HTTPException) -> GlowplugError:
    route = f"{exchange.method} {exchange.raw_path[:200]}"
    if error.status_code == MethodNotAllowed.status:
        return MethodNotAllowed(
            f"{route}: this path takes other methods", code="method_not_allowed"
        )
    return NotFound(f"{route}: there is no such route", code="unknown_url")


def _items(error: HTTPException) -> list[tuple[str, str]]:
    return [(name.lower(), value) for name, value in (error.headers or {}).items()]


def _write_log(exchange: Exchange, level: int) -> None:
    if not access.isEnabledFor(level):
        return
    if exchange.replica is not None and exchange.status is not None:
        exchange.laps.until("stream")
    stages = exchange.laps.stages | {
        f"start-{name}": ms for name, ms in exchange.start_stages_ms.items()
    }
    line = {
        "request_id": exchange.request_id,
        "method": exchange.method,
        "path": exchange.raw_path[:500],
        "status": exchange.status,
        "tenant": exchange.identity.tenant,
        "function": exchange.function,
        "replica": exchange.replica,
        "start_kind": exchange.start_kind,
        "error": exchange.error and (exchange.error.code or type(exchange.error).__name__),
        "total_ms": round((time.monotonic() - exchange.arrived_s) * 1e3, 2),
        "stages_ms": {name: round(ms, 2) for name, ms in stages.items()},
    }
    # JSON, so nothing that a client sends can forge a line.
    access.log(
        level, json.dumps({name: value for name, value in line.items() if value is not None})
    )
