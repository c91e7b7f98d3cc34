"""Encoders of the BERT family: BERT, RoBERTa, XLM-RoBERTa (snapshot/encoder_config.py).

Post-norm, as in the paper: each sum is normed, and what was normed is the next residual. That one
is float32 whatever the weights are, as are the norms.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from runtime.engine.encoder_batch import EncoderBatch
from runtime.kernels import kernels_for
from runtime.kernels.interface import Kernels, Weight
from runtime.models.llama import numbers
from snapshot.encoder_config import EncoderConfig


@dataclass(frozen=True, slots=True)
class Norm:
    """Weight and bias of a LayerNorm, float32 [H]."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights, named as in snapshot/encoder_layout.py."""

    qkv: Weight
    qkv_bias: Tensor
    o: Weight
    o_bias: Tensor
    attn_norm: Norm
    up: Weight
    up_bias: Tensor
    down: Weight
    down_bias: Tensor
    mlp_norm: Norm


class Bert:
    """Reads whole texts, each token seeing all of its text."""

    def __init__(self, config: EncoderConfig, tensors: Mapping[str, Weight]) -> None:
        self.config = config
        self._positions = numbers(tensors, "positions")
        self._token_type = numbers(tensors, "token_types")[0].float()
        self.dtype = self._positions.dtype
        self.device = str(self._positions.device)
        self._kernels = kernels_for(dtype=self.dtype, device=self.device, head_dim=config.head_dim)
        self.embed = self._kernels.weight(tensors["embed"])
        self.layers = [_layer(tensors, n, self._kernels) for n in range(config.num_layers)]
        self._embed_norm = _norm(tensors, "embed_norm")
        self._gelu = "tanh" if config.activation == "gelu_tanh" else "none"

    def forward(self, batch: EncoderBatch) -> Tensor:
        """float32 hidden states [T, H] of the last layer."""
        run = self._kernels
        run.begin_step()
        rows = batch.positions + self.config.position_offset
        x = run.embed(batch.tokens, self.embed) + self._token_type
        x = self._normed(x + F.embedding(rows, self._positions).float(), self._embed_norm)
        for layer in self.layers:
            qkv = run.linear(x.to(self.dtype), layer.qkv, layer.qkv_bias)
            run.linear_add(x, self._attention(qkv, batch), layer.o, layer.o_bias)
            x = self._normed(x, layer.attn_norm)
            up = F.gelu(
                run.linear(x.to(self.dtype), layer.up, layer.up_bias), approximate=self._gelu
            )
            run.linear_add(x, up, layer.down, layer.down_bias)
            x = self._normed(x, layer.mlp_norm)
        return x

    def _attention(self, qkv: Tensor, batch: EncoderBatch) -> Tensor:
        """qkv [T, 3·H] → [T, H]."""
        heads, head_dim = self.config.num_heads, self.config.head_dim
        out = torch.empty_like(qkv[:, : heads * head_dim])
        for run in batch.runs:
            rows = qkv[run.start : run.end].view(run.count, run.length, 3, heads, head_dim)
            q, k, v = rows.permute(2, 0, 3, 1, 4).unbind(0)  # each [count, heads, length, head_dim]
            attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
            out[run.start : run.end] = attended.reshape(run.count * run.length, -1)
        return out

    def _normed(self, x: Tensor, norm: Norm) -> Tensor:
        return F.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, self.config.norm_eps)


def _norm(tensors: Mapping[str, Weight], name: str) -> Norm:
    return Norm(numbers(tensors, name).float(), numbers(tensors, f"{name}_bias").float())


def _layer(tensors: Mapping[str, Weight], n: int, run: Kernels) -> Layer:
    def weight(name: str) -> Weight:
        return run.weight(tensors[f"layers.{n}.{name}"])

    def bias(name: str) -> Tensor:
        return numbers(tensors, f"layers.{n}.{name}_bias")

    return Layer(
        qkv=weight("qkv"),
        qkv_bias=bias("qkv"),
        o=weight("o"),
        o_bias=bias("o"),
        attn_norm=_norm(tensors, f"layers.{n}.attn_norm"),
        up=weight("up"),
        up_bias=bias("up"),
        down=weight("down"),
        down_bias=bias("down"),
        mlp_norm=_norm(tensors, f"layers.{n}.mlp_norm"),
    )
