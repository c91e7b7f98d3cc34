"""The Llama family: SmolLM2, Llama 2/3, Mistral, Qwen2, Qwen3 (snapshot/model_config.py says which
differences there are).

The weights are the snapshot's own mapped tensors: building a model copies nothing but the norms.
In bfloat16 the residual stream and the norms are float32, which halves the error of the logits
against a float32 run compared with rounding every sum (and costs next to nothing).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from runtime.engine.batch import Batch
from runtime.engine.kv_cache import KVCache
from runtime.kernels import kernels_for
from runtime.kernels.adapted import adapted
from runtime.kernels.interface import HeadShape, Kernels, Weight
from runtime.models.rope import cos_sin_table
from snapshot.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer's weights, named as in snapshot/layout.py."""

    attn_norm: Tensor
    qkv: Weight
    qkv_bias: Tensor | None
    qk_norms: tuple[Tensor, Tensor] | None
    o: Weight
    o_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Weight
    gate_up_bias: Tensor | None
    down: Weight
    down_bias: Tensor | None
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
        self.layers = [_layer(config, tensors, n, self._kernels) for n in range(config.num_layers)]
        self.norm = norm.float()
        self.lm_head = self.embed if config.tie_embeddings else weight(tensors["lm_head"])
        self._rope = cos_sin_table(config, max_context).to(self.device)
        self._heads = HeadShape(config.num_heads, config.num_kv_heads, config.head_dim)

    def forward(self, batch: Batch, kv: KVCache) -> Tensor:
        """Run one step; writes the new tokens' keys and values into `kv`.

        Returns float32 logits [R, vocab] of the batch's logit rows.
        """
        run, eps = adapted(self._kernels, batch.adapters), self.config.rms_norm_eps
        attention_plans = {
            window: run.plan_attention(batch, block_size=kv.block_size, window=window)
            for window in {layer.window for layer in self.layers}
        }
        x = run.embed(batch.tokens, self.embed)
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

        if batch.pooled is not None:
            batch.pooled.hidden = run.rms_norm(x[batch.pooled.rows], self.norm, eps)
        if batch.logit_rows is not None:
            x = x[batch.logit_rows]
        return run.logits(run.rms_norm(x, self.norm, eps), self.lm_head)


def _layer(config: ModelConfig, tensors: Mapping[str, Weight], n: int, run: Kernels) -> Layer:
    def optional(name: str) -> Tensor | None:
        name = f"layers.{n}.{name}"
        return numbers(tensors, name) if name in tensors else None

    def norm(name: str) -> Tensor:
        return numbers(tensors, f"layers.{n}.{name}").float()

    def weight(name: str) -> Weight:
        return run.weight(tensors[f"layers.{n}.{name}"])

    return Layer(
        attn_norm=norm("attn_norm"),
        qkv=weight("qkv"),
        qkv_bias=optional("qkv_bias"),
        qk_norms=(norm("q_norm"), norm("k_norm")) if config.qk_norm else None,
        o=weight("o"),
        o_bias=optional("o_bias"),
        mlp_norm=norm("mlp_norm"),
        gate_up=weight("gate_up"),
        gate_up_bias=optional("gate_up_bias"),
        down=weight("down"),
        down_bias=optional("down_bias"),
        window=config.sliding_window
        if config.sliding_layers is None or config.sliding_layers[n]
        else None,
    )


def numbers(tensors: Mapping[str, Weight], name: str) -> Tensor:
    """A tensor that is never quantised: a norm or a bias."""
    tensor = tensors[name]
    if not isinstance(tensor, Tensor):
        raise AssertionError(f"{name} is quantised")
    return tensor
