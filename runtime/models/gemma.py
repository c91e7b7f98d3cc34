"""Gemma 2 and 3 (text): a Llama with a norm after attention and MLP too, before each is added.

Norms multiply by 1 + weight, embeddings are scaled by the root of their size, the gate is a GELU.
Gemma 2 soft-caps attention scores and logits; Gemma 3 norms queries and keys, and its layers with a
sliding window rotate with a base of their own. Every second (Gemma 2) or all but every sixth layer
(Gemma 3) has a window.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from runtime.engine.batch import Batch
from runtime.engine.kv_cache import KVCache
from runtime.kernels.adapted import adapted
from runtime.kernels.interface import Weight
from runtime.models.llama import Llama, numbers
from runtime.models.rope import sliding_cos_sin_table
from snapshot.model_config import ModelConfig


class Gemma(Llama):
    """Implements runtime.models.registry.Model."""

    def __init__(
        self, config: ModelConfig, tensors: Mapping[str, Weight], *, max_context: int
    ) -> None:
        super().__init__(config, tensors, max_context=max_context)
        self._sliding_rope = self._rope
        if config.sliding_rope_theta is not None:
            self._sliding_rope = sliding_cos_sin_table(config, max_context).to(self.device)
        self._post_norms = [
            tuple(
                self._bind_norm(numbers(tensors, f"layers.{n}.{name}"))
                for name in ("post_attn_norm", "post_mlp_norm")
            )
            for n in range(config.num_layers)
        ]
        # Rounded to the weights' precision, as it was in training.
        self._embed_scale = float(torch.tensor(config.hidden_size**0.5).to(self.dtype))

    def forward(self, batch: Batch, kv: KVCache) -> Tensor:
        """As Llama.forward."""
        run, eps = adapted(self._kernels, batch.adapters), self.config.rms_norm_eps
        plans = self._plan_attention(batch, kv)
        x = run.embed(batch.tokens, self.embed) * self._embed_scale
        for n, layer in enumerate(self.layers):
            mlp, (post_attn_norm, post_mlp_norm) = self.mlps[n], self._post_norms[n]
            rope = self._rope if layer.window is None else self._sliding_rope
            h = run.rms_norm(x, layer.attn_norm, eps)
            attention = self._attention(
                run, h, layer, batch, rope=rope, layer_kv=kv.layer(n), plan=plans[layer.window]
            )
            y = torch.zeros_like(x)
            run.linear_add(y, attention, layer.o, layer.o_bias)
            run.add_rms_norm(x, y, post_attn_norm, eps)

            h = run.rms_norm(x, layer.mlp_norm, eps)
            gate_up = run.linear(h, mlp.gate_up, mlp.gate_up_bias)
            y.zero_()
            run.linear_add(y, run.gelu_mul(gate_up), mlp.down, mlp.down_bias)
            run.add_rms_norm(x, y, post_mlp_norm, eps)
        logits = self._logits(x, batch)
        if self.config.logit_cap is not None:
            run.soft_cap(logits, self.config.logit_cap)
        return logits

    def _bind_norm(self, weight: Tensor) -> Tensor:
        return 1.0 + weight.float()
