"""GET /v1/functions/{name}/decisions: why a function has its replicas. Needs an admin key."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from activator.auth import require_admin
from activator.exchange import exchange_of
from activator.prewarms import represent_run
from glowplug.contracts import Function
from glowplug.errors import InvalidRequest, NotFound
from glowplug.explanation import (
    KEPT,
    Event,
    Explanation,
    Explanations,
    Inputs,
    not_decided,
)

DEFAULT_LIMIT = 20


class Decisions:
    """`existing` looks a function up and raises NotFound."""

    def __init__(
        self,
        explanations: Explanations,
        *,
        existing: Callable[[str], Awaitable[Function]],
    ) -> None:
        self._explanations = explanations
        self._existing = existing

    def routes(self) -> list[Route]:
        """What the router needs."""
        return [Route("/v1/functions/{name}/decisions", self.get, methods=["GET"])]

    async def get(self, request: Request) -> Response:
        """GET /v1/functions/{name}/decisions?limit=20."""
        require_admin(exchange_of(request.scope).identity)
        name = request.path_params["name"]
        limit = _limit(request.query_params.get("limit"))
        await self._existing(name)
        try:
            explanation = self._explanations.explain(name, limit=limit)
        except NotFound:  # just created: the scaler has not seen it yet
            explanation = not_decided(time.time())
        return JSONResponse(_represent(name, explanation))


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    if text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= KEPT:
        return int(text)
    raise InvalidRequest(f"limit: {text[:100]!r} is not a number from 1 to {KEPT}", param="limit")


def _represent(name: str, explanation: Explanation) -> dict[str, Any]:
    change, prewarm = explanation.next_change, explanation.next_prewarm
    return {
        "object": "list",
        "function": name,
        "now": {
            "at": _time(explanation.at_s),
            "desired": explanation.desired,
            "reason": explanation.reason,
            "verdict": explanation.verdict,
            "next_change": None
            if change is None
            else {
                "at": _time(change.at_s),
                "in_s": change.in_s,
                "desired": change.desired,
                "cause": change.cause.value,
                "reason": change.reason,
            },
            "next_prewarm": represent_run(prewarm) if prewarm else None,
            "inputs": _inputs(explanation.inputs),
        },
        "data": [_event(event) for event in explanation.events],
    }


def _event(event: Event) -> dict[str, Any]:
    return {
        "id": event.id,
        "at": _time(event.at_s),
        "event": event.kind.value,
        "cause": event.cause.value if event.cause else None,
        "before": event.before,
        "after": event.after,
        "replica": event.replica,
        "reason": event.reason,
        "inputs": _inputs(event.inputs),
    }


def _inputs(inputs: Inputs | None) -> dict[str, Any] | None:
    if inputs is None:
        return None
    floors = [
        {
            "replicas": floor.replicas,
            "until": None if floor.until_s is None else _time(floor.until_s),
            "reason": floor.reason,
        }
        for floor in inputs.floors
    ]
    return asdict(inputs) | {"floors": floors}


def _time(seconds: float) -> str:
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
