"""Attention over the paged KV cache with torch's fused kernel (`scaled_dot_product_attention`).

Sequences with one new token share one call: the heads of a group act as the queries of one key
head, so keys are never repeated, and shorter contexts are masked. Each longer span is a call of its
own. Torch's kernel cannot soft-cap scores; where that is asked, the same sums are written out.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from runtime.engine.batch import Batch

Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # of queries, keys, values, mask


class AttentionPlan:
    """What all layers with one window share in a step: which rows go together, and the masks."""

    def __init__(self, batch: Batch, *, block_size: int, window: int | None) -> None:
        lengths = [span.end - span.start for span in batch.spans]
        self.singles = next((n for n, length in enumerate(lengths) if length > 1), len(lengths))
        self.single_mask = _mask(
            batch.positions[: self.singles, None],
            keys=batch.tables.shape[1] * block_size,
            window=window,
        )[:, None, None, :]
        self.longer = [
            (n, span, _mask(batch.positions[span.start : span.end, None], span.context, window))
            for n, span in enumerate(batch.spans[self.singles :], start=self.singles)
        ]


def paged_attention(
    q: Tensor,
    layer_kv: tuple[Tensor, Tensor],
    batch: Batch,
    plan: AttentionPlan,
    *,
    scale: float | None,
    cap: float | None,
) -> Tensor:
    """Attention of all T tokens; their own keys and values are already in the cache.

    q [T, heads, head_dim] → [T, heads, head_dim].
    """
    out = torch.empty_like(q)
    attend = partial(_attend, scale=scale, cap=cap)
    if plan.singles:
        tables = batch.tables[: plan.singles].flatten()
        out[: plan.singles] = _attend_singles(
            q[: plan.singles], _gather(layer_kv, tables), plan.single_mask, attend
        )
    for n, span, mask in plan.longer:
        keys_and_values = [x[:, :, : span.context] for x in _gather(layer_kv, batch.tables[n])]
        out[span.start : span.end] = _attend_span(
            q[span.start : span.end], keys_and_values, mask, attend
        )
    return out


def _gather(layer_kv: tuple[Tensor, Tensor], blocks: Tensor) -> list[Tensor]:
    """Keys and values of these blocks as [1, kv_heads, keys, head_dim]."""
    return [part.index_select(0, blocks).flatten(0, 1)[None].transpose(1, 2) for part in layer_kv]


def _attend_singles(
    q: Tensor, keys_and_values: Sequence[Tensor], mask: Tensor, attend: Attend
) -> Tensor:
    rows, heads, head_dim = q.shape
    kv_heads = keys_and_values[0].shape[1]
    keys, values = (x.view(kv_heads, rows, -1, head_dim).transpose(0, 1) for x in keys_and_values)
    grouped = q.view(rows, kv_heads, -1, head_dim)
    return attend(grouped, keys, values, mask).reshape(rows, heads, head_dim)


def _attend_span(
    q: Tensor, keys_and_values: Sequence[Tensor], mask: Tensor, attend: Attend
) -> Tensor:
    keys, values = keys_and_values
    return attend(q.transpose(0, 1)[None], keys, values, mask)[0].transpose(0, 1)


def _attend(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, *, scale: float | None, cap: float | None
) -> Tensor:
    """[batch, heads, queries, dim] over [batch, kv_heads, keys, dim]; mask: what a query sees."""
    if cap is None:
        return F.scaled_dot_product_attention(
            q, keys, values, attn_mask=mask, scale=scale, enable_gqa=q.shape[1] != keys.shape[1]
        )
    group = q.shape[1] // keys.shape[1]
    if group > 1:
        keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = (q @ keys.transpose(-1, -2)).float() * scale
    scores = ((scores / cap).tanh() * cap).masked_fill(~mask, -torch.inf)
    return scores.softmax(-1).to(values.dtype) @ values


def _mask(positions: Tensor, keys: int, window: int | None) -> Tensor:
    """[queries, keys]: whether the query at a position ([queries, 1]) sees the key."""
    key = torch.arange(keys, device=positions.device)
    seen = key <= positions
    if window is not None:
        seen &= key > positions - window
    return seen
