"""The one way a generation takes, for chat and plain completions: the two differ in `prepare`.

    prepare a Job → lease its adapter → generate → stream the answer or send it whole

When it is cancelled, because the client went away, the engine drops the sequences.
"""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from glowplug.contracts import PRIORITY_HEADER, TENANT_HEADER, Priority
from glowplug.stages import Stopwatch
from runtime.server.adapters import AdapterCache
from runtime.server.answer import Job, stream_answer, whole_answer
from runtime.server.engine_client import EngineClient


async def generate(
    body: bytes,
    scope: Scope,
    _receive: Receive,
    send: Send,
    *,
    engine: EngineClient,
    prepare: Callable[[bytes], Awaitable[Job]],
    adapters: AdapterCache | None = None,
) -> None:
    """Answer one request. Raises GlowplugErrors only before the response has started."""
    job = await prepare(body)
    tenant, priority = _caller(Headers(scope=scope))
    requests = [
        replace(request, cache_salt=tenant, tenant=tenant, priority=priority)
        for request in job.requests
    ]
    answer = stream_answer if job.stream else whole_answer
    async with AsyncExitStack() as leases:
        if job.adapter is not None and adapters is not None:
            stopwatch = Stopwatch()
            adapter = await leases.enter_async_context(adapters.lease(job.adapter))
            stopwatch.lap("adapter")
            requests = [replace(request, adapter=adapter) for request in requests]
            job = replace(job, stages_ms={**job.stages_ms, **stopwatch.stages})
        with engine.generate(requests) as generation:
            await answer(job, generation, send)


def _caller(headers: Headers) -> tuple[str, Priority]:
    """The tenant and the class that the activator names; without one everybody is alike."""
    name = headers.get(PRIORITY_HEADER, "").upper()
    priority = Priority[name] if name in Priority.__members__ else Priority.NORMAL
    return headers.get(TENANT_HEADER, ""), priority
