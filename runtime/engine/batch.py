"""The flat batch of one engine step, as tensors: built from a Plan, read by the model.

Tokens of all scheduled sequences lie one after another: first the decoding sequences (the last
token and its drafts), then the prefill chunks. A sequence's keys and values are found through its
block table.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runtime.engine.scheduler import Chunk, Plan


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows 0..D-1 of the batch, each a token with a context of its own.

    Drafts are rows too: by the time that attention reads the cache, the keys of all of them are in
    it, so a context one longer than that of the row before is all that causality asks for.
    """

    blocks: Tensor  # [D × width] block numbers, each row padded with its first block
    width: int  # blocks per row
    contexts: Tensor  # [D] keys that the query sees, its own included


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Adjacent new tokens of one sequence: rows start..end of the batch."""

    start: int
    end: int
    context: int  # keys that the last query sees
    blocks: Tensor  # block numbers that hold them


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's input. T tokens, of which R need logits."""

    tokens: Tensor  # [T] token ids
    positions: Tensor  # [T]
    slots: Tensor  # [T] where each token's key and value go: block × block_size + offset
    decode: DecodeGroup | None
    prefill: tuple[PrefillChunk, ...]
    logit_rows: Tensor | None  # [R] rows of T; None: all of them


def build_batch(plan: Plan, *, block_size: int, device: str) -> Batch:
    """Lay a plan out for the model."""
    chunks = plan.chunks
    decodes = [chunk for chunk in chunks if chunk.is_decode]
    tokens = np.concatenate([_new_tokens(chunk) for chunk in chunks])
    positions = np.concatenate([_positions(chunk) for chunk in chunks])
    slots = np.concatenate([_slots(chunk, block_size) for chunk in chunks])

    row = sum(chunk.count for chunk in decodes)
    wanted, prefill = [np.arange(row)], []
    for chunk in chunks[len(decodes) :]:
        blocks = np.asarray(chunk.sequence.blocks[: -(-chunk.end // block_size)])
        prefill.append(
            PrefillChunk(row, row + chunk.count, chunk.end, _tensor(blocks, device=device))
        )
        row += chunk.count
        if chunk.samples:
            wanted.append(np.asarray([row - 1]))
    rows = np.concatenate(wanted)
    return Batch(
        tokens=_tensor(tokens, device=device),
        positions=_tensor(positions, device=device),
        slots=_tensor(slots, device=device),
        decode=_decode_group(decodes, block_size, device) if decodes else None,
        prefill=tuple(prefill),
        logit_rows=None if len(rows) == len(tokens) else _tensor(rows, device=device),
    )


def _decode_group(chunks: Items[Chunk], block_size: int, device: str) -> DecodeGroup:
    contexts = np.concatenate([_positions(chunk) for chunk in chunks]) + 1
    counts = [-(-(chunk.end + len(chunk.drafts)) // block_size) for chunk in chunks]
    width = max(counts)
    table = np.empty((len(chunks), width), dtype=np.int64)
    for row, chunk, count in zip(table, chunks, counts, strict=True):
        row[:count] = chunk.sequence.blocks[:count]
        row[count:] = row[0]
    rows = np.repeat(table, [chunk.count for chunk in chunks], axis=0)
    return DecodeGroup(
        blocks=_tensor(rows.ravel(), device=device),
        width=width,
        contexts=_tensor(contexts, device=device),
    )


def _new_tokens(chunk: Chunk) -> np.ndarray:
    return np.asarray([*chunk.sequence.tokens[chunk.start : chunk.end], *chunk.drafts])


def _positions(chunk: Chunk) -> np.ndarray:
    return np.arange(chunk.start, chunk.start + chunk.count)


def _slots(chunk: Chunk, block_size: int) -> np.ndarray:
    positions = _positions(chunk)
    first = chunk.start // block_size
    blocks = np.asarray(chunk.sequence.blocks[first : positions[-1] // block_size + 1])
    slots: np.ndarray = blocks[positions // block_size - first] * block_size
    slots += positions % block_size
    return slots


def _tensor(values: np.ndarray, *, device: str) -> Tensor:
    return torch.from_numpy(values.astype(np.int64, copy=False)).to(device)
