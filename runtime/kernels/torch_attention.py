"""Attention over the paged KV cache with torch's fused kernel (`scaled_dot_product_attention`).

Decoding rows share one call: the heads of a group act as the queries of one key head, so keys are
never repeated, and shorter contexts are masked. Each prefill chunk is a call of its own.
"""

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from runtime.engine.batch import Batch, DecodeGroup, PrefillChunk


class AttentionMasks:
    """The masks of one step, made once and used by every layer with the same window.

    A mask is None where every key of the (gathered) context is seen, or the causal flag says it.
    """

    def __init__(self, batch: Batch, *, block_size: int, window: int | None) -> None:
        self.decode = _decode_mask(batch.decode, block_size, window) if batch.decode else None
        self.prefill = [prefill_mask(chunk, window) for chunk in batch.prefill]


def paged_attention(
    q: Tensor, layer_kv: tuple[Tensor, Tensor], batch: Batch, masks: AttentionMasks
) -> Tensor:
    """Attention of all T tokens; their own keys and values are already in the cache.

    q [T, heads, head_dim] → [T, heads, head_dim].
    """
    if not batch.prefill and batch.decode:
        return _attend_decode(q, layer_kv, batch.decode, masks.decode)
    out = torch.empty_like(q)
    if batch.decode:
        count = batch.decode.contexts.shape[0]
        out[:count] = _attend_decode(q[:count], layer_kv, batch.decode, masks.decode)
    for chunk, mask in zip(batch.prefill, masks.prefill, strict=True):
        rows = slice(chunk.start, chunk.end)
        out[rows] = attend_prefill(q[rows], layer_kv, chunk, mask)
    return out


def _attend_decode(
    q: Tensor, layer_kv: tuple[Tensor, Tensor], group: DecodeGroup, mask: Tensor | None
) -> Tensor:
    rows, heads, head_dim = q.shape
    keys, values = (
        part.index_select(0, group.blocks).view(rows, -1, *part.shape[2:]).transpose(1, 2)
        for part in layer_kv
    )
    grouped = q.view(rows, keys.shape[1], -1, head_dim)
    return F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask).view(
        rows, heads, head_dim
    )


def attend_prefill(
    q: Tensor, layer_kv: tuple[Tensor, Tensor], chunk: PrefillChunk, mask: Tensor | None
) -> Tensor:
    """Attention of one chunk's tokens [tokens, heads, head_dim], with `prefill_mask`'s mask."""
    keys, values = (
        part.index_select(0, chunk.blocks).flatten(0, 1)[None, : chunk.context].transpose(1, 2)
        for part in layer_kv
    )
    out: Tensor = partial(
        F.scaled_dot_product_attention,
        q.transpose(0, 1)[None],
        keys,
        values,
        enable_gqa=q.shape[1] != keys.shape[1],
    )(**({"is_causal": True} if mask is None else {"attn_mask": mask}))
    return out[0].transpose(0, 1)


def _decode_mask(group: DecodeGroup, block_size: int, window: int | None) -> Tensor:
    key = torch.arange(group.width * block_size, device=group.contexts.device)
    contexts = group.contexts[:, None]
    seen = key < contexts
    if window is not None:
        seen &= key >= contexts - window
    return seen[:, None, None, :]


def prefill_mask(chunk: PrefillChunk, window: int | None) -> Tensor | None:
    """Which keys each query of a chunk sees; None: plain causal from the first token on."""
    first = chunk.context - (chunk.end - chunk.start)
    if first == 0 and (window is None or chunk.context <= window):
        return None
    query = torch.arange(first, chunk.context, device=chunk.blocks.device)[:, None]
    key = torch.arange(chunk.context, device=chunk.blocks.device)
    seen = key <= query
    if window is not None:
        seen &= key > query - window
    return seen
