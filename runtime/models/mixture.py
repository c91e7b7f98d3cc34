"""Mixtures of experts: Mixtral, Qwen2-MoE, Qwen3-MoE. A Llama with experts in place of MLPs.

A step goes through the experts that any of its tokens chose, each with its tokens' rows together:
one token reads the weights of its own experts only, a batch each expert's once. A token's sum is
taken in the order of its experts' numbers, so it does not depend on the tokens beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from runtime.kernels.interface import Kernels, Weight
from runtime.models.llama import Llama, Mlp, numbers
from snapshot.layout import TILE_ROWS
from snapshot.model_config import Experts, ModelConfig


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """One layer's router [E, H] and experts; the shared one runs for every token."""

    router: Tensor
    experts: list[Mlp]
    shared: Mlp | None
    shared_gate: Tensor | None  # [1, H]; its sigmoid weighs the shared expert


class Mixture(Llama):
    """Implements runtime.models.registry.Model."""

    def __init__(
        self, config: ModelConfig, tensors: Mapping[str, Weight], *, max_context: int
    ) -> None:
        super().__init__(config, tensors, max_context=max_context)
        self._experts = cast(Experts, config.experts)  # ModelConfig sees to it
        self._expert_layers = {
            n: _bind_experts(self._experts, tensors, n, self._kernels)
            for n in range(config.num_layers)
            if config.has_experts(n)
        }

    def _add_mlp(self, run: Kernels, x: Tensor, h: Tensor, n: int) -> None:
        layer = self._expert_layers.get(n)
        if layer is None:
            super()._add_mlp(run, x, h, n)
            return
        _add_experts(run, x, h, layer, self._experts)
        if layer.shared is not None and layer.shared_gate is not None:
            score = run.logits(h, layer.shared_gate)
            # A sigmoid: the softmax of (score, 0), which torch takes row by row.
            weight = torch.cat((score, torch.zeros_like(score)), dim=1).softmax(dim=1)[:, :1]
            x += _mlp(run, h, layer.shared) * weight


def _add_experts(run: Kernels, x: Tensor, h: Tensor, layer: ExpertLayer, experts: Experts) -> None:
    """x (float32 [T, H]) += the weighted experts of the normed h [T, H]."""
    weights, chosen = route(run.logits(h, layer.router), experts)
    order = chosen.flatten().argsort(stable=True)  # by expert, then by token
    tokens = order // experts.per_token
    weights = weights.flatten()[order][:, None]
    counts = chosen.flatten().bincount(minlength=experts.count).tolist()
    start = 0
    for expert, count in enumerate(counts):
        if count:
            rows = tokens[start : start + count]
            y = _mlp(run, h if len(h) == 1 else h[rows], layer.experts[expert])
            x.index_add_(0, rows, y * weights[start : start + count])
            start += count


def route(scores: Tensor, experts: Experts) -> tuple[Tensor, Tensor]:
    """Each token's best experts and their weights, both [T, per_token], from scores [T, E]."""
    weights, chosen = scores.softmax(dim=-1).topk(experts.per_token)
    if experts.normalize:
        weights = weights / weights.cumsum(dim=-1)[:, -1:]  # left to right, whatever T is
    return weights, chosen


def _mlp(run: Kernels, h: Tensor, mlp: Mlp) -> Tensor:
    """An expert's output in float32."""
    y = torch.zeros(h.shape, device=h.device)
    run.linear_add(y, run.silu_mul(run.linear(h, mlp.gate_up, None)), mlp.down, None)
    return y


def _bind_experts(
    experts: Experts, tensors: Mapping[str, Weight], n: int, run: Kernels
) -> ExpertLayer:
    def weight(name: str) -> Weight:
        return tensors[f"layers.{n}.{name}"]

    router = numbers(tensors, f"layers.{n}.router")

    def of_each(name: str) -> list[Weight]:
        parts = _split(weight(name), experts.count, dtype=router.dtype)
        return [run.weight(part) for part in parts]

    gate_ups, downs = of_each("experts_gate_up"), of_each("experts_down")
    shared = shared_gate = None
    if experts.shared_intermediate_size is not None:
        gate_up, down = weight("shared_gate_up"), weight("shared_down")
        shared = Mlp(run.weight(gate_up), None, run.weight(down), None)
        shared_gate = numbers(tensors, f"layers.{n}.shared_gate")
    return ExpertLayer(
        router=router,
        experts=[Mlp(up, None, down, None) for up, down in zip(gate_ups, downs, strict=True)],
        shared=shared,
        shared_gate=shared_gate,
    )


def _split(stack: Weight, count: int, *, dtype: torch.dtype) -> Sequence[Weight]:
    """Each expert's rows of a tensor that stacks them all, as views of it."""
    if not isinstance(stack, Tensor) and stack.rows // count % TILE_ROWS:
        stack = stack.dense(dtype)  # an expert would end within a tile of rows
    if isinstance(stack, Tensor):
        rows = len(stack) // count
        return [stack[n * rows : (n + 1) * rows] for n in range(count)]
    return stack.split(count)
