"""The architectures of GGUF files that can be read, and what each has of its own.

gguf_config.py reads what all of them share. A new one is a row in FAMILIES, and a row in
gguf_names.py where its tensors have other names. What files do not say follows from llama.cpp's
src/llama-model.cpp.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

from glowplug.errors import UnsupportedModel
from snapshot.gguf_metadata import Metadata

Fields = dict[str, Any]

_SLIDING_THETA = 10_000.0  # of Gemma 3's layers with a window, where the file says nothing


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a file when its family is asked."""

    metadata: Metadata
    prefix: str  # of its own keys: the architecture
    tensors: Container[str]
    layers: int
    heads: int
    head_dim: int
    hidden: int

    def cap(self, key: str) -> float | None:
        return self.metadata.number(f"{self.prefix}.{key}", 0.0) or None


def _llama(facts: Facts) -> Fields:
    """Also Mistral and Mixtral, which are llama in GGUF."""
    return _experts(facts, normalize=True)


def _qwen2_moe(facts: Facts) -> Fields:
    shared = facts.metadata.integer(f"{facts.prefix}.expert_shared_feed_forward_length", 0)
    return _experts(facts, normalize=False, shared=shared or None)


def _qwen3_moe(facts: Facts) -> Fields:
    return _experts(facts, normalize=True)


def _dense(facts: Facts) -> Fields:
    return _experts(facts, normalize=False)


def _gemma2(facts: Facts) -> Fields:
    return {
        **_gemma(facts, period=2, largest=46),
        "attention_cap": facts.cap("attn_logit_softcapping"),
    }


def _gemma3(facts: Facts) -> Fields:
    key = f"{facts.prefix}.rope.freq_base_swa"
    return {
        **_gemma(facts, period=6, largest=62),
        "sliding_rope_theta": facts.metadata.number(key, _SLIDING_THETA),
    }


def _gemma(facts: Facts, *, period: int, largest: int) -> Fields:
    """`period`: every how many layers one has no window; `largest`: the layers of the 27B model,
    whose scale is not of the head's size."""
    key = f"{facts.prefix}.attention.sliding_window_pattern"
    if key in facts.metadata:
        period = facts.metadata.integer(key)
    window = facts.metadata.integer(f"{facts.prefix}.attention.sliding_window", 0)
    sliding = tuple((n + 1) % max(period, 1) != 0 for n in range(facts.layers))
    scaled_by = facts.hidden // facts.heads if facts.layers == largest else facts.head_dim
    return {
        "architecture": "gemma",
        "sliding_layers": sliding if window else None,
        "attention_scale": max(scaled_by, 1) ** -0.5,
        "logit_cap": facts.cap("final_logit_softcapping"),
    }


def _experts(facts: Facts, *, normalize: bool, shared: int | None = None) -> Fields:
    """The fields of a mixture, if the file is one."""
    metadata, prefix = facts.metadata, facts.prefix
    count = metadata.integer(f"{prefix}.expert_count", 0)
    if not count:
        return {}
    gating = metadata.integer(f"{prefix}.expert_gating_func", 1)
    scale = metadata.number(f"{prefix}.expert_weights_scale", 1.0)
    if gating not in (0, 1) or scale not in (0.0, 1.0):
        raise UnsupportedModel(
            f"{metadata.name}: experts that are not weighed by a plain softmax are not supported"
        )
    layers = tuple(f"blk.{n}.ffn_gate_inp.weight" in facts.tensors for n in range(facts.layers))
    return {
        "architecture": "mixture",
        "experts": {
            "count": count,
            "per_token": metadata.integer(f"{prefix}.expert_used_count"),
            "intermediate_size": metadata.integer(
                f"{prefix}.expert_feed_forward_length",
                metadata.integer(f"{prefix}.feed_forward_length"),
            ),
            "normalize": metadata.flag(f"{prefix}.expert_weights_norm", normalize),
            "shared_intermediate_size": shared,
            "layers": None if all(layers) else layers,
        },
    }


FAMILIES: dict[str, Callable[[Facts], Fields]] = {
    "llama": _llama,
    "qwen2": _dense,
    "qwen3": _dense,
    "qwen2moe": _qwen2_moe,
    "qwen3moe": _qwen3_moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _dense,
}
