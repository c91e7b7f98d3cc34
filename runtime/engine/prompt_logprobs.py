"""Log probabilities of a prompt's own tokens, for those who ask how likely a text is.

Each place of the prompt needs its row of logits, [vocab] float32 each: a step computes no more of
them than `scored_tokens_limit`, whatever the prompt's length (the scheduler makes its chunks so
small), and works on them a few rows at a time. On the engine thread.
"""

import torch
from torch import Tensor

from runtime.engine.request import TokenLogprob
from runtime.engine.scheduler import Chunk, Plan

_LOGITS_BYTES = 64 * 2**20  # of the scored rows of one step
_ROWS = 16  # worked on at once: what they need for a moment is small and stays in the cache


def scored_tokens_limit(vocab_size: int) -> int:
    """Prompt tokens to score in one step."""
    return max(_ROWS, _LOGITS_BYTES // (4 * vocab_size))


def score_prompts(plan: Plan, logits: Tensor) -> Tensor:
    """Add to the sequences what the plan's scored rows say; returns the rows left to sample.

    `logits` are the batch's [R, vocab]: of each chunk first the scored rows, then those to sample.
    """
    if not any(chunk.sequence.unscored for chunk in plan.chunks):
        return logits
    kept, row = [], 0
    for chunk in plan.chunks:
        end = row + len(chunk.scored)
        _score(chunk, logits[row:end])
        row = end + (1 + len(chunk.drafts) if chunk.samples else 0)
        kept.append(logits[end:row])
    return torch.cat(kept)


def _score(chunk: Chunk, logits: Tensor) -> None:
    sequence = chunk.sequence
    alternatives = sequence.request.params.prompt_logprobs or 0
    prompt = sequence.request.prompt
    places = chunk.scored
    for first in range(0, len(places), _ROWS):
        tokens = [prompt[place + 1] for place in places[first : first + _ROWS]]
        logprobs = torch.log_softmax(logits[first : first + _ROWS], dim=-1)
        chosen = logprobs.gather(1, logprobs.new_tensor(tokens, dtype=torch.long).unsqueeze(1))
        values, likeliest = torch.topk(logprobs, min(alternatives, logprobs.shape[1]), dim=-1)
        for token, own, top, top_values in zip(
            tokens, chosen[:, 0].tolist(), likeliest.tolist(), values.tolist(), strict=True
        ):
            pairs = tuple(zip(top, top_values, strict=True))
            sequence.prompt_logprobs.append(TokenLogprob(token, own, pairs))
