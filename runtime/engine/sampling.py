"""Choosing each sequence's next token from its logits.

Randomness is counter-based: the uniform number for an output position is a hash of (seed, choice,
position). So a result does not depend on batch mates, on preemption, or on what ran before.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runtime.engine.grammar import GrammarError
from runtime.engine.request import SamplingParams, TokenLogprob
from runtime.engine.sequence import Sequence

_GREEDY_BELOW = 1e-5  # lower temperatures would overflow and are greedy anyway
_FIRST_CANDIDATES = 1024  # top-p rarely reaches further; a full sort is the fallback


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sequence's next token; `error` instead when there is none to choose."""

    token: int
    logprob: TokenLogprob | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """An output position to sample: after the sequence's tokens and `ahead` of them drafts."""

    sequence: Sequence
    ahead: tuple[int, ...] = ()


def sample(logits: Tensor, positions: Items[Position]) -> list[Sampled]:
    """One token for each row of float32 logits [R, vocab]; the logits are changed in place."""
    rows = logits.unbind(0)
    logprobs = [
        torch.log_softmax(row, dim=-1) if _wants_logprobs(position) else None
        for row, position in zip(rows, positions, strict=True)
    ]
    errors = []
    for row, position in zip(rows, positions, strict=True):
        _bias_and_penalise(row, position)
        errors.append(_forbid(row, position))
    best_values, best = (part.tolist() for part in logits.max(dim=-1))

    sampled = []
    for index, position in enumerate(positions):
        sequence, params = position.sequence, position.sequence.request.params
        error = errors[index]
        if error is None and not math.isfinite(best_values[index]):
            error = "the model produced numbers that are not finite for this prompt"
        if error is not None:
            sampled.append(Sampled(0, error=error))
            continue
        if params.temperature < _GREEDY_BELOW:
            token = best[index]
        else:
            at = sequence.generated + len(position.ahead)
            uniform = uniform_at(sequence.seed, sequence.request.choice, at)
            token = draw(rows[index], params, uniform)
        row_logprobs = logprobs[index]
        sampled.append(
            Sampled(
                token,
                None
                if row_logprobs is None
                else _token_logprob(row_logprobs, token, params.logprobs or 0),
            )
        )
    return sampled


def uniform_at(seed: int, choice: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing but the arguments."""
    key = f"{seed}/{choice}/{position}".encode()
    digest = hashlib.blake2b(key, digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) * 2.0**-53


def draw(logits: Tensor, params: SamplingParams, uniform: float) -> int:
    """A token of one row [vocab]: temperature, then top-k, top-p (of what top-k left) and min-p,
    then the inverse of the cumulative distribution at `uniform`."""
    probabilities = torch.softmax(logits / params.temperature, dim=-1)
    if params.top_k == 0 and params.top_p >= 1.0 and params.min_p <= 0.0:
        return _invert(probabilities, uniform)
    values, tokens = _candidates(probabilities, params)
    if params.top_k:
        values = values / values.sum()
    before = values.cumsum(0) - values
    keep = (before < params.top_p) & (values >= params.min_p * values[0])
    keep[0] = True  # a top_p of 0 still leaves the likeliest token
    return int(tokens[_invert(values * keep, uniform)])


def _candidates(probabilities: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Enough of the likeliest tokens for the limits to cut in, likeliest first."""
    vocab = probabilities.shape[0]
    if params.top_k:
        return torch.topk(probabilities, min(params.top_k, vocab))
    values, tokens = torch.topk(probabilities, min(_FIRST_CANDIDATES, vocab))
    if float(values.sum()) >= params.top_p or float(values[-1]) < params.min_p * float(values[0]):
        return values, tokens
    return torch.sort(probabilities, descending=True)


def _invert(weights: Tensor, uniform: float) -> int:
    """The index at which the cumulative sum of `weights` passes `uniform` of its total."""
    cumulative = weights.double().cumsum(0)
    target = cumulative.new_tensor(uniform) * cumulative[-1]
    index = int(torch.searchsorted(cumulative, target, right=True))
    return min(index, weights.shape[0] - 1)


def _wants_logprobs(position: Position) -> bool:
    return position.sequence.request.params.logprobs is not None


def _bias_and_penalise(row: Tensor, position: Position) -> None:
    sequence, params = position.sequence, position.sequence.request.params
    if params.logit_bias:
        ids = row.new_tensor(list(params.logit_bias), dtype=torch.long)
        row.index_add_(0, ids, row.new_tensor(list(params.logit_bias.values())))
    if params.repetition_penalty != 1.0:
        seen_ids = sorted({*sequence.tokens, *position.ahead})
        ids = row.new_tensor(seen_ids, dtype=torch.long)
        seen = row[ids]
        row[ids] = torch.where(
            seen > 0, seen / params.repetition_penalty, seen * params.repetition_penalty
        )
    if params.presence_penalty or params.frequency_penalty:
        counts = sequence.output_counts + Counter(position.ahead)
        ids = row.new_tensor(list(counts), dtype=torch.long)
        times = row.new_tensor(list(counts.values()))
        row.index_add_(0, ids, -(times * params.frequency_penalty + params.presence_penalty))


def _forbid(row: Tensor, position: Position) -> str | None:
    """Rule out what may not come at this position; or why nothing is left."""
    sequence = position.sequence
    if sequence.generated + len(position.ahead) < sequence.request.params.min_tokens:
        row[list(sequence.ending)] = -math.inf
    if sequence.grammar is None or not sequence.ending.isdisjoint(position.ahead):
        return None  # nothing comes after a draft that ends the sequence
    try:
        allowed = sequence.grammar.allowed(position.ahead)
    except GrammarError as error:
        return str(error)
    if allowed is None:  # an earlier position rejects its draft, so this one does not count
        return None
    bits = np.frombuffer(allowed.tokens, dtype=np.uint8)
    mask = np.unpackbits(bits, count=row.shape[0], bitorder="little").astype(np.bool_)
    mask[list(sequence.ending)] = allowed.complete
    if not mask.any():
        return "no token can continue the output: the grammar rules out all of them"
    row.masked_fill_(torch.from_numpy(~mask).to(row.device), -math.inf)
    return None


def _token_logprob(logprobs: Tensor, token: int, alternatives: int) -> TokenLogprob:
    values, tokens = torch.topk(logprobs, min(alternatives, logprobs.shape[0]))
    top = tuple(zip(tokens.tolist(), values.tolist(), strict=True))
    return TokenLogprob(token, float(logprobs[token]), top)
