"""Endpoints of /v1/functions/{name}/history: traffic history as CSV, out and in. Needs an admin
key."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from activator.auth import require_admin
from activator.body import body_chunks, declared_bytes
from activator.clocks import deadline
from activator.exchange import exchange_of
from activator.limits import Limits
from glowplug.contracts import Function, History
from glowplug.errors import BodyTimeout, InvalidRequest
from glowplug.fields import parse_duration

MAX_HISTORY_BYTES = 8 * 2**20  # eight weeks of full rows


class HistoryFiles:
    """`existing` looks a function up and raises NotFound."""

    def __init__(
        self,
        history: History,
        *,
        existing: Callable[[str], Awaitable[Function]],
        limits: Limits,
    ) -> None:
        self._history = history
        self._existing = existing
        self._limits = limits
        self._one_import = asyncio.Lock()  # each holds its rows in memory

    def routes(self) -> list[Route]:
        """What the router needs."""
        return [
            Route("/v1/functions/{name}/history", self.get, methods=["GET"]),
            Route("/v1/functions/{name}/history", self.put, methods=["PUT"]),
        ]

    async def get(self, request: Request) -> Response:
        """GET /v1/functions/{name}/history?since=7d."""
        require_admin(exchange_of(request.scope).identity)
        name = request.path_params["name"]
        await self._existing(name)
        since_s = _since(request.query_params.get("since"))
        return StreamingResponse(
            self._history.export(name, since_s=since_s),
            media_type="text/csv",
            headers={"content-disposition": f'attachment; filename="{name}.csv"'},
        )

    async def put(self, request: Request) -> Response:
        """PUT /v1/functions/{name}/history."""
        exchange = exchange_of(request.scope)
        require_admin(exchange.identity)
        name = request.path_params["name"]
        await self._existing(name)
        async with (
            deadline(
                exchange.arrived_s + self._limits.body_timeout_s,
                lambda: BodyTimeout("the file did not arrive in time; send it faster"),
            ),
            self._one_import,
        ):
            imported = await self._history.replace(
                name,
                body_chunks(
                    request.receive,
                    declared_bytes=declared_bytes(request.headers),
                    max_bytes=MAX_HISTORY_BYTES,
                ),
            )
        return JSONResponse({"function": name, **asdict(imported)})


def _since(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(str(parse_duration(text[:100])))
    except ValueError as error:
        raise InvalidRequest(f"since: {error}", param="since") from None
