"""What Gemma's config.json files have of their own. transformers: models/gemma{2,3}/."""

from pathlib import Path
from typing import Any

from glowplug.errors import CorruptSnapshot, UnsupportedModel
from snapshot.hf_layers import layer_types, layers_where, sliding_fields
from snapshot.hf_rope import hf_rope

_FULL_THETA, _SLIDING_THETA = 1_000_000.0, 10_000.0


def gemma2_details(fields: dict[str, Any], path: Path) -> dict[str, Any]:
    """See hf_families.Family."""
    theta, scaling = hf_rope(fields, path)
    return {
        **_common(fields, path, period=2),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "attention_cap": fields.get("attn_logit_softcapping"),
    }


def gemma3_details(fields: dict[str, Any], path: Path) -> dict[str, Any]:
    """See hf_families.Family. An attention cap has no effect in transformers, so none here."""
    period = fields.get("sliding_window_pattern", fields.get("_sliding_window_pattern", 6))
    details = _common(fields, path, period=period) | {"qk_norm": True}
    full, sliding = _rope_by_layer_type(fields, path)
    theta, scaling = hf_rope(fields | full, path)
    sliding_theta, sliding_scaling = hf_rope(fields | sliding, path)
    if sliding_scaling != {"kind": "default"}:
        raise UnsupportedModel(f"{path}: a rope scaling of sliding_attention is not supported")
    return details | {
        "rope_theta": theta,
        "rope_scaling": scaling,
        "sliding_rope_theta": sliding_theta,
    }


def text_fields(fields: dict[str, Any], path: Path) -> dict[str, Any]:
    """The fields of the language model: gemma3's are nested, beside a vision tower that is left
    out; those of any other model are its own."""
    if fields.get("model_type") != "gemma3":
        return fields
    text = fields.get("text_config")
    if not isinstance(text, dict):
        raise CorruptSnapshot(f"{path}: a gemma3 model without text_config; the file is damaged")
    outer = {
        name: fields[name] for name in ("eos_token_id", "quantization_config") if name in fields
    }
    return {**text, "model_type": "gemma3_text", **outer}


def _common(fields: dict[str, Any], path: Path, *, period: Any) -> dict[str, Any]:
    if fields.get("use_bidirectional_attention"):
        raise UnsupportedModel(f"{path}: use_bidirectional_attention is not supported")
    bias = bool(fields.get("attention_bias", False))
    kinds = layer_types(fields, path)
    if kinds is None:
        kinds = layers_where(
            {**fields, "sliding_window_pattern": period},
            path,
            "sliding_window_pattern",
            lambda n, every: (n + 1) % max(every, 1) != 0,
        )
    window = fields.get("sliding_window")
    scalar = fields.get("query_pre_attn_scalar")
    if not isinstance(scalar, int | float) or not 0 < scalar < 1e9:
        raise CorruptSnapshot(f"{path}: query_pre_attn_scalar is not a positive number")
    return {
        "architecture": "gemma",
        **({} if window is None else sliding_fields(window, kinds)),
        "attention_scale": scalar**-0.5,
        "logit_cap": fields.get("final_logit_softcapping"),
        "qkv_bias": bias,
        "o_bias": bias,
    }


def _rope_by_layer_type(
    fields: dict[str, Any], path: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rotary fields of full and of sliding layers, as hf_rope takes them. New files nest
    `rope_parameters` by layer type; in old ones `rope_scaling` is the full layers'."""
    nested = fields.get("rope_parameters") or {}
    old = fields.get("rope_scaling") or {}
    if not isinstance(nested, dict) or not isinstance(old, dict):
        raise CorruptSnapshot(f"{path}: rope_parameters is not an object by layer type")
    full, sliding = (nested.get(kind) or {} for kind in ("full_attention", "sliding_attention"))
    if not isinstance(full, dict) or not isinstance(sliding, dict):
        raise CorruptSnapshot(f"{path}: rope_parameters is not an object by layer type")
    full_theta = fields.get("rope_theta", _FULL_THETA)
    sliding_theta = fields.get("rope_local_base_freq", _SLIDING_THETA)
    return (
        {"rope_scaling": None, "rope_parameters": {"rope_theta": full_theta, **full, **old}},
        {"rope_scaling": None, "rope_parameters": {"rope_theta": sliding_theta, **sliding}},
    )
