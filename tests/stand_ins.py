"""The real activator in front of a scaler and a replica that a test directs: fast, and no model."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from glowplug.contracts import (
    DemandReport,
    FunctionState,
    FunctionStatus,
    Replica,
    ReplicaState,
    StartKind,
)
from glowplug.errors import NotFound
from scaler.registry import SqliteRegistry

SNAPSHOT = "sha256-" + "ab" * 32


@dataclass
class Scaler:
    """Seals everything at once, and says what a test tells it: the next of `states` at each look,
    the last one for ever."""

    registry: SqliteRegistry
    replica_url: str
    states: list[tuple[FunctionState, str | None]] = field(
        default_factory=lambda: [(FunctionState.READY, None)]
    )
    ready: bool = True  # whether there is a replica
    _sealing: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.registry.subscribe(
            lambda name: self._sealing.add(asyncio.create_task(self._seal(name)))
        )

    async def _seal(self, name: str) -> None:
        with contextlib.suppress(NotFound):
            function = await self.registry.get(name)
            if function.snapshot is None:
                revision = function.spec.revision
                await self.registry.set_sealed(name, revision, snapshot=SNAPSHOT, failure=None)

    def status(self, function: str) -> FunctionStatus:
        state, reason = self.states[0]
        if len(self.states) > 1:
            self.states.pop(0)
        return FunctionStatus(
            state=state,
            reason=reason,
            sealing_progress=0.5 if state is FunctionState.SEALING else None,
            snapshot=SNAPSHOT,
            desired=1,
            desired_reason="1 request in flight",
            replicas=self.replicas(function),
            in_flight=1,
            queued=2,
            last_start_ms={"map": 5.0, "tokenizer": 61.0},
        )

    def replicas(self, function: str) -> Sequence[Replica]:
        if not self.ready:
            return []
        return [
            Replica(
                id=f"{function}-1",
                function=function,
                revision="0123456789",
                state=ReplicaState.READY,
                url=self.replica_url,
                capacity=4,
                start_kind=StartKind.SNAPSHOT,
                ready_s=0.0,
            )
        ]

    def subscribe(self, changed: Callable[[str], None]) -> None:
        """Nothing ever changes by itself."""

    def report(self, demand: DemandReport) -> None:
        """Nobody asks."""


@dataclass
class Platform:
    """What a CLI test talks to, and what it has been told."""

    endpoint: str
    scaler: Scaler
    conversations: list[dict[str, Any]]  # bodies that the replica was sent
    answers: list[list[str]]  # texts, piece by piece, of the next answers; "!" breaks off

    def reset(self) -> None:
        """Forget what the last test told it."""
        self.scaler.states = [(FunctionState.READY, None)]
        self.scaler.ready = True
        self.conversations.clear()
        self.answers.clear()


def replica_app(conversations: list[dict[str, Any]], answers: list[list[str]]) -> Starlette:
    """Streams the next of the answers, and keeps what it was asked."""

    async def complete(request: Request) -> Response:
        conversations.append(await request.json())
        pieces = answers.pop(0) if answers else ["Hel", "lo"]

        async def events() -> Any:
            for piece in pieces:
                if piece == "!":
                    raise ConnectionAbortedError
                delta = {"index": 0, "delta": {"content": piece}, "finish_reason": None}
                yield f"data: {json.dumps({'choices': [delta]})}\n\n"
            end = {"index": 0, "delta": {}, "finish_reason": "stop"}
            usage = {"prompt_tokens": 9, "completion_tokens": len(pieces)}
            yield f"data: {json.dumps({'choices': [end]})}\n\n"
            yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n"
            yield "data: [DONE]\n\n"

        timing = {"server-timing": "queue;dur=1.00, prefill;dur=7.00"}
        return StreamingResponse(events(), media_type="text/event-stream", headers=timing)

    return Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    """Run an ASGI app on a real port in a thread; yields its URL."""
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, ws="none"))
    listener = socket.create_server(("127.0.0.1", 0))  # it listens before the server runs
    thread = threading.Thread(target=asyncio.run, args=(server.serve(sockets=[listener]),))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
