"""Which class runs which architecture: a new one is a file and a row here."""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from glowplug.errors import UnsupportedModel
from runtime.engine.batch import Batch
from runtime.engine.encoder_batch import EncoderBatch
from runtime.engine.kv_cache import KVCache
from runtime.kernels.interface import Weight
from runtime.models.bert import Bert
from runtime.models.gemma import Gemma
from runtime.models.llama import Llama
from runtime.models.mixture import Mixture
from snapshot.encoder_config import EncoderConfig
from snapshot.model_config import ModelConfig


class Model(Protocol):
    """What the engine needs of a model."""

    config: ModelConfig
    dtype: torch.dtype
    device: str
    kv_variant: str  # what keys and values depend on beside the snapshot: kernels, rotary factors

    def forward(self, batch: Batch, kv: KVCache) -> Tensor:
        """One step: float32 logits [R, vocab] of the batch's logit rows. Fills `batch.pooled` in,
        where the batch has it."""
        ...


class Encoder(Protocol):
    """What the encoder's engine needs of a model."""

    config: EncoderConfig
    dtype: torch.dtype
    device: str

    def forward(self, batch: EncoderBatch) -> Tensor:
        """float32 hidden states [T, H] of whole texts."""
        ...


_ARCHITECTURES: dict[str, Callable[..., Model]] = {
    "llama": Llama,
    "mixture": Mixture,
    "gemma": Gemma,
}
_ENCODERS: dict[str, Callable[[EncoderConfig, Mapping[str, Weight]], Encoder]] = {"bert": Bert}


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


def build_encoder(config: EncoderConfig, tensors: Mapping[str, Weight]) -> Encoder:
    """Bind a sealed encoder's tensors."""
    return _ENCODERS[config.architecture](config, tensors)
