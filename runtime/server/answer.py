"""From the engine's deltas to an HTTP answer: streamed as it is made, or whole at the end.

The answer starts with the first output, so whatever fails before that is an HTTP error with its
own status. Chat and completions differ in their `AnswerShape` only. Runs on the event loop.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from starlette.types import Send

from glowplug.errors import GlowplugError
from glowplug.stages import to_server_timing
from runtime.engine.request import Delta, GenerationRequest, TokenLogprob
from runtime.server.engine_client import Generation
from runtime.server.errors import error_event, internal_error
from runtime.server.events import DONE

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies pass every event on at once
]
_LEAST_LOGPROB = -9999.0
_JSON_HEADERS = [(b"content-type", b"application/json")]


class Piece(NamedTuple):
    """Text of one choice, and the log probabilities of the tokens that made it."""

    text: str
    logprobs: Sequence[TokenLogprob]
    offset: int  # characters of the choice's text before this piece
    prompt: Sequence[TokenLogprob] | None = None  # of the prompt's own tokens; first piece only


class Usage(NamedTuple):
    """OpenAI's token counts; a prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int  # of the prompt tokens, found in the prefix cache

    def body(self) -> dict[str, Any]:
        """OpenAI's `usage` object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True, slots=True)
class FinishedChoice:
    """All of one choice."""

    pieces: Sequence[Piece]
    finish_reason: str

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(piece.text for piece in self.pieces)


class AnswerShape(Protocol):
    """How an endpoint writes its answers. The methods but `whole` return server-sent events."""

    def opening(self, index: int) -> bytes:
        """What comes before a choice's first piece; may be empty."""
        ...

    def piece(self, index: int, piece: Piece) -> bytes:
        """A piece of a choice's text."""
        ...

    def ending(self, index: int, finish_reason: str) -> bytes:
        """What comes after a choice's last piece."""
        ...

    def usage(self, usage: Usage) -> bytes:
        """The last event of a stream; empty where the request did not ask for it."""
        ...

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A validated request: what the engine gets, and how its answer is written."""

    requests: Sequence[GenerationRequest]  # in the order of their `index` in the answer
    prompt_tokens: int
    shape: AnswerShape
    stream: bool
    stages_ms: Mapping[str, float]  # of the preparation
    adapter: str | None = None  # the name of the one to answer with


class Choice:
    """What one choice has made so far. Log probabilities wait for the text of their tokens."""

    __slots__ = ("_held", "_shown_chars", "cached_tokens", "finish_reason", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.cached_tokens = 0  # of its prompt
        self.finish_reason = ""  # until it has finished
        self._shown_chars = 0
        self._held: list[TokenLogprob] = []

    def take(self, delta: Delta) -> Piece | None:
        """The piece that the delta completes; None while the engine holds text back."""
        self.tokens += len(delta.tokens)
        self.cached_tokens += delta.cached_tokens
        if delta.logprobs:
            self._held.extend(delta.logprobs)
        if delta.finish is not None:
            self.finish_reason = delta.finish.value
        complete = delta.text or (self._held and delta.finish)
        if not complete and delta.prompt_logprobs is None:
            return None
        logprobs: Sequence[TokenLogprob] = ()
        if self._held and complete:
            logprobs, self._held = self._held, []
        piece = Piece(delta.text, logprobs, self._shown_chars, delta.prompt_logprobs)
        self._shown_chars += len(delta.text)
        return piece


async def stream_answer(job: Job, generation: Generation, send: Send) -> None:
    """Send the answer as server-sent events, one ASGI message per engine step.

    Raises GlowplugErrors only before the response has started; later ones go in-band.
    """
    choices = [Choice() for _ in job.requests]
    shape = job.shape
    started = False
    try:
        async for arrivals in generation:
            events: list[bytes] = []
            if not started:
                await send(_start(_STREAM_HEADERS, _stages_ms(job, arrivals)))
                started = True
                events += map(shape.opening, range(len(choices)))
            for index, delta in arrivals:
                piece = choices[index].take(delta)
                if piece is not None:
                    events.append(shape.piece(index, piece))
                if delta.finish is not None:
                    events.append(shape.ending(index, delta.finish.value))
            if body := b"".join(events):
                await send({"type": "http.response.body", "body": body, "more_body": True})
        end = shape.usage(_usage(job, choices)) + DONE
        await send({"type": "http.response.body", "body": end})
    except Exception as error:
        if not started:
            raise
        shown = error if isinstance(error, GlowplugError) else internal_error()
        await send({"type": "http.response.body", "body": error_event(shown)})
        if shown is not error:
            raise  # a bug: the server logs it


async def whole_answer(job: Job, generation: Generation, send: Send) -> None:
    """Send the answer as one JSON body, when it is complete. Raises GlowplugErrors."""
    choices = [Choice() for _ in job.requests]
    pieces: list[list[Piece]] = [[] for _ in choices]
    stages_ms: Mapping[str, float] = {}
    async for arrivals in generation:
        stages_ms = stages_ms or _stages_ms(job, arrivals)
        for index, delta in arrivals:
            piece = choices[index].take(delta)
            if piece is not None:
                pieces[index].append(piece)
    finished = [
        FinishedChoice(made, choice.finish_reason)
        for made, choice in zip(pieces, choices, strict=True)
    ]
    body = json.dumps(job.shape.whole(finished, _usage(job, choices)), allow_nan=False).encode()
    length = (b"content-length", b"%d" % len(body))
    await send(_start([*_JSON_HEADERS, length], stages_ms))
    await send({"type": "http.response.body", "body": body})


def json_logprob(logprob: float) -> float:
    """A log probability as JSON has it: OpenAI's -9999.0 stands for minus infinity."""
    return logprob if logprob > _LEAST_LOGPROB else _LEAST_LOGPROB


def _start(headers: list[tuple[bytes, bytes]], stages_ms: Mapping[str, float]) -> dict[str, Any]:
    timing = (b"server-timing", to_server_timing(stages_ms).encode())
    return {"type": "http.response.start", "status": 200, "headers": [*headers, timing]}


def _stages_ms(job: Job, arrivals: Sequence[tuple[int, Delta]]) -> dict[str, float]:
    """The preparation's stages and those of the first sequence to get a token."""
    engine = next((delta.stages_ms for _, delta in arrivals if delta.stages_ms), {})
    return {**job.stages_ms, **engine}


def _usage(job: Job, choices: Sequence[Choice]) -> Usage:
    """A prompt's first choice says what of it was cached: the others may share what that made."""
    return Usage(
        prompt_tokens=job.prompt_tokens,
        completion_tokens=sum(choice.tokens for choice in choices),
        cached_tokens=sum(
            choice.cached_tokens
            for request, choice in zip(job.requests, choices, strict=True)
            if request.choice == 0
        ),
    )
