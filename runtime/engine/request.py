"""What goes into the engine and what comes out; the server and the engine share these.

Everything here is validated before it reaches the engine: the engine trusts it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from glowplug.contracts import Priority
from glowplug.spec import PoolingMethod
from runtime.engine.grammar import Grammar

Embedding = npt.NDArray[np.float32]  # [H], of unit length


class FinishReason(StrEnum):
    """Why a sequence ended; the first two are OpenAI's."""

    STOP = "stop"  # end-of-sequence token, stop token or stop string
    LENGTH = "length"  # max_tokens or the context is full
    ABORT = "abort"  # the client went away
    ERROR = "error"  # the engine failed on this request; see Delta.error


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to choose tokens. Defaults change nothing.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1.0 and `min_p` 0.0 are off. Penalties: presence
    and frequency as OpenAI's (over generated tokens), repetition as in CTRL (arXiv 1909.05858; over
    prompt and generated tokens). `logprobs` is the number of alternatives to report beside the
    chosen token (0: only the chosen one; None: nothing), from the distribution before temperature
    and truncation; `prompt_logprobs` is the same for the prompt's own tokens. A `max_tokens` of 0
    runs the prompt and generates nothing.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    seed: int | None = None  # None: random
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    min_tokens: int = 0  # no end-of-sequence or stop token before that many
    logprobs: int | None = None
    prompt_logprobs: int | None = None


class Adapter(Protocol):
    """A LoRA adapter in memory (runtime/models/lora.py); here only who it is matters."""

    @property
    def digest(self) -> str:
        """Names its contents: what is computed with another digest is never shared."""
        ...


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One sequence to generate, or, with `pooling`, to embed.

    `choice` tells the n choices of one request apart (seeding). Sequences of different `cache_salt`
    never share cached keys and values. `tenant` and `priority` say who waits for whom (waiting.py).
    The server sets these three, never the caller. With a `grammar` the
    output follows it and ends, by an end-of-sequence or stop token, only where it is complete; it
    goes with neither `ignore_eos` nor `min_tokens`. A request to embed generates nothing
    (`max_tokens` 0): its only delta has the embedding.
    """

    id: str
    prompt: tuple[int, ...]  # token ids, at least one
    params: SamplingParams
    choice: int = 0
    cache_salt: str = ""
    tenant: str = ""
    priority: Priority = Priority.NORMAL
    grammar: Grammar | None = None
    pooling: PoolingMethod | None = None
    adapter: Adapter | None = None  # stays in memory as long as the request does


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural-log probability of one chosen token and of the likeliest alternatives."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # (token, logprob), likeliest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What one engine step adds to a request.

    `text` holds whole characters only and never a part of a stop string; it may be empty while the
    engine holds text back. `tokens` counts every generated token, shown or not. The last delta of a
    request has `finish`.
    """

    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: FinishReason | None = None
    error: str | None = None  # for the user, with FinishReason.ERROR
    stages_ms: Mapping[str, float] | None = None  # with the first token: queue, prefill
    cached_tokens: int = 0  # with the first token: prompt tokens found in the prefix cache
    embedding: Embedding | None = field(default=None, compare=False)  # with the last delta
    # With the first token, where asked for: of the prompt's second token on
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
