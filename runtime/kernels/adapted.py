"""LoRA adapters at work: rows of one batch with different adapters, or none, over one base model.

An adapter is known to the kernels by the weights that it changes: `adapted` puts a layer around a
batch's kernels that adds each adapter's low-rank product wherever one of its weights is used. So
a model's forward pass does not know of adapters, and a batch without any runs on the bare kernels.

    y = x Wᵀ + (x aᵀ) bᵀ      a, b: snapshot/adapter_layout.py

W may be quantised: only x, y and W's identity are needed. The sum is made in float32 before it is
rounded, and each product with the base model's own kernel: where that takes every row's sums in an
order of their own (CpuKernels), a row's result does not depend on what runs beside it. A row
without an adapter has to the last bit what it has in a batch without adapters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from runtime.engine.batch import AdapterRun
from runtime.kernels.interface import Kernels, Weight

# Elements. On the CPU torch spreads larger work over OpenMP's threads, which wait for each other:
# where others run too, that stops a step for milliseconds, a hundred times (see kernels/pool.h).
_PIECE = 16384


@dataclass(frozen=True, eq=False, kw_only=True)
class LoraAdapter:
    """Implements runtime.engine.request.Adapter: one adapter, bound to one model's weights."""

    digest: str
    size_bytes: int
    pairs: Mapping[int, tuple[Tensor, Tensor]]  # a [R, in] and b [out, R], by id() of the weight


def adapted(kernels: Kernels, runs: Sequence[AdapterRun]) -> Kernels:
    """The kernels for one batch whose rows have these adapters."""
    return cast(Kernels, _AdaptedKernels(kernels, runs)) if runs else kernels


class _AdaptedKernels:
    """Kernels whose linear layers add the adapters' products; all else is the wrapped kernels'."""

    def __init__(self, kernels: Kernels, runs: Sequence[AdapterRun]) -> None:
        self._kernels = kernels
        self._runs = [(run.start, run.end, cast(LoraAdapter, run.adapter).pairs) for run in runs]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernels, name)

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
        """As Kernels.linear: x [T, in] → dtype [T, out]."""
        outputs = next((p[id(weight)][1].shape[0] for *_, p in self._runs if id(weight) in p), None)
        if outputs is None:
            return self._kernels.linear(x, weight, bias)
        y = _zeros(x.shape[0], outputs, device=x.device)
        self.linear_add(y, x, weight, bias)
        return _rounded(y, x.dtype)

    def linear_add(self, residual: Tensor, x: Tensor, weight: Weight, bias: Tensor | None) -> None:
        """As Kernels.linear_add: residual (float32 [T, out]) += x · weight, and the adapters'."""
        run = self._kernels
        run.linear_add(residual, x, weight, bias)
        for start, end, pairs in self._runs:
            if pair := pairs.get(id(weight)):
                a, b = pair
                low = run.linear(x[start:end], a, None)
                run.linear_add(residual[start:end], low, b, None)


def _zeros(rows: int, outputs: int, *, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(rows, outputs, dtype=torch.float32, device=device)
    y = torch.empty(rows, outputs, dtype=torch.float32)
    for piece in torch.split(y.view(-1), _PIECE):
        piece.zero_()
    return y


def _rounded(y: Tensor, dtype: torch.dtype) -> Tensor:
    if y.device.type != "cpu" or y.dtype == dtype:
        return y.to(dtype)
    rounded = torch.empty_like(y, dtype=dtype)
    for to, piece in zip(
        torch.split(rounded.view(-1), _PIECE), torch.split(y.view(-1), _PIECE), strict=True
    ):
        to.copy_(piece)
    return rounded
