"""POST /v1/embeddings: parse → tokenise → embed, some inputs at a time → write the vectors.

A request's inputs enter the engine in groups: those of one request, however many, never stand
between another request and its turn by more than a group. The answer is written in pieces, with
other requests' turns between them. Runs on the event loop.
"""

import asyncio
import base64
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from glowplug.contracts import TENANT_HEADER
from glowplug.errors import ContextLengthExceeded, InvalidRequest
from glowplug.stages import Stopwatch, to_server_timing
from runtime.engine.pooling import unit_length
from runtime.engine.request import Embedding, GenerationRequest, SamplingParams
from runtime.server.embedding_protocol import MAX_TOTAL_TOKENS, EmbeddingRequest
from runtime.server.engine_client import EngineClient
from runtime.server.prepare import ServedModel, parse
from runtime.server.protocol import TokenIds
from snapshot.manifest import EmbeddingFormat

_GROUP = 32  # inputs that are in the engine at once
_PIECE = 16  # vectors that are written at once
_GENERATE_NOTHING = SamplingParams(max_tokens=0)


@dataclass(frozen=True, kw_only=True)
class Embedder:
    """The endpoint; a runtime.server.endpoint.Handle."""

    model: ServedModel
    engine: EngineClient
    form: EmbeddingFormat
    size: int  # of a vector

    async def __call__(self, body: bytes, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer one request.

        Raises:
            InvalidRequest, NotFound: what the request asks for cannot be had.
            ContextLengthExceeded: an input is longer than the model takes.
        """
        request = parse(EmbeddingRequest, body)
        self.model.check_name(request.model)
        if request.dimensions is not None and request.dimensions > self.size:
            raise InvalidRequest(
                f"dimensions: {request.dimensions} is over {self.size}, the size of this model's "
                "vectors; ask for fewer or leave it out",
                param="dimensions",
            )
        stopwatch = Stopwatch()
        inputs = await self.model.encoder.texts_to_embed(
            request.input, before=self.form.before, after=self.form.after
        )
        tokens = _count(inputs, max_context=self.model.max_context)
        stopwatch.lap("tokenize")
        tenant = Headers(scope=scope).get(TENANT_HEADER, "")
        vectors, engine_ms = await self._embed(inputs, tenant=tenant)
        vectors = [_shortened(vector, request.dimensions) for vector in vectors]
        headers = [
            (b"content-type", b"application/json"),
            (b"server-timing", to_server_timing({**stopwatch.stages, **engine_ms}).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in _body(request, vectors, tokens=tokens):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)  # sending alone lets nobody else run
        await send({"type": "http.response.body", "body": b""})

    async def _embed(
        self, inputs: Sequence[TokenIds], *, tenant: str
    ) -> tuple[list[Embedding], Mapping[str, float]]:
        """The vectors of the inputs, in order, and the engine's stages of the first one."""
        request_id = "embd-" + secrets.token_hex(12)
        requests = [
            GenerationRequest(
                id=f"{request_id}-{n}",
                prompt=prompt,
                params=_GENERATE_NOTHING,
                cache_salt=tenant,
                pooling=self.form.pooling,
            )
            for n, prompt in enumerate(inputs)
        ]
        vectors: dict[int, Embedding] = {}
        stages_ms: Mapping[str, float] = {}
        for start in range(0, len(requests), _GROUP):
            with self.engine.generate(requests[start : start + _GROUP]) as generation:
                async for arrivals in generation:
                    for index, delta in arrivals:
                        stages_ms = stages_ms or delta.stages_ms or {}
                        if delta.embedding is not None:
                            vectors[start + index] = delta.embedding
        return [vectors[n] for n in range(len(requests))], stages_ms


def _count(inputs: Sequence[TokenIds], *, max_context: int) -> int:
    """Tokens of all inputs, none of which is too long, nor all together."""
    for n, tokens in enumerate(inputs):
        if len(tokens) > max_context:
            where = f"input[{n}]" if len(inputs) > 1 else "your input"
            raise ContextLengthExceeded(
                f"This model's maximum context length is {max_context} tokens, however {where} "
                f"has {len(tokens)} tokens. Please shorten or split it.",
                param="input",
                code="context_length_exceeded",
            )
    total = sum(map(len, inputs))
    if total > MAX_TOTAL_TOKENS:
        raise InvalidRequest(
            f"input: {total} tokens are over {MAX_TOTAL_TOKENS}, the limit for all inputs of a "
            "request; send fewer inputs at a time",
            param="input",
            code="max_tokens_per_request",
        )
    return total


def _shortened(vector: Embedding, dimensions: int | None) -> Embedding:
    """The first `dimensions` of a vector, of unit length again."""
    if dimensions is None or dimensions == len(vector):
        return vector
    return unit_length(vector[:dimensions])


def _body(
    request: EmbeddingRequest, vectors: Sequence[Embedding], *, tokens: int
) -> Iterator[bytes]:
    """OpenAI's JSON, in pieces."""
    yield b'{"object": "list", "data": ['
    for start in range(0, len(vectors), _PIECE):
        entries = [
            json.dumps({"object": "embedding", "index": n, "embedding": _written(request, vector)})
            for n, vector in enumerate(vectors[start : start + _PIECE], start=start)
        ]
        yield (", " if start else "").encode() + ", ".join(entries).encode()
    end = json.dumps(
        {"model": request.model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
    )
    yield b"], " + end[1:].encode()


def _written(request: EmbeddingRequest, vector: Embedding) -> Any:
    """Numbers, or base64 of little-endian float32."""
    if request.encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()


async def refuse_generation(_body: bytes, _scope: Scope, _receive: Receive, _send: Send) -> None:
    """What the other endpoints of an encoder say. Raises InvalidRequest."""
    raise InvalidRequest(
        "this model only makes embeddings: call /v1/embeddings, or another model",
        param="model",
        code="model_not_supported",
    )
