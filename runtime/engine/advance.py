"""A sequence goes on: its new tokens, their text, whether they end it, and what the client gets."""

from runtime.engine.request import Delta, FinishReason
from runtime.engine.sampling import Sampled
from runtime.engine.sequence import Sequence


def advance(sequence: Sequence, sampled: list[Sampled], *, max_context: int, now_s: float) -> Delta:
    """Add sampled tokens to their sequence, until one ends it, and say what that changes for
    the client."""
    stages_ms = first_token_stages(sequence, now_s) if sequence.generated == 0 else None
    text, tokens, logprobs = "", [], []
    params = sequence.request.params
    finish = None if params.max_tokens else FinishReason.LENGTH
    for one in sampled if params.max_tokens else ():
        sequence.append(one.token)
        tokens.append(one.token)
        if one.logprob:
            logprobs.append(one.logprob)
        piece, finish = _text_of(sequence, one.token, max_context=max_context)
        text += piece
        if finish:
            break
    return Delta(
        text=text,
        tokens=tuple(tokens),
        logprobs=tuple(logprobs),
        finish=finish,
        stages_ms=stages_ms,
        cached_tokens=sequence.cached if stages_ms else 0,
        prompt_logprobs=tuple(sequence.prompt_logprobs)
        if stages_ms and params.prompt_logprobs is not None
        else None,
    )


def _text_of(
    sequence: Sequence, token: int, *, max_context: int
) -> tuple[str, FinishReason | None]:
    """What the appended token adds to the text, and whether it ends the sequence."""
    params = sequence.request.params
    if token in sequence.ending:
        rest, _ = sequence.text.flush()
        return rest, FinishReason.STOP
    text, stopped = sequence.text.push(token)
    full = len(sequence.tokens) >= max_context
    if not stopped and (full or sequence.generated >= params.max_tokens):
        rest, stopped = sequence.text.flush()
        return text + rest, FinishReason.STOP if stopped else FinishReason.LENGTH
    return text, FinishReason.STOP if stopped else None


def first_token_stages(sequence: Sequence, now_s: float) -> dict[str, float]:
    """How long it waited and how long its prompt took, in ms."""
    admitted_s = sequence.admitted_s or sequence.arrived_s
    return {
        "queue": (admitted_s - sequence.arrived_s) * 1e3,
        "prefill": (now_s - admitted_s) * 1e3,
    }
