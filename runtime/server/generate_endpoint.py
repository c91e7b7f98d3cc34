"""The one way a request takes, for chat and plain completions: the two differ in `prepare`.

    admit → read the body → prepare a Job → generate → stream the answer or send it whole

When the client goes away, at any point, the rest is cancelled and the engine drops the sequences.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from glowplug.contracts import TENANT_HEADER
from runtime.server.admission import Admission
from runtime.server.answer import Job, stream_answer, whole_answer
from runtime.server.body import cancelled_on_disconnect, read_body
from runtime.server.engine_client import EngineClient

_BODY_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class GenerateEndpoint:
    """An ASGI app for one route. Raises GlowplugErrors only before the response has started."""

    engine: EngineClient
    admission: Admission
    prepare: Callable[[bytes], Awaitable[Job]]
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
                job = await self.prepare(body)
                tenant = Headers(scope=scope).get(TENANT_HEADER, "")
                requests = [replace(request, cache_salt=tenant) for request in job.requests]
                answer = stream_answer if job.stream else whole_answer
                with self.engine.generate(requests) as generation:
                    await answer(job, generation, send)
