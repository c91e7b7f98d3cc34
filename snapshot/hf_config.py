"""Hugging Face config.json -> ModelConfig, read as transformers 5 reads it.

transformers: models/{llama,mistral,qwen2,qwen3}/configuration_*.py, also for the defaults.
"""

from pathlib import Path
from typing import Any

from glowplug.errors import CorruptSnapshot, UnsupportedModel
from snapshot.hf_encoder import ENCODER_FAMILIES
from snapshot.hf_rope import hf_rope
from snapshot.model_config import ModelConfig, checked_config

# What the config classes assume where config.json says nothing. None: the number of heads.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": None, "max_position_embeddings": 2048},
    "mistral": {
        "num_key_value_heads": 8,
        "max_position_embeddings": 4096 * 32,
        "sliding_window": 4096,
    },
    "qwen2": {
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
    },
    "qwen3": {
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
        "head_dim": 128,
    },
}


def hf_config(fields: dict[str, Any], path: Path) -> ModelConfig:
    """The config in `fields`, the content of config.json at `path`.

    Raises:
        UnsupportedModel: another model type, quantised weights, or an unknown rope kind.
        CorruptSnapshot: a field is missing or impossible.
    """
    family = str(fields.get("model_type"))
    if family not in _DEFAULTS:
        raise UnsupportedModel(
            f"{path}: the model type {family[:60]!r} is not supported; these are: "
            f"{', '.join((*_DEFAULTS, *ENCODER_FAMILIES))}"
        )
    if fields.get("quantization_config"):
        raise UnsupportedModel(
            f"{path}: the weights are quantised (quantization_config); give the unquantised model, "
            "or a GGUF file of it"
        )
    activation = fields.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModel(f"{path}: hidden_act {str(activation)[:60]!r} is not supported")

    fields = {**_DEFAULTS[family], **fields}
    heads = fields.get("num_attention_heads")
    hidden = fields.get("hidden_size")
    head_dim = fields.get("head_dim")
    if head_dim is None and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
        head_dim = hidden // heads
    kv_heads = fields["num_key_value_heads"]
    attention_bias = family in ("llama", "qwen3") and bool(fields.get("attention_bias", False))
    theta, scaling = hf_rope(fields, path)
    window, sliding_layers = _sliding(family, fields, path)
    return checked_config(
        str(path),
        {
            "family": family,
            "vocab_size": fields.get("vocab_size"),
            "hidden_size": hidden,
            "intermediate_size": fields.get("intermediate_size"),
            "num_layers": fields.get("num_hidden_layers"),
            "num_heads": heads,
            "num_kv_heads": heads if kv_heads is None else kv_heads,
            "head_dim": head_dim,
            "rms_norm_eps": fields.get("rms_norm_eps", 1e-6),
            "rope_theta": theta,
            "rope_scaling": scaling,
            "max_positions": fields["max_position_embeddings"],
            "tie_embeddings": bool(fields.get("tie_word_embeddings", False)),
            "qkv_bias": family == "qwen2" or attention_bias,
            "o_bias": attention_bias,
            "mlp_bias": family == "llama" and bool(fields.get("mlp_bias", False)),
            "qk_norm": family == "qwen3",
            "sliding_window": window,
            "sliding_layers": sliding_layers,
        },
    )


def _sliding(
    family: str, fields: dict[str, Any], path: Path
) -> tuple[Any, tuple[bool, ...] | None]:
    """The window, not validated yet, and which layers have it (None: all)."""
    window = fields.get("sliding_window")
    if family == "llama" or window is None:
        return None, None
    kinds = _layer_types(fields, path)
    if family == "mistral":
        if not all(kinds or ()):
            raise UnsupportedModel(f"{path}: a mistral model with full_attention is not supported")
        return window, None
    if not fields.get("use_sliding_window", False):
        return None, None
    if kinds is None:
        first = fields.get("max_window_layers", 28)
        layers = fields.get("num_hidden_layers")
        if not isinstance(first, int) or not isinstance(layers, int) or layers > 1 << 10:
            raise CorruptSnapshot(f"{path}: max_window_layers or num_hidden_layers is wrong")
        kinds = tuple(layer >= first for layer in range(layers))
    return (window, kinds) if any(kinds) else (None, None)


def _layer_types(fields: dict[str, Any], path: Path) -> tuple[bool, ...] | None:
    """Which layers are of sliding attention, where the file lists them."""
    kinds = fields.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or any(
        kind not in ("sliding_attention", "full_attention") for kind in kinds
    ):
        raise UnsupportedModel(f"{path}: layer_types other than sliding_ and full_attention")
    return tuple(kind == "sliding_attention" for kind in kinds)
