"""The Llama family: SmolLM2, Llama 2/3, Mistral, Qwen2, Qwen3 (snapshot/model_config.py says which
differences there are).

The weights are the snapshot's own mapped tensors: building a model copies nothing but the norms.
In bfloat16 the residual stream and the norms are float32, which halves the error of the logits
against a float32 run compared with rounding every sum (and costs next to nothing).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from runtime.engine.batch import Batch
from runtime.engine.kv_cache import KVCache
from runtime.kernels import kernels_for
from runtime.kernels.interface import HeadShape
from runtime.models.rope import cos_sin_table
from snapshot.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer's weights, named as in snapshot/layout.py."""

    attn_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norms: tuple[Tensor, Tensor] | None
    o: Tensor
    o_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None
    window: int | None


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
        self._rope = cos_sin_table(config, max_context).to(self.device)
        self._heads = HeadShape(config.num_heads, config.num_kv_heads, config.head_dim)
        self._kernels = kernels_for(dtype=self.dtype, device=self.device, head_dim=config.head_dim)

    def forward(self, batch: Batch, kv: KVCache) -> Tensor:
        """Run one step; writes the new tokens' keys and values into `kv`.

        Returns float32 logits [R, vocab] of the batch's logit rows.
        """
        run, eps = self._kernels, self.config.rms_norm_eps
        attention_plans = {
            window: run.plan_attention(batch, block_size=kv.block_size, window=window)
            for window in {layer.window for layer in self.layers}
        }
        x = F.embedding(batch.tokens, self.embed).float()
        for n, layer in enumerate(self.layers):
            h = run.rms_norm(x, layer.attn_norm, eps)
            qkv = run.linear(h, layer.qkv, layer.qkv_bias)
            q = run.rotate(
                qkv,
                self._heads,
                rope=self._rope,
                batch=batch,
                layer_kv=kv.layer(n),
                norms=layer.qk_norms,
                eps=eps,
            )
            attention = run.attention(q, kv.layer(n), batch, attention_plans[layer.window])
            run.linear_add(x, attention, layer.o, layer.o_bias)

            h = run.rms_norm(x, layer.mlp_norm, eps)
            gate_up = run.linear(h, layer.gate_up, layer.gate_up_bias)
            run.linear_add(x, run.silu_mul(gate_up), layer.down, layer.down_bias)

        if batch.logit_rows is not None:
            x = x[batch.logit_rows]
        return run.logits(run.rms_norm(x, self.norm, eps), self.lm_head)


def _layer(config: ModelConfig, tensors: Mapping[str, Tensor], n: int) -> Layer:
    def optional(name: str) -> Tensor | None:
        return tensors.get(f"layers.{n}.{name}")

    def weight(name: str) -> Tensor:
        return tensors[f"layers.{n}.{name}"]

    return Layer(
        attn_norm=weight("attn_norm").float(),
        qkv=weight("qkv"),
        qkv_bias=optional("qkv_bias"),
        qk_norms=(weight("q_norm").float(), weight("k_norm").float()) if config.qk_norm else None,
        o=weight("o"),
        o_bias=optional("o_bias"),
        mlp_norm=weight("mlp_norm").float(),
        gate_up=weight("gate_up"),
        gate_up_bias=optional("gate_up_bias"),
        down=weight("down"),
        down_bias=optional("down_bias"),
        window=config.sliding_window
        if config.sliding_layers is None or config.sliding_layers[n]
        else None,
    )
