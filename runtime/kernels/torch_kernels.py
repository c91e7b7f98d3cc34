"""Kernels made of torch's own operations: any dtype, any device, and the reference for the rest."""

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from runtime.engine.batch import Batch
from runtime.kernels.interface import HeadShape, Weight
from runtime.kernels.torch_attention import AttentionPlan, paged_attention


class TorchKernels:
    """Implements runtime.kernels.interface.Kernels for models of one dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def weight(self, sealed: Weight) -> Weight:
        return sealed if isinstance(sealed, Tensor) else sealed.dense(self._dtype)

    def embed(self, tokens: Tensor, weight: Weight) -> Tensor:
        return F.embedding(tokens, _numbers(weight)).float()

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
        return F.linear(x, _numbers(weight), bias)

    def linear_add(self, residual: Tensor, x: Tensor, weight: Weight, bias: Tensor | None) -> None:
        residual += F.linear(x, _numbers(weight), bias)

    def logits(self, x: Tensor, weight: Weight) -> Tensor:
        return F.linear(x, _numbers(weight)).float()

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, eps).to(self._dtype)

    def add_rms_norm(self, residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
        residual += F.rms_norm(x, weight.shape, weight, eps)

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
        sizes = [shape.heads, shape.kv_heads, shape.kv_heads]
        q, k, v = torch.split(qkv.view(qkv.shape[0], -1, shape.dim), sizes, dim=1)
        q, k = q.float(), k.float()
        if norms is not None:
            q, k = (
                F.rms_norm(x, norm.shape, norm, eps) for x, norm in zip((q, k), norms, strict=True)
            )
        cos, sin = rope[batch.positions].unsqueeze(2).unbind(1)
        for cache, new in zip(layer_kv, (_apply_rope(k, cos, sin).to(qkv.dtype), v), strict=True):
            cache.view(-1, *cache.shape[2:]).index_copy_(0, batch.slots, new)
        return _apply_rope(q, cos, sin).to(qkv.dtype)

    def begin_step(self) -> None:
        pass

    def plan_attention(self, batch: Batch, *, block_size: int, window: int | None) -> AttentionPlan:
        return AttentionPlan(batch, block_size=block_size, window=window)

    def attention(
        self,
        q: Tensor,
        layer_kv: tuple[Tensor, Tensor],
        batch: Batch,
        plan: AttentionPlan,
        *,
        scale: float | None = None,
        cap: float | None = None,
    ) -> Tensor:
        return paged_attention(q, layer_kv, batch, plan, scale=scale, cap=cap).flatten(1)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.gelu(gate, approximate="tanh") * up

    def soft_cap(self, logits: Tensor, cap: float) -> None:
        logits.div_(cap).tanh_().mul_(cap)


def _numbers(weight: Weight) -> Tensor:
    if not isinstance(weight, Tensor):
        raise AssertionError("a quantised weight was not given to weight()")
    return weight


def _apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first n of each head: x [T, heads, dim]; cos and sin [T, 1, n / 2]."""
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)
