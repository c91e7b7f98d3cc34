"""The flat batch of one engine step, as tensors: built from a Plan, read by the model.

Tokens of all scheduled sequences lie one after another: first the decoding sequences (the last
token and its drafts), then the prefill chunks. A sequence's keys and values are found through its
block table. Before attention reads the cache, the keys and values of all new tokens are in it; a
token sees those up to its own position, which is all that causality asks for, for drafts too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runtime.engine.pooling import pooled_rows
from runtime.engine.request import Adapter
from runtime.engine.scheduler import Chunk, Plan


@dataclass(frozen=True, slots=True)
class Span:
    """The rows start..end of one sequence's new tokens; the last one sees `context` keys."""

    start: int
    end: int
    context: int


@dataclass(slots=True)
class PooledRows:
    """The rows that become embeddings; the model leaves what they became."""

    rows: Tensor  # [P] rows of T
    hidden: Tensor | None = None  # [P, H], after the final norm


@dataclass(frozen=True, slots=True)
class AdapterRun:
    """The rows start..end, of one sequence or several, have this adapter."""

    start: int
    end: int
    adapter: Adapter


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's input: T tokens of S sequences, of which R need logits."""

    tokens: Tensor  # [T] token ids
    positions: Tensor  # [T]
    slots: Tensor  # [T] where each token's key and value go: block × block_size + offset
    tables: Tensor  # [S, width] block numbers, each row padded with its first block
    sequences: Tensor  # [T] which row of `tables` is the token's
    spans: tuple[Span, ...]  # S of them, in order
    logit_rows: Tensor | None  # [R] rows of T; None: all of them
    pooled: PooledRows | None = None  # of sequences to embed
    adapters: tuple[AdapterRun, ...] = ()  # rows that are in none of them have no adapter


@dataclass(frozen=True, slots=True)
class Rows:
    """New tokens of one sequence, from position `start` on, and the blocks that it holds."""

    blocks: list[int]
    start: int
    tokens: list[int]


def build_batch(plan: Plan, *, block_size: int, device: str) -> Batch:
    """Lay a plan out for the model."""
    chunks = plan.chunks
    logit_rows, pooled, row = [], [], 0
    for chunk in chunks:
        end = row + chunk.count
        if scored := chunk.scored:
            logit_rows.append(np.asarray(scored) - chunk.start + row)
        if chunk.samples:
            logit_rows.append(np.arange(end - 1 - len(chunk.drafts), end))
        elif (pooling := chunk.sequence.request.pooling) is not None:
            length = len(chunk.sequence.tokens)
            rows = pooled_rows(pooling, start=chunk.start, end=chunk.end, length=length)
            pooled += [row - chunk.start + position for position in rows]
        row = end
    return lay_out(
        [_rows(chunk) for chunk in chunks],
        logit_rows=np.concatenate(logit_rows) if logit_rows else np.empty(0),
        block_size=block_size,
        device=device,
        pooled=PooledRows(_tensor(np.asarray(pooled), device=device)) if pooled else None,
        adapters=_adapter_runs(chunks),
    )


def lay_out(
    rows: Sequence[Rows],
    *,
    logit_rows: np.ndarray,
    block_size: int,
    device: str,
    pooled: PooledRows | None = None,
    adapters: tuple[AdapterRun, ...] = (),
) -> Batch:
    """The batch of some sequences' new tokens. `logit_rows` [R], ascending, of its T rows."""
    spans, end = [], 0
    for each in rows:
        start, end = end, end + len(each.tokens)
        spans.append(Span(start, end, each.start + len(each.tokens)))
    columns = {
        "tokens": np.concatenate([np.asarray(each.tokens) for each in rows]),
        "positions": np.concatenate([_positions(each) for each in rows]),
        "slots": np.concatenate([_slots(each, block_size) for each in rows]),
        "tables": _tables(rows, spans, block_size),
        "sequences": np.repeat(np.arange(len(rows)), [len(each.tokens) for each in rows]),
    }
    return Batch(
        **{name: _tensor(values, device=device) for name, values in columns.items()},
        spans=tuple(spans),
        logit_rows=None if len(logit_rows) == end else _tensor(logit_rows, device=device),
        pooled=pooled,
        adapters=adapters,
    )


def _adapter_runs(chunks: Sequence[Chunk]) -> tuple[AdapterRun, ...]:
    runs: list[AdapterRun] = []
    row = 0
    for chunk in chunks:
        end = row + chunk.count
        if adapter := chunk.sequence.request.adapter:
            last = runs[-1] if runs else None
            if last and last.end == row and last.adapter is adapter:
                runs[-1] = AdapterRun(last.start, end, adapter)
            else:
                runs.append(AdapterRun(row, end, adapter))
        row = end
    return tuple(runs)


def _rows(chunk: Chunk) -> Rows:
    sequence = chunk.sequence
    tokens = [*sequence.tokens[chunk.start : chunk.end], *chunk.drafts]
    return Rows(sequence.blocks, chunk.start, tokens)


def _tables(rows: Sequence[Rows], spans: Sequence[Span], block_size: int) -> np.ndarray:
    counts = [-(-span.context // block_size) for span in spans]
    tables = np.empty((len(counts), max(counts)), dtype=np.int64)
    for table, each, count in zip(tables, rows, counts, strict=True):
        table[:count] = each.blocks[:count]
        table[count:] = table[0]
    return tables


def _positions(rows: Rows) -> np.ndarray:
    return np.arange(rows.start, rows.start + len(rows.tokens))


def _slots(rows: Rows, block_size: int) -> np.ndarray:
    positions = _positions(rows)
    first = rows.start // block_size
    blocks = np.asarray(rows.blocks[first : positions[-1] // block_size + 1])
    slots: np.ndarray = blocks[positions // block_size - first] * block_size
    slots += positions % block_size
    return slots


def _tensor(values: np.ndarray, *, device: str) -> Tensor:
    return torch.from_numpy(values.astype(np.int64, copy=False)).to(device)
