"""The replica's ASGI application: OpenAI's API for one model, and two probes.

    POST /v1/chat/completions, /v1/completions     GET /v1/models, /v1/models/{model}
    POST /v1/embeddings                            (all that an encoder answers of these)
    POST /tokenize, /detokenize (and under /v1)
    GET /health (the process is fine)              GET /ready (it takes requests)
    GET /metrics (Prometheus' text)

The pod makes it once the engine is connected, and runs it under uvicorn on the same event loop as
the EngineClient. Middleware is plain ASGI: a disconnect reaches the endpoints as it happens.
"""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from llguidance import LLTokenizer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp
from tokenizers import Tokenizer

from glowplug.contracts import MAX_BODY_BYTES
from glowplug.metrics import CONTENT_TYPE, MetricsText
from glowplug.spec import Pooling
from runtime.server.adapters import AdapterCache
from runtime.server.admission import Admission
from runtime.server.embeddings import Embedder, refuse_generation
from runtime.server.endpoint import Handle, PostEndpoint
from runtime.server.engine_client import EngineClient
from runtime.server.errors import HANDLERS
from runtime.server.generate import generate
from runtime.server.grammar_compiler import GrammarCompiler
from runtime.server.prepare import Prepare, ServedModel, prepare_chat, prepare_completion
from runtime.server.prompt_encoder import PromptEncoder
from runtime.server.reasoning import reasoning_of
from runtime.server.token_text import TokenText
from runtime.server.tokenize import Answer, answer_json, detokenize, tokenize
from runtime.server.tool_format import tool_format
from snapshot.encoder_config import EncoderConfig
from snapshot.manifest import Manifest


def build_app(
    *,
    engine: EngineClient,
    tokenizer: Tokenizer,
    manifest: Manifest,
    model_names: Sequence[str],
    revision: str,
    admission: Admission,
    grammar_tokenizer: LLTokenizer | None = None,
    pooling: Pooling = "auto",
    adapters: AdapterCache | None = None,
    max_body_bytes: int | None = None,
    metrics: MetricsText = lambda: "",
    context_note: str = "",
) -> ASGIApp:
    """The application for a connected engine.

    `model_names` are what requests may call the model, the first one being its name.
    Without a `grammar_tokenizer` the first request for structured output makes it.
    `pooling` "auto" is what the manifest says.
    `max_body_bytes` None takes the front door's limit. `context_note` is added to what those are
    told whose prompt is too long.
    """
    max_context, vocab_size = engine.engine.max_context, engine.engine.vocab_size
    encoder = PromptEncoder(
        tokenizer=tokenizer,
        manifest=manifest,
        max_context=max_context,
        context_note=context_note,
        vocab_size=vocab_size,
    )
    grammars = GrammarCompiler(
        tokenizer,
        eos_token_ids=manifest.generation.eos_token_ids,
        vocab_size=vocab_size,
        prepared=grammar_tokenizer,
    )
    model = ServedModel(
        names=tuple(model_names),
        revision=revision,
        encoder=encoder,
        grammars=grammars,
        tool_format=tool_format(manifest.chat.template),
        reasoning=reasoning_of(manifest.chat.template, tokenizer),
        token_text=TokenText(tokenizer),
        defaults=manifest.generation,
        max_context=max_context,
        context_note=context_note,
        vocab_size=vocab_size,
        created=int(time.time()),
        adapters=adapters.names if adapters else (),
    )
    form = manifest.embeddings
    if pooling != "auto":
        form = form.model_copy(update={"pooling": pooling})
    embedder = Embedder(model=model, engine=engine, form=form, size=manifest.config.hidden_size)
    encodes_only = isinstance(manifest.config, EncoderConfig)
    if max_body_bytes is None:
        max_body_bytes = MAX_BODY_BYTES

    def post(handle: Handle, *paths: str) -> list[Route]:
        endpoint = PostEndpoint(admission=admission, handle=handle, max_body_bytes=max_body_bytes)
        return [Route(path, endpoint, methods=["POST"]) for path in paths]

    def generates(prepare: Prepare, path: str) -> list[Route]:
        if encodes_only:
            return post(refuse_generation, path)
        handle = partial(
            generate, engine=engine, prepare=partial(prepare, model), adapters=adapters
        )
        return post(handle, path)

    def answers(answer: Answer, *paths: str) -> list[Route]:
        return post(partial(answer_json, answer=answer, model=model), *paths)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        encoder.close()
        grammars.close()

    app = Starlette(
        routes=[
            *generates(prepare_chat, "/v1/chat/completions"),
            *generates(prepare_completion, "/v1/completions"),
            *post(embedder, "/v1/embeddings"),
            *answers(tokenize, "/tokenize", "/v1/tokenize"),
            *answers(detokenize, "/detokenize", "/v1/detokenize"),
            *_model_routes(model, tasks=["embed"] if encodes_only else ["generate", "embed"]),
            *_probe_routes(engine, admission),
            Route("/metrics", _Metrics(metrics).get),
        ],
        exception_handlers=HANDLERS,
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


def _model_routes(model: ServedModel, *, tasks: list[str]) -> list[Route]:
    def describe(name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": model.created,
            "owned_by": "glowplug",
            "max_model_len": model.max_context,  # as vLLM calls it
            "tasks": tasks,
        }

    async def list_models(_request: Request) -> JSONResponse:
        return JSONResponse({"object": "list", "data": [describe(name) for name in model.ids]})

    async def get_model(request: Request) -> JSONResponse:
        name = request.path_params["model"]
        model.adapter_of(name)
        return JSONResponse(describe(name))

    return [Route("/v1/models", list_models), Route("/v1/models/{model:path}", get_model)]


class _Metrics:
    """GET /metrics."""

    def __init__(self, text: MetricsText) -> None:
        self._text = text

    async def get(self, _request: Request) -> Response:
        return Response(self._text(), media_type=CONTENT_TYPE)


def _probe_routes(engine: EngineClient, admission: Admission) -> list[Route]:
    def state(problem: str | None) -> JSONResponse:
        if problem is not None:
            return JSONResponse({"status": "unavailable", "reason": problem}, status_code=503)
        return JSONResponse({"status": "ok"})

    async def health(_request: Request) -> JSONResponse:
        return state(engine.failure)

    async def ready(_request: Request) -> JSONResponse:
        return state(engine.failure or ("draining" if admission.draining else None))

    return [Route("/health", health), Route("/ready", ready)]
