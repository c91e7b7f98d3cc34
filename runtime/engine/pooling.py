"""From the hidden states of a step to embeddings: which rows are pooled, and the sums over steps.

An embedding is the sum of a sequence's pooled rows at unit length, so the mean needs no division.
The sum is float64: split into chunks or whole, it is the same but for the last bits of the hidden
states themselves.
"""

import numpy as np
import numpy.typing as npt
from torch import Tensor

from glowplug.spec import PoolingMethod
from runtime.engine.request import Embedding
from runtime.engine.scheduler import Plan

NOT_FINITE = "the model produced numbers that are not finite for this input"


def pooled_rows(pooling: PoolingMethod, *, start: int, end: int, length: int) -> range:
    """Which of the tokens start..end of a sequence of `length` tokens are pooled."""
    match pooling:
        case "mean":
            return range(start, end)
        case "last":
            return range(max(start, length - 1), end)
        case "cls":
            return range(start, min(end, 1))


def pool(plan: Plan, hidden: Tensor | None) -> dict[str, Embedding]:
    """Add a step's hidden states to the sums; the embeddings of the sequences that it completes.

    `hidden` [P, H]: of the batch's pooled rows, in order; None where it has none.
    """
    done: dict[str, Embedding] = {}
    row = 0
    for chunk in plan.chunks:
        sequence = chunk.sequence
        if sequence.request.pooling is None:
            continue
        length = len(sequence.tokens)
        count = len(
            pooled_rows(sequence.request.pooling, start=chunk.start, end=chunk.end, length=length)
        )
        if chunk.start == 0:  # also after a preemption
            sequence.pooled = None
        if hidden is not None and count:
            total = sum_rows(hidden[row : row + count])
            sequence.pooled = total if sequence.pooled is None else sequence.pooled + total
            row += count
        if chunk.end == length and sequence.pooled is not None:
            done[sequence.id] = unit_length(sequence.pooled)
    return done


def sum_rows(hidden: Tensor) -> npt.NDArray[np.float64]:
    """[P, H] → float64 [H]."""
    total: npt.NDArray[np.float64] = hidden.double().sum(0).cpu().numpy()
    return total


def unit_length(vector: npt.NDArray[np.floating]) -> Embedding:
    """The vector scaled to length 1, as float32; zeros stay zeros. Not finite where it is not."""
    exact = vector.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        length = float(np.sqrt(exact @ exact))
        return (exact / length if length else exact).astype(np.float32)


def is_finite(vector: Embedding) -> bool:
    """Whether it is made of numbers."""
    return bool(np.isfinite(vector).all())
