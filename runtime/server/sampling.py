"""From a request's fields to the engine's SamplingParams, within the model's limits."""

from glowplug.errors import ContextLengthExceeded, InvalidRequest
from runtime.engine.request import SamplingParams
from runtime.server.protocol import ChatCompletionRequest, CompletionRequest, GenerationFields
from snapshot.manifest import GenerationDefaults


def sampling_params(
    request: ChatCompletionRequest | CompletionRequest,
    *,
    max_tokens: int,
    defaults: GenerationDefaults,
    vocab_size: int,
) -> SamplingParams:
    """What the request says, then what the model's generation_config says, then OpenAI's defaults.

    Raises:
        InvalidRequest: a token id is not in the vocabulary, or min_tokens is over the limit.
    """
    if (request.min_tokens or 0) > max_tokens:
        raise InvalidRequest(
            f"min_tokens: {request.min_tokens} is over {max_tokens}, the most that are generated",
            param="min_tokens",
        )
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=_first(request.temperature, defaults.temperature, 1.0),
        top_p=_first(request.top_p, defaults.top_p, 1.0),
        top_k=max(0, int(_first(request.top_k, defaults.top_k, 0))),
        min_p=_first(request.min_p, 0.0),
        repetition_penalty=_first(request.repetition_penalty, 1.0),
        presence_penalty=_first(request.presence_penalty, 0.0),
        frequency_penalty=_first(request.frequency_penalty, 0.0),
        logit_bias=_logit_bias(request, vocab_size),
        seed=request.seed,
        stop=request.stop,
        stop_token_ids=_stop_token_ids(request, vocab_size),
        ignore_eos=bool(request.ignore_eos),
        min_tokens=request.min_tokens or 0,
        logprobs=request.alternatives,
        prompt_logprobs=request.prompt_alternatives,
    )


def output_budget(
    request: ChatCompletionRequest | CompletionRequest,
    *,
    prompt_tokens: int,
    max_context: int,
    context_note: str = "",
) -> int:
    """How many tokens to generate at most: the request's limit, or the endpoint's default.

    Raises:
        ContextLengthExceeded: prompt and output do not fit the context, in OpenAI's words.
    """
    room = max_context - prompt_tokens
    wanted = request.output_tokens
    if wanted is not None and wanted <= room:
        return wanted
    if wanted is None and room > 0:
        return room if isinstance(request, ChatCompletionRequest) else min(16, room)
    output = 1 if wanted is None else wanted
    total = f"{prompt_tokens + output} tokens"
    if isinstance(request, ChatCompletionRequest):
        param = "messages"
        message = (
            f"This model's maximum context length is {max_context} tokens. However, you requested "
            f"{total} ({prompt_tokens} in the messages, {output} in the completion). Please "
            "reduce the length of the messages or completion."
        )
    else:
        param = "prompt"
        message = (
            f"This model's maximum context length is {max_context} tokens, however you requested "
            f"{total} ({prompt_tokens} in your prompt; {output} for the completion). Please reduce "
            "your prompt; or completion length."
        )
    raise ContextLengthExceeded(message + context_note, param=param, code="context_length_exceeded")


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)


def _logit_bias(request: GenerationFields, vocab_size: int) -> dict[int, float]:
    biases = {}
    for key, bias in (request.logit_bias or {}).items():
        token = int(key) if key.isascii() and key.isdecimal() and len(key) <= 10 else -1
        if not 0 <= token < vocab_size:
            raise _not_a_token("logit_bias", vocab_size)
        biases[token] = bias
    return biases


def _stop_token_ids(request: GenerationFields, vocab_size: int) -> frozenset[int]:
    ids = frozenset(request.stop_token_ids or ())
    if not all(0 <= token < vocab_size for token in ids):
        raise _not_a_token("stop_token_ids", vocab_size)
    return ids


def _not_a_token(param: str, vocab_size: int) -> InvalidRequest:
    return InvalidRequest(
        f"{param}: takes token ids of the vocabulary, 0 to {vocab_size - 1}", param=param
    )
