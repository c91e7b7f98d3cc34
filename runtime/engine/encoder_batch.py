"""The flat batch of one encoder step: whole texts one after another, shortest first, no padding."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Run:
    """`count` texts of one length, whose rows begin at `start`."""

    start: int
    count: int
    length: int

    @property
    def end(self) -> int:
        """The row after the last."""
        return self.start + self.count * self.length


@dataclass(frozen=True, slots=True)
class EncoderBatch:
    """T tokens of whole texts. Texts of one length share a run, and so a call of attention."""

    tokens: Tensor  # [T]
    positions: Tensor  # [T] in their text
    runs: tuple[Run, ...]


def build_encoder_batch(texts: Sequence[Sequence[int]], *, device: str) -> EncoderBatch:
    """Lay out texts that are sorted by length, each at least one token."""
    lengths = [len(text) for text in texts]
    runs: list[Run] = []
    for length, group in groupby(lengths):
        runs.append(Run(runs[-1].end if runs else 0, len(list(group)), length))
    tokens = np.concatenate([np.asarray(text, dtype=np.int64) for text in texts])
    positions = np.concatenate([np.arange(length, dtype=np.int64) for length in lengths])
    return EncoderBatch(
        tokens=torch.from_numpy(tokens).to(device),
        positions=torch.from_numpy(positions).to(device),
        runs=tuple(runs),
    )
