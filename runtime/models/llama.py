"""The Llama family: SmolLM2, Llama 2/3, Mistral, Qwen2, Qwen3, Phi-3, Phi-4 (model_config.py of
snapshot/ says which differences there are). What differs more is a class made of this one's parts.

The weights are the snapshot's own mapped tensors: building a model copies nothing but the norms.
In bfloat16 the residual stream and the norms are float32, which halves the error of the logits
against a float32 run compared with rounding every sum (and costs next to nothing).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from runtime.engine.batch import Batch
from runtime.engine.kv_cache import KVCache
from runtime.kernels import kernels_for
from runtime.kernels.adapted import adapted
from runtime.kernels.interface import HeadShape, Kernels, Weight
from runtime.models.rope import cos_sin_table, rope_variant
from snapshot.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Mlp:
    """One gated MLP's weights."""

    gate_up: Weight
    gate_up_bias: Tensor | None
    down: Weight
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer's weights but its MLP's, named as in snapshot/layout.py."""

    attn_norm: Tensor
    qkv: Weight
    qkv_bias: Tensor | None
    qk_norms: tuple[Tensor, Tensor] | None
    o: Weight
    o_bias: Tensor | None
    mlp_norm: Tensor
    window: int | None


class Llama:
    """A decoder over the paged KV cache."""

    def __init__(
        self, config: ModelConfig, tensors: Mapping[str, Weight], *, max_context: int
    ) -> None:
        norm = numbers(tensors, "norm")
        self.config = config
        self.dtype = norm.dtype
        self.device = str(norm.device)
        self._kernels = kernels_for(dtype=self.dtype, device=self.device, head_dim=config.head_dim)
        weight = self._kernels.weight
        self.embed = weight(tensors["embed"])
        self.layers = [self._bind_layer(tensors, n) for n in range(config.num_layers)]
        self.mlps = {
            n: _bind_mlp(tensors, n, self._kernels)
            for n in range(config.num_layers)
            if not config.has_experts(n)
        }
        self.norm = self._bind_norm(norm)
        self.lm_head = self.embed if config.tie_embeddings else weight(tensors["lm_head"])
        self._rope = cos_sin_table(config, max_context).to(self.device)
        self.kv_variant = type(self._kernels).__name__ + rope_variant(config, max_context)
        self._heads = HeadShape(config.num_heads, config.num_kv_heads, config.head_dim)

    def forward(self, batch: Batch, kv: KVCache) -> Tensor:
        """Run one step; writes the new tokens' keys and values into `kv`.

        Returns float32 logits [R, vocab] of the batch's logit rows.
        """
        run, eps = adapted(self._kernels, batch.adapters), self.config.rms_norm_eps
        plans = self._plan_attention(batch, kv)
        x = run.embed(batch.tokens, self.embed)
        for n, layer in enumerate(self.layers):
            h = run.rms_norm(x, layer.attn_norm, eps)
            attention = self._attention(
                run,
                h,
                layer,
                batch,
                rope=self._rope,
                layer_kv=kv.layer(n),
                plan=plans[layer.window],
            )
            run.linear_add(x, attention, layer.o, layer.o_bias)

            h = run.rms_norm(x, layer.mlp_norm, eps)
            self._add_mlp(run, x, h, n)
        return self._logits(x, batch)

    def _plan_attention(self, batch: Batch, kv: KVCache) -> dict[int | None, Any]:
        """For each window that layers have, what they share in this step."""
        return {
            window: self._kernels.plan_attention(batch, block_size=kv.block_size, window=window)
            for window in {layer.window for layer in self.layers}
        }

    def _attention(
        self,
        run: Kernels,
        h: Tensor,
        layer: Layer,
        batch: Batch,
        *,
        rope: Tensor,
        layer_kv: tuple[Tensor, Tensor],
        plan: Any,
    ) -> Tensor:
        """Attention [T, heads·D] of the normed h [T, H], before the output projection."""
        config = self.config
        q = run.rotate(
            run.linear(h, layer.qkv, layer.qkv_bias),
            self._heads,
            rope=rope,
            batch=batch,
            layer_kv=layer_kv,
            norms=layer.qk_norms,
            eps=config.rms_norm_eps,
        )
        return run.attention(
            q, layer_kv, batch, plan, scale=config.attention_scale, cap=config.attention_cap
        )

    def _add_mlp(self, run: Kernels, x: Tensor, h: Tensor, n: int) -> None:
        """x (float32 [T, H]) += layer n's MLP of the normed h [T, H]."""
        mlp = self.mlps[n]
        gate_up = run.linear(h, mlp.gate_up, mlp.gate_up_bias)
        run.linear_add(x, run.silu_mul(gate_up), mlp.down, mlp.down_bias)

    def _logits(self, x: Tensor, batch: Batch) -> Tensor:
        """float32 [R, vocab] from the last layer's x [T, H]; fills `batch.pooled` in."""
        run, eps = self._kernels, self.config.rms_norm_eps
        if batch.pooled is not None:
            batch.pooled.hidden = run.rms_norm(x[batch.pooled.rows], self.norm, eps)
        if batch.logit_rows is not None:
            x = x[batch.logit_rows]
        return run.logits(run.rms_norm(x, self.norm, eps), self.lm_head)

    def _bind_layer(self, tensors: Mapping[str, Weight], n: int) -> Layer:
        config = self.config

        def norm(name: str) -> Tensor:
            return self._bind_norm(numbers(tensors, f"layers.{n}.{name}"))

        def weight(name: str) -> Weight:
            return self._kernels.weight(tensors[f"layers.{n}.{name}"])

        return Layer(
            attn_norm=norm("attn_norm"),
            qkv=weight("qkv"),
            qkv_bias=bias(tensors, f"layers.{n}.qkv_bias"),
            qk_norms=(norm("q_norm"), norm("k_norm")) if config.qk_norm else None,
            o=weight("o"),
            o_bias=bias(tensors, f"layers.{n}.o_bias"),
            mlp_norm=norm("mlp_norm"),
            window=config.sliding_window if config.is_sliding(n) else None,
        )

    def _bind_norm(self, weight: Tensor) -> Tensor:
        """The float32 weight of a norm, from the sealed one."""
        return weight.float()


def _bind_mlp(tensors: Mapping[str, Weight], n: int, run: Kernels) -> Mlp:
    return Mlp(
        gate_up=run.weight(tensors[f"layers.{n}.gate_up"]),
        gate_up_bias=bias(tensors, f"layers.{n}.gate_up_bias"),
        down=run.weight(tensors[f"layers.{n}.down"]),
        down_bias=bias(tensors, f"layers.{n}.down_bias"),
    )


def bias(tensors: Mapping[str, Weight], name: str) -> Tensor | None:
    """A tensor that only some models have."""
    return numbers(tensors, name) if name in tensors else None


def numbers(tensors: Mapping[str, Weight], name: str) -> Tensor:
    """A tensor that is never quantised: a norm or a bias."""
    tensor = tensors[name]
    if not isinstance(tensor, Tensor):
        raise AssertionError(f"{name} is quantised")
    return tensor
