"""The asyncio side of the engine: requests go in, a request's deltas come out as they are made.

Everything runs on the event loop except `emit` and `engine_failed`, which the engine thread calls.
Deltas cross over with one `call_soon_threadsafe` per engine step, however many requests the step
served, and a consumer that lags gets all that has come meanwhile at once.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from glowplug.errors import GlowplugError, ReplicaLost, Unavailable
from runtime.engine.request import Delta, FinishReason, GenerationRequest
from runtime.server.engine_port import EnginePort

_log = logging.getLogger(__name__)

Arrivals = list[tuple[int, Delta]]
"""(position of the sequence in its request, delta), oldest first."""


class Observer(Protocol):
    """Sees what becomes of every sequence, on the event loop; the replica's metrics are one."""

    def submitted(self, request: GenerationRequest) -> None:
        """The engine gets this sequence."""
        ...

    def step(self, batch: Sequence[tuple[str, Delta]], *, at_s: float) -> None:
        """One engine step's output, made at `at_s` (time.perf_counter())."""
        ...

    def dropped(self, request_id: str) -> None:
        """Nobody waits for this sequence any more."""
        ...


class EngineClient:
    """Routes the engine's output to the requests that wait for it.

    Made before the engine, whose callback `emit` is; then `connect`ed to it.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, observer: Observer | None = None
    ) -> None:
        self._loop = loop
        self._observer = observer
        self._engine: EnginePort | None = None
        self._failure: str | None = None
        self._routes: dict[str, tuple[Generation, int]] = {}

    def connect(self, engine: EnginePort) -> None:
        """Requests go to this engine from now on."""
        self._engine = engine

    @property
    def engine(self) -> EnginePort:
        """Raises Unavailable before `connect`."""
        if self._engine is None:
            raise Unavailable("the replica is starting; try again", retry_after_s=1)
        return self._engine

    @property
    def failure(self) -> str | None:
        """Why the engine is dead; None while it lives."""
        return self._failure

    def generate(self, requests: Sequence[GenerationRequest]) -> "Generation":
        """Start sequences that are answered together.

        Use it as a context manager, which aborts what has not finished when the block ends:

            with client.generate(requests) as generation:
                async for arrivals in generation: ...

        Raises Unavailable where there is no engine (any more).
        """
        if self._failure is not None:
            raise ReplicaLost(self._failure, retry_after_s=1)
        generation = Generation(self, self._loop)
        try:
            for position, request in enumerate(requests):
                self._routes[request.id] = (generation, position)
                generation.unfinished.add(request.id)
                self.engine.submit(request)
                if self._observer is not None:
                    self._observer.submitted(request)
        except BaseException:
            self.close(generation)
            raise
        return generation

    def close(self, generation: "Generation") -> None:
        """Abort what has not finished; its later output is dropped. Idempotent."""
        for request_id in generation.unfinished:
            self._routes.pop(request_id, None)
            if self._observer is not None:
                self._observer.dropped(request_id)
            if self._failure is None and self._engine is not None:
                self._engine.abort(request_id)
        generation.unfinished.clear()

    def emit(self, batch: list[tuple[str, Delta]]) -> None:
        """Take the output of one engine step. Any thread; never blocks."""
        self._call_on_loop(self._deliver, batch, time.perf_counter())

    def engine_failed(self, message: str) -> None:
        """The engine is dead: fail every request, now and later. Any thread; never blocks."""
        self._call_on_loop(self._fail_all, message)

    def _call_on_loop(self, callback: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop is closed: the process is ending, nobody waits
            _log.debug("the engine's output came after the event loop closed")

    def _deliver(self, batch: list[tuple[str, Delta]], at_s: float) -> None:
        if self._observer is not None:
            self._observer.step(batch, at_s=at_s)
        routes = self._routes
        for request_id, delta in batch:
            route = routes.get(request_id)
            if route is None:
                continue  # closed while the step ran
            generation, position = route
            if delta.finish is not None:
                del routes[request_id]
                generation.unfinished.discard(request_id)
            generation.push(position, delta)

    def _fail_all(self, message: str) -> None:
        self._failure = message
        routes, self._routes = self._routes, {}
        for generation, _ in routes.values():
            generation.unfinished.clear()
            generation.fail(ReplicaLost(message, retry_after_s=1))


class Generation:
    """The sequences of one HTTP request while they run; iterates over their arrivals.

    Ends when all sequences have finished. Raises the GlowplugError that ended one of them: the
    engine failed on it (500), the engine is dead or is being shut down (503).
    """

    __slots__ = ("_arrived", "_client", "_error", "_loop", "_waiter", "unfinished")

    def __init__(self, client: EngineClient, loop: asyncio.AbstractEventLoop) -> None:
        self.unfinished: set[str] = set()
        self._client = client
        self._loop = loop
        self._arrived: Arrivals = []
        self._error: GlowplugError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.close(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Arrivals:
        """Everything that has come since the last call; waits where that is nothing."""
        while not self._arrived:
            if self._error is not None:
                raise self._error
            if not self.unfinished:
                raise StopAsyncIteration
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        arrived, self._arrived = self._arrived, []
        return arrived

    def push(self, position: int, delta: Delta) -> None:
        """Hand over a delta (EngineClient calls this)."""
        if delta.finish is FinishReason.ERROR:
            self.fail(GlowplugError(delta.error or "the engine failed on this request"))
            return
        if delta.finish is FinishReason.ABORT:
            self.fail(Unavailable("the replica is shutting down; try again", retry_after_s=1))
            return
        self._arrived.append((position, delta))
        self._wake()

    def fail(self, error: GlowplugError) -> None:
        """End with this error after what has arrived (EngineClient calls this)."""
        if self._error is None:
            self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
