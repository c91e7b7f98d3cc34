"""Proxy: takes a request to a replica of its function and the answer back.

    check → read the body → get in line → handover (waits for a replica's headers) → relay

Every wait on the way ends at once when the client hangs up or a clock of the request runs out, and
whatever was begun is undone: the place in line, the connection to the replica, the demand.
"""

from functools import partial

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from activator.body import BodyMemory, BodyShare, declared_bytes, model_of, read_body
from activator.clocks import Timeouts, client_present, deadline, seconds_of, timeouts_of
from activator.exchange import Exchange, exchange_of
from activator.functions import Functions
from activator.handover import first_answer
from activator.headers import to_replica
from activator.lanes import Lanes
from activator.limits import Limits
from activator.relay import relay
from activator.routes import check_route
from activator.upstream import Upstream, UpstreamRequest
from glowplug.contracts import Function, Priority
from glowplug.errors import BodyTimeout, InvalidRequest, RequestTimeout


class Proxy:
    """ASGI endpoint of /f/{function}/v1/{path} and, by the body's `model`, of /v1/{path}."""

    def __init__(
        self, *, functions: Functions, lanes: Lanes, upstream: Upstream, limits: Limits
    ) -> None:
        self._functions = functions
        self._lanes = lanes
        self._upstream = upstream
        self._limits = limits
        self._memory = BodyMemory(limits.max_held_bytes)

    async def __call__(self, scope: Scope, receive: Receive, _send: Send) -> None:
        """One request, from its head to the end of its answer."""
        exchange = exchange_of(scope)
        path: str = scope["path_params"]["path"]
        name: str | None = scope["path_params"].get("function")
        check_route(exchange.method, path)
        with self._memory.share() as share:
            if name is not None:
                await self._refuse_early(name, exchange)
            body = await self._read(exchange, share)
            # Only now for good: while the body came in it may have been deleted or changed.
            if name is None:
                function = await self._functions.of_model(model_of(body))
            else:
                function = await self._functions.get(name)
            request = UpstreamRequest(
                method=exchange.method,
                path=f"/v1/{path}{_query(scope)}",
                headers=to_replica(
                    scope["headers"],
                    request_id=exchange.request_id,
                    tenant=exchange.identity.tenant,
                    priority=priority_of(exchange.headers),
                ),
                body=body,
            )
            exchange.function = function.spec.name
            timeouts = timeouts_of(function.spec, exchange.headers)
            ends_s = exchange.arrived_s + timeouts.request_s
            async with (
                client_present(receive),
                deadline(ends_s, partial(_request_timeout, timeouts)),
            ):
                await self._serve(exchange, function, request, timeouts)

    async def _refuse_early(self, name: str, exchange: Exchange) -> None:
        """Refuse what can be refused before the body is read."""
        function = await self._functions.get(name)
        exchange.function = function.spec.name
        timeouts_of(function.spec, exchange.headers)
        priority_of(exchange.headers)
        self._lanes.of(name).check_room(declared_bytes(exchange.headers), function.spec.queue)

    async def _read(self, exchange: Exchange, share: BodyShare) -> bytes:
        limit_s = min(
            self._limits.body_timeout_s, seconds_of(exchange.headers, "X-Request-Timeout")
        )
        exchange.laps.until("admission")
        async with deadline(exchange.arrived_s + limit_s, partial(_body_timeout, limit_s)):
            body = await read_body(
                exchange.receive,
                declared_bytes=declared_bytes(exchange.headers),
                max_bytes=self._limits.max_body_bytes,
                share=share,
            )
        exchange.laps.until("read")
        return body

    async def _serve(
        self, exchange: Exchange, function: Function, request: UpstreamRequest, timeouts: Timeouts
    ) -> None:
        lane = self._lanes.of(function.spec.name)
        ticket = lane.enter(
            tenant=exchange.identity.tenant,
            priority=priority_of(exchange.headers),
            size_bytes=len(request.body),
            limits=function.spec.queue,
        )
        exchange.laps.until("admission")
        try:
            async with first_answer(
                exchange,
                lane,
                ticket,
                upstream=self._upstream,
                request=request,
                timeouts=timeouts,
            ) as (target, response):
                await relay(exchange, ticket, target, response)
        finally:
            lane.leave(ticket)


def priority_of(headers: Headers) -> Priority:
    """The class that the client asks for.

    Raises:
        InvalidRequest: X-Priority is none of them.
    """
    text = headers.get("x-priority", "normal").upper()
    if text not in Priority.__members__:
        raise InvalidRequest(
            f"X-Priority: {text[:50]!r} is not a priority; use high, normal or low",
            param="X-Priority",
        )
    return Priority[text]


def _query(scope: Scope) -> str:
    query: str = scope["query_string"].decode("latin-1")
    if not query.isascii():
        raise InvalidRequest("the query string has characters that are not percent-encoded")
    return f"?{query}" if query else ""


def _body_timeout(limit_s: float) -> BodyTimeout:
    return BodyTimeout(
        f"the request body did not arrive within {limit_s:g} s; send it faster", code="body_timeout"
    )


def _request_timeout(timeouts: Timeouts) -> RequestTimeout:
    return RequestTimeout(
        f"the answer was not complete within {timeouts.request_s:g} s, the request timeout; ask "
        "for less output, or raise it",
        code="request_timeout",
    )
