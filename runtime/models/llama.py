"""The Llama family: SmolLM2, Llama 2/3, Mistral, Qwen2, Qwen3 (snapshot/model_config.py says which
differences there are).

The weights are the snapshot's own mapped tensors: building a model copies nothing but the norms.
In bfloat16 the residual stream and the norms are float32, which halves the error of the logits
against a float32 run compared with rounding every sum (and costs next to nothing).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from runtime.engine.batch import Batch
from runtime.engine.kv_cache import KVCache
from runtime.models.attention import AttentionMasks, paged_attention
from runtime.models.rope import apply_rope, cos_sin_table
from snapshot.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer's weights, named as in snapshot/layout.py."""

    attn_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None
    windowed: bool


class Llama:
    """A decoder over the paged KV cache."""

    def __init__(
        self, config: ModelConfig, tensors: Mapping[str, Tensor], *, max_context: int
    ) -> None:
        self.config = config
        self.embed = tensors["embed"]
        self.dtype = self.embed.dtype
        self.device = str(self.embed.device)
        self.layers = [_layer(config, tensors, n) for n in range(config.num_layers)]
        self.norm = tensors["norm"].float()
        self.lm_head = self.embed if config.tie_embeddings else tensors["lm_head"]
        self._rope = cos_sin_table(config, max_context, self.dtype).to(self.device)

    def forward(self, batch: Batch, kv: KVCache) -> Tensor:
        """Run one step; writes the new tokens' keys and values into `kv`.

        Returns float32 logits [R, vocab] of the batch's logit rows.
        """
        config, eps = self.config, self.config.rms_norm_eps
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        q_size, kv_size = heads * head_dim, kv_heads * head_dim
        count = batch.tokens.shape[0]
        cos, sin = self._rope[batch.positions].unsqueeze(2).unbind(1)
        masks = self._masks(batch, kv.block_size)

        x = F.embedding(batch.tokens, self.embed).float()
        for n, layer in enumerate(self.layers):
            h = F.rms_norm(x, layer.attn_norm.shape, layer.attn_norm, eps).to(self.dtype)
            qkv = F.linear(h, layer.qkv, layer.qkv_bias)
            q, k, v = (
                part.view(count, -1, head_dim)
                for part in torch.split(qkv, [q_size, kv_size, kv_size], dim=-1)
            )
            if layer.q_norm is not None and layer.k_norm is not None:
                q = F.rms_norm(q, layer.q_norm.shape, layer.q_norm, eps)
                k = F.rms_norm(k, layer.k_norm.shape, layer.k_norm, eps)
            q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
            keys, values = kv.layer(n)
            keys.view(-1, kv_heads, head_dim).index_copy_(0, batch.slots, k)
            values.view(-1, kv_heads, head_dim).index_copy_(0, batch.slots, v)
            attention = paged_attention(q, (keys, values), batch, masks[layer.windowed])
            x = x + F.linear(attention.reshape(count, q_size), layer.o, layer.o_bias)

            h = F.rms_norm(x, layer.mlp_norm.shape, layer.mlp_norm, eps).to(self.dtype)
            gate, up = F.linear(h, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer.down, layer.down_bias)

        if batch.logit_rows is not None:
            x = x[batch.logit_rows]
        h = F.rms_norm(x, self.norm.shape, self.norm, eps).to(self.dtype)
        return F.linear(h, self.lm_head).float()

    def _masks(self, batch: Batch, block_size: int) -> dict[bool, AttentionMasks]:
        """The step's masks, by whether a layer is windowed."""
        return {
            windowed: AttentionMasks(
                batch,
                block_size=block_size,
                window=self.config.sliding_window if windowed else None,
            )
            for windowed in {layer.windowed for layer in self.layers}
        }


def _layer(config: ModelConfig, tensors: Mapping[str, Tensor], n: int) -> Layer:
    def optional(name: str) -> Tensor | None:
        return tensors.get(f"layers.{n}.{name}")

    def weight(name: str) -> Tensor:
        return tensors[f"layers.{n}.{name}"]

    return Layer(
        attn_norm=weight("attn_norm").float(),
        qkv=weight("qkv"),
        qkv_bias=optional("qkv_bias"),
        q_norm=optional("q_norm"),
        k_norm=optional("k_norm"),
        o=weight("o"),
        o_bias=optional("o_bias"),
        mlp_norm=weight("mlp_norm").float(),
        gate_up=weight("gate_up"),
        gate_up_bias=optional("gate_up_bias"),
        down=weight("down"),
        down_bias=optional("down_bias"),
        windowed=config.sliding_window is not None
        and (config.sliding_layers is None or config.sliding_layers[n]),
    )
