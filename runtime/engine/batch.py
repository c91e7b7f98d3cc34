"""The flat batch of one engine step, as tensors: built from a Plan, read by the model.

Tokens of all scheduled sequences lie one after another: first one token for each decoding sequence,
then the prefill chunks. A sequence's keys and values are found through its block table.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runtime.engine.scheduler import Chunk, Plan


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """The sequences with one new token each: rows 0..len-1 of the batch."""

    blocks: Tensor  # [sequences × width] block numbers, each row padded with its first block
    width: int  # blocks per sequence
    contexts: Tensor  # [sequences] keys that the query sees, its own included
    run: tuple[int, int] | None  # one sequence in adjacent blocks: (first block, keys)


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
    decode_count = sum(chunk.is_decode for chunk in chunks)
    tokens = np.concatenate([_new_tokens(chunk) for chunk in chunks])
    positions = np.concatenate([np.arange(chunk.start, chunk.end) for chunk in chunks])
    slots = np.concatenate([_slots(chunk, block_size) for chunk in chunks])

    prefill, row = [], decode_count
    for chunk in chunks[decode_count:]:
        blocks = np.asarray(chunk.sequence.blocks[: -(-chunk.end // block_size)])
        prefill.append(
            PrefillChunk(row, row + chunk.count, chunk.end, _tensor(blocks, device=device))
        )
        row += chunk.count

    ends = np.cumsum([chunk.count for chunk in chunks]) - 1
    wanted = ends[[chunk.samples for chunk in chunks]]
    return Batch(
        tokens=_tensor(tokens, device=device),
        positions=_tensor(positions, device=device),
        slots=_tensor(slots, device=device),
        decode=_decode_group(chunks[:decode_count], block_size, device) if decode_count else None,
        prefill=tuple(prefill),
        logit_rows=None if len(wanted) == len(tokens) else _tensor(wanted, device=device),
    )


def _decode_group(chunks: Items[Chunk], block_size: int, device: str) -> DecodeGroup:
    counts = [-(-chunk.end // block_size) for chunk in chunks]
    width = max(counts)
    table = np.empty((len(chunks), width), dtype=np.int64)
    for row, chunk, count in zip(table, chunks, counts, strict=True):
        row[:count] = chunk.sequence.blocks[:count]
        row[count:] = row[0]
    contexts = np.asarray([chunk.end for chunk in chunks])
    adjacent = len(chunks) == 1 and bool((np.diff(table[0]) == 1).all())
    return DecodeGroup(
        blocks=_tensor(table.ravel(), device=device),
        width=width,
        contexts=_tensor(contexts, device=device),
        run=(int(table[0, 0]), chunks[0].end) if adjacent else None,
    )


def _new_tokens(chunk: Chunk) -> np.ndarray:
    return np.asarray(chunk.sequence.tokens[chunk.start : chunk.end])


def _slots(chunk: Chunk, block_size: int) -> np.ndarray:
    positions = np.arange(chunk.start, chunk.end)
    first = chunk.start // block_size
    blocks = np.asarray(chunk.sequence.blocks[first : -(-chunk.end // block_size)])
    return blocks[positions // block_size - first] * block_size + positions % block_size


def _tensor(values: np.ndarray, *, device: str) -> Tensor:
    return torch.from_numpy(values.astype(np.int64, copy=False)).to(device)
