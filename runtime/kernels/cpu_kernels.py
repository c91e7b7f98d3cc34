"""Kernels for bfloat16 on x86 processors with AVX-512 BF16: cpu.cpp, called with raw pointers.

torch's library takes over where it is as fast or where ours does not reach: linear layers over many
rows, and prefill attention.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from runtime.engine.batch import Batch, DecodeGroup
from runtime.kernels.interface import HeadShape
from runtime.kernels.torch_attention import attend_prefill, prefill_mask

try:
    from runtime.kernels import _cpu
except ImportError:  # not built, or no OpenMP runtime of torch's to bind to
    _cpu = None  # type: ignore[assignment]

_STORE_BF16, _STORE_F32, _ADD_F32 = range(3)  # enum Output in cpu.cpp
_MAX_ROWS = 16  # above this, oneDNN's matrix multiplication is as fast


def cpu_kernels_supported(*, head_dim: int) -> bool:
    """Whether the extension was built and this processor and head size suit it."""
    return _cpu is not None and _cpu.supported() and head_dim % 32 == 0 and head_dim <= 256


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """One step's window and the masks of its prefill chunks."""

    window: int  # 0: none
    prefill_masks: tuple[Tensor | None, ...]


class CpuKernels:
    """Implements runtime.kernels.interface.Kernels."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = x.shape[0]
        if rows > _MAX_ROWS:
            return F.linear(x, weight, bias)
        y = torch.empty(rows, weight.shape[0], dtype=torch.bfloat16)
        _linear(x, weight, bias, y, _STORE_BF16)
        return y

    def linear_add(self, residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        if x.shape[0] > _MAX_ROWS:
            residual += F.linear(x, weight, bias)
        else:
            _linear(x, weight, bias, residual, _ADD_F32)

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        rows = x.shape[0]
        if rows > _MAX_ROWS:
            return F.linear(x, weight).float()
        y = torch.empty(rows, weight.shape[0])
        _linear(x, weight, None, y, _STORE_F32)
        return y

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y = torch.empty(x.shape, dtype=torch.bfloat16)
        _cpu.rms_norm(x.data_ptr(), weight.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1], eps)
        return y

    def rotate(
        self,
        qkv: Tensor,
        shape: HeadShape,
        *,
        rope: Tensor,
        batch: Batch,
        layer_kv: tuple[Tensor, Tensor],
        norms: tuple[Tensor, Tensor] | None,
        eps: float,
    ) -> Tensor:
        tokens = qkv.shape[0]
        q = torch.empty(tokens, shape.heads, shape.dim, dtype=torch.bfloat16)
        _cpu.rotate(
            qkv.data_ptr(),
            rope.data_ptr(),
            batch.positions.data_ptr(),
            batch.slots.data_ptr(),
            norms[0].data_ptr() if norms else 0,
            norms[1].data_ptr() if norms else 0,
            q.data_ptr(),
            layer_kv[0].data_ptr(),
            layer_kv[1].data_ptr(),
            tokens,
            shape.heads,
            shape.kv_heads,
            shape.dim,
            eps,
        )
        return q

    def plan_attention(self, batch: Batch, *, block_size: int, window: int | None) -> AttentionPlan:
        masks = tuple(prefill_mask(chunk, window) for chunk in batch.prefill)
        return AttentionPlan(window or 0, masks)

    def attention(
        self, q: Tensor, layer_kv: tuple[Tensor, Tensor], batch: Batch, plan: AttentionPlan
    ) -> Tensor:
        out = torch.empty_like(q)
        if batch.decode:
            _attend_decode(q, layer_kv, batch.decode, out, plan.window)
        for chunk, mask in zip(batch.prefill, plan.prefill_masks, strict=True):
            rows = slice(chunk.start, chunk.end)
            out[rows] = attend_prefill(q[rows], layer_kv, chunk, mask)
        return out.view(q.shape[0], -1)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        rows, width = gate_up.shape
        y = torch.empty(rows, width // 2, dtype=torch.bfloat16)
        _cpu.silu_mul(gate_up.data_ptr(), y.data_ptr(), rows, width // 2)
        return y


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, output: int) -> None:
    _cpu.linear(
        x.data_ptr(),
        weight.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        y.data_ptr(),
        x.shape[0],
        weight.shape[0],
        weight.shape[1],
        output,
    )


def _attend_decode(
    q: Tensor, layer_kv: tuple[Tensor, Tensor], group: DecodeGroup, out: Tensor, window: int
) -> None:
    keys, values = layer_kv
    _, block_size, kv_heads, dim = keys.shape
    _cpu.attention(
        q.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        group.blocks.data_ptr(),
        group.contexts.data_ptr(),
        out.data_ptr(),
        group.contexts.shape[0],
        q.shape[1],
        kv_heads,
        dim,
        block_size,
        group.width,
        window,
        dim**-0.5,
    )
