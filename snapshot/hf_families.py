"""The model types whose config.json can be read: what each assumes and what it has of its own.

hf_config.py reads what all of them share. A new type is a row in FAMILIES, and a row in hf_names.py
where its tensors have other names. transformers: models/*/configuration_*.py, also for defaults.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glowplug.errors import CorruptSnapshot, UnsupportedModel
from snapshot.hf_gemma import gemma2_details, gemma3_details
from snapshot.hf_layers import layer_types, layers_where, sliding_fields
from snapshot.hf_rope import hf_rope, rope_parameters

Fields = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Family:
    """One `model_type`.

    `details` gets config.json's fields, completed with `defaults`, and its path; it returns fields
    of ModelConfig, the rotary ones always among them.
    """

    details: Callable[[Fields, Path], Fields]
    defaults: Fields
    activation: tuple[str, str] = ("hidden_act", "silu")  # the field and what it must say


def _llama(fields: Fields, path: Path) -> Fields:
    bias = bool(fields.get("attention_bias", False))
    return {
        **_rope(fields, path),
        "qkv_bias": bias,
        "o_bias": bias,
        "mlp_bias": bool(fields.get("mlp_bias", False)),
    }


def _mistral(fields: Fields, path: Path) -> Fields:
    window = fields.get("sliding_window")
    if window is not None and not all(layer_types(fields, path) or ()):
        raise UnsupportedModel(f"{path}: a mistral model with full_attention is not supported")
    return {**_rope(fields, path), "sliding_window": window}


def _qwen2(fields: Fields, path: Path) -> Fields:
    return {**_rope(fields, path), **_qwen_sliding(fields, path), "qkv_bias": True}


def _qwen3(fields: Fields, path: Path) -> Fields:
    bias = bool(fields.get("attention_bias", False))
    return {
        **_rope(fields, path),
        **_qwen_sliding(fields, path),
        "qkv_bias": bias,
        "o_bias": bias,
        "qk_norm": True,
    }


def _phi3(fields: Fields, path: Path) -> Fields:
    """Phi-3 and Phi-4; their rope type is longrope under any of three names."""
    parameters = rope_parameters(fields, path)
    kind = parameters.get("rope_type", parameters.get("type"))
    if kind in ("su", "yarn"):
        parameters = {**parameters, "rope_type": "longrope"}
    fields = {**fields, "rope_scaling": None, "rope_parameters": parameters}
    part = parameters.get("partial_rotary_factor", fields.get("partial_rotary_factor"))
    theta, scaling = hf_rope(fields, path, partial=True)
    rotary_dim = None
    if part not in (None, 1):
        try:
            head_dim = fields.get("head_dim") or (
                fields["hidden_size"] // fields["num_attention_heads"]
            )
            rotary_dim = int(head_dim * part)
        except (TypeError, KeyError, ValueError, ArithmeticError):
            raise CorruptSnapshot(f"{path}: partial_rotary_factor is no part of a head") from None
    return {
        "rope_theta": theta,
        "rope_scaling": scaling,
        "rotary_dim": rotary_dim,
        "sliding_window": fields.get("sliding_window"),
    }


def _mixtral(fields: Fields, path: Path) -> Fields:
    return {
        **_rope(fields, path),
        "architecture": "mixture",
        "sliding_window": fields.get("sliding_window"),
        "experts": {
            "count": fields.get("num_local_experts"),
            "per_token": fields.get("num_experts_per_tok"),
            "intermediate_size": fields.get("intermediate_size"),
            "normalize": True,
        },
    }


def _qwen2_moe(fields: Fields, path: Path) -> Fields:
    return {
        **_rope(fields, path),
        **_qwen_sliding(fields, path, lambda n, most: n % 2 == 0 and n < most),
        **_qwen_experts(fields, path),
        "qkv_bias": bool(fields.get("qkv_bias", True)),
    }


def _qwen3_moe(fields: Fields, path: Path) -> Fields:
    bias = bool(fields.get("attention_bias", False))
    slides = bool(fields.get("use_sliding_window", False))
    return {
        **_rope(fields, path),
        **_qwen_experts(fields, path),
        "sliding_window": fields.get("sliding_window") if slides else None,
        "qkv_bias": bias,
        "o_bias": bias,
        "qk_norm": True,
    }


def _rope(fields: Fields, path: Path) -> Fields:
    theta, scaling = hf_rope(fields, path)
    return {"rope_theta": theta, "rope_scaling": scaling}


def _qwen_sliding(
    fields: Fields,
    path: Path,
    rule: Callable[[int, int], bool] = lambda n, most: n >= most,
) -> Fields:
    """Qwen's window is off unless it is asked for; where nothing else says which layers have it,
    `rule` of the layer's number and `max_window_layers` does."""
    if fields.get("sliding_window") is None:
        return {}
    kinds = layer_types(fields, path)
    if not fields.get("use_sliding_window", False):
        return {}
    if kinds is None:
        kinds = layers_where(fields, path, "max_window_layers", rule)
    return sliding_fields(fields["sliding_window"], kinds)


def _qwen_experts(fields: Fields, path: Path) -> Fields:
    """Experts in every `decoder_sparse_step`-th layer, but not in `mlp_only_layers`."""
    without = fields.get("mlp_only_layers") or []
    if not isinstance(without, list) or not all(isinstance(n, int) for n in without):
        raise CorruptSnapshot(f"{path}: mlp_only_layers is not a list of layer numbers")
    layers = layers_where(
        fields,
        path,
        "decoder_sparse_step",
        lambda n, step: n not in without and (n + 1) % max(step, 1) == 0,
    )
    if not any(layers):
        return {"architecture": "llama"}
    count = fields.get("num_experts", fields.get("num_local_experts"))
    return {
        "architecture": "mixture",
        "experts": {
            "count": fields.get("default_num_experts") if count is None else count,
            "per_token": fields.get("num_experts_per_tok"),
            "intermediate_size": fields.get("moe_intermediate_size"),
            "normalize": bool(fields.get("norm_topk_prob", False)),
            "shared_intermediate_size": fields.get("shared_expert_intermediate_size"),
            "layers": None if all(layers) else layers,
        },
    }


_QWEN = {"max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28}
_GEMMA = {
    "vocab_size": 256_000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "tie_word_embeddings": True,
}
_GELU = ("hidden_activation", "gelu_pytorch_tanh")

# Defaults are the config classes', where config.json says nothing. None: the number of heads.
FAMILIES: dict[str, Family] = {
    "llama": Family(
        details=_llama,
        defaults={"num_key_value_heads": None, "max_position_embeddings": 2048},
    ),
    "mistral": Family(
        details=_mistral,
        defaults={
            "num_key_value_heads": 8,
            "max_position_embeddings": 4096 * 32,
            "sliding_window": 4096,
        },
    ),
    "qwen2": Family(details=_qwen2, defaults={"num_key_value_heads": 32, **_QWEN}),
    "qwen3": Family(details=_qwen3, defaults={"num_key_value_heads": 32, "head_dim": 128, **_QWEN}),
    "phi3": Family(
        details=_phi3,
        defaults={
            "num_key_value_heads": None,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
        },
    ),
    "gemma2": Family(
        details=gemma2_details,
        defaults={
            **_GEMMA,
            "final_logit_softcapping": 30.0,
            "attn_logit_softcapping": 50.0,
        },
        activation=_GELU,
    ),
    "gemma3_text": Family(
        details=gemma3_details,
        defaults={**_GEMMA, "vocab_size": 262_208, "max_position_embeddings": 131_072},
        activation=_GELU,
    ),
    "mixtral": Family(
        details=_mixtral,
        defaults={
            "num_key_value_heads": 8,
            "max_position_embeddings": 4096 * 32,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
    ),
    "qwen2_moe": Family(
        details=_qwen2_moe,
        defaults={
            "num_key_value_heads": 16,
            **_QWEN,
            "decoder_sparse_step": 1,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "num_experts_per_tok": 4,
            "default_num_experts": 60,
        },
    ),
    "qwen3_moe": Family(
        details=_qwen3_moe,
        defaults={
            "num_key_value_heads": 4,
            **_QWEN,
            "decoder_sparse_step": 1,
            "moe_intermediate_size": 768,
            "num_experts_per_tok": 8,
            "default_num_experts": 128,
        },
    ),
}
