"""What a decoder asks of a device. T tokens; `dtype` is the model's, float32 where it says so."""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from runtime.engine.batch import Batch
from snapshot.quantization import Quantized

Weight = Tensor | Quantized  # of a linear layer, [out, in]


@dataclass(frozen=True, slots=True)
class HeadShape:
    """How a projection splits into heads."""

    heads: int
    kv_heads: int
    dim: int


class Kernels(Protocol):
    """The operations of a pre-norm decoder layer over a paged KV cache."""

    def weight(self, sealed: Weight) -> Weight:
        """A sealed weight as these kernels take it, made once: themselves where they can."""
        ...

    def embed(self, tokens: Tensor, weight: Weight) -> Tensor:
        """Rows of weight [vocab, n] → float32 [T, n]."""
        ...

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
        """x [T, in] · weight [out, in] → dtype [T, out]."""
        ...

    def linear_add(self, residual: Tensor, x: Tensor, weight: Weight, bias: Tensor | None) -> None:
        """residual (float32 [T, out]) += x · weight."""
        ...

    def logits(self, x: Tensor, weight: Weight) -> Tensor:
        """x [R, in] · weight [vocab, in] → float32 [R, vocab]."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """float32 [T, n] → dtype [T, n]; the weight is float32."""
        ...

    def add_rms_norm(self, residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
        """residual += rms_norm(x); all float32, [T, n] and [n]."""
        ...

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
        """Split qkv [T, (heads + 2·kv_heads)·dim], norm q and k by head where `norms` (float32
        [dim] each) is given, rotate the first n numbers of each by `rope` (float32 [positions, 2,
        n / 2]), and write k and v into the cache. Returns q, dtype [T, heads, dim]."""
        ...

    def begin_step(self) -> None:
        """To call first where a step has no `plan_attention`."""
        ...

    def plan_attention(self, batch: Batch, *, block_size: int, window: int | None) -> Any:
        """What all layers with this window share in one step; `attention` takes it."""
        ...

    def attention(
        self,
        q: Tensor,
        layer_kv: tuple[Tensor, Tensor],
        batch: Batch,
        plan: Any,
        *,
        scale: float | None = None,
        cap: float | None = None,
    ) -> Tensor:
        """Causal attention of every token over its sequence's cached keys, its own included.

        A score is q · k · scale (by default dim^-1/2), soft-capped to cap · tanh(score / cap).
        q [T, heads, dim] → [T, heads·dim].
        """
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) · up, where a row [2n] is all of gate, then up."""
        ...

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        """gelu(gate) · up, likewise; the GELU in its tanh form."""
        ...

    def soft_cap(self, logits: Tensor, cap: float) -> None:
        """logits (float32 [R, n]) = cap · tanh(logits / cap)."""
        ...
