"""Which class runs which architecture: a new one is a file and a row here."""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from glowplug.errors import UnsupportedModel
from runtime.engine.batch import Batch
from runtime.engine.kv_cache import KVCache
from runtime.kernels.interface import Weight
from runtime.models.gemma import Gemma
from runtime.models.llama import Llama
from runtime.models.mixture import Mixture
from snapshot.model_config import ModelConfig


class Model(Protocol):
    """What the engine needs of a model."""

    config: ModelConfig
    dtype: torch.dtype
    device: str
    kv_variant: str  # what keys and values depend on beside the snapshot: kernels, rotary factors

    def forward(self, batch: Batch, kv: KVCache) -> Tensor:
        """One step: float32 logits [R, vocab] of the batch's logit rows."""
        ...


_ARCHITECTURES: dict[str, Callable[..., Model]] = {
    "llama": Llama,
    "mixture": Mixture,
    "gemma": Gemma,
}


def build_model(
    config: ModelConfig, tensors: Mapping[str, Weight], *, max_context: int | None = None
) -> Model:
    """Bind a sealed model's tensors. `max_context` (tokens) bounds the position tables.

    Raises:
        UnsupportedModel: an architecture that this version does not run.
    """
    architecture = _ARCHITECTURES.get(config.architecture)
    if architecture is None:
        known = ", ".join(sorted(_ARCHITECTURES))
        raise UnsupportedModel(f"architecture {config.architecture!r} is not one of: {known}")
    limit = min(max_context or config.max_positions, config.max_positions)
    return architecture(config, tensors, max_context=limit)
