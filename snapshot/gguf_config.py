"""GGUF metadata -> ModelConfig. Key names: llama.cpp's, see gguf.constants.Keys."""

import math
from collections.abc import Mapping
from typing import Any

from glowplug.errors import UnsupportedModel
from snapshot.gguf_families import FAMILIES, Facts
from snapshot.gguf_header import GgufHeader
from snapshot.gguf_metadata import Metadata
from snapshot.llama3_rope import fit_llama3_rope
from snapshot.model_config import ModelConfig, checked_config

_MAX_LAYERS = 1 << 10

# The tensors that say what each rotary frequency is divided by.
ROPE_FREQS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_TENSORS = (ROPE_FREQS, LONG_FACTORS, SHORT_FACTORS)


def gguf_config(
    header: GgufHeader, divisors: Mapping[str, tuple[float, ...]], name: str
) -> ModelConfig:
    """The config that a file's metadata and tensor names imply.

    `divisors`: those of ROPE_TENSORS that the file has, with their values.

    Raises:
        CorruptSnapshot: a key is missing or impossible.
        UnsupportedModel: another architecture, or an unknown rope kind.
    """
    metadata = Metadata(header.metadata, name)
    family = metadata.text("general.architecture")
    if family not in FAMILIES:
        raise UnsupportedModel(
            f"{name}: the architecture {family[:60]!r} is not supported; these are: "
            f"{', '.join(FAMILIES)} (Mistral and Mixtral models are llama in GGUF)"
        )
    kind = metadata.text("general.type", "model")
    if kind != "model":
        raise UnsupportedModel(
            f"{name}: holds a model's {kind[:60]!r}, not the model; give the model"
        )
    if metadata.integer("split.count", 1) > 1:
        raise UnsupportedModel(
            f"{name}: one part of a split model; merge the parts first (llama-gguf-split --merge)"
        )

    heads = metadata.integer(f"{family}.attention.head_count")
    hidden = metadata.integer(f"{family}.embedding_length")
    head_dim = metadata.integer(f"{family}.attention.key_length", hidden // max(heads, 1))
    rotary_dim = metadata.integer(f"{family}.rope.dimension_count", head_dim)
    sizes = {
        "attention.value_length": metadata.integer(f"{family}.attention.value_length", head_dim)
    }
    if family != "phi3":
        sizes["rope.dimension_count"] = rotary_dim
    for key, size in sizes.items():
        if size != head_dim:
            raise UnsupportedModel(
                f"{name}: {family}.{key} differs from the head size {head_dim}; such models are "
                "not supported"
            )
    embedding = header.tensors.get("token_embd.weight")
    tensors = header.tensors.keys()
    theta = metadata.number(f"{family}.rope.freq_base", 10_000.0)
    window = metadata.integer(f"{family}.attention.sliding_window", 0)
    layers = metadata.integer(f"{family}.block_count")
    facts = Facts(
        metadata=metadata,
        prefix=family,
        tensors=tensors,
        layers=layers if 0 < layers <= _MAX_LAYERS else 0,  # refused below
        heads=max(heads, 1),
        head_dim=head_dim,
        hidden=hidden,
    )
    return checked_config(
        name,
        {
            "family": family,
            "vocab_size": metadata.integer(
                f"{family}.vocab_size", embedding.shape[0] if embedding else None
            ),
            "hidden_size": hidden,
            "intermediate_size": metadata.integer(f"{family}.feed_forward_length"),
            "num_layers": layers,
            "num_heads": heads,
            "num_kv_heads": metadata.integer(f"{family}.attention.head_count_kv", heads),
            "head_dim": head_dim,
            "rms_norm_eps": metadata.number(f"{family}.attention.layer_norm_rms_epsilon"),
            "rope_theta": theta,
            "rope_scaling": _rope_scaling(
                metadata, family, theta=theta, head_dim=head_dim, divisors=divisors
            ),
            "rotary_dim": None if rotary_dim == head_dim else rotary_dim,
            "max_positions": metadata.integer(f"{family}.context_length"),
            "tie_embeddings": "output.weight" not in tensors,
            "qkv_bias": "blk.0.attn_q.bias" in tensors,
            "o_bias": "blk.0.attn_output.bias" in tensors,
            "mlp_bias": "blk.0.ffn_down.bias" in tensors,
            "qk_norm": "blk.0.attn_q_norm.weight" in tensors,
            "sliding_window": window or None,
            **FAMILIES[family](facts),
        },
    )


def _rope_scaling(
    metadata: Metadata,
    family: str,
    *,
    theta: float,
    head_dim: int,
    divisors: Mapping[str, tuple[float, ...]],
) -> dict[str, Any]:
    prefix = f"{family}.rope.scaling"
    kind = metadata.text(f"{prefix}.type", "none")
    factor = metadata.number(
        f"{prefix}.factor", metadata.number(f"{family}.rope.scale_linear", 1.0)
    )
    if kind == "none" and factor not in (0.0, 1.0) and f"{prefix}.type" not in metadata:
        kind = "linear"  # files from before the type existed
    if LONG_FACTORS in divisors or SHORT_FACTORS in divisors:
        return _longrope(metadata, family, divisors)
    if any(divisor != 1.0 for divisor in divisors.get(ROPE_FREQS, ())):
        scaling = fit_llama3_rope(divisors[ROPE_FREQS], theta=theta, head_dim=head_dim)
        if kind != "none" or scaling is None:
            raise UnsupportedModel(
                f"{metadata.name}: rope_freqs.weight is not Llama 3's scaling; seal the model from "
                "its Hugging Face folder"
            )
        return scaling.model_dump()
    if kind == "none":
        return {}
    if kind == "linear":
        return {"kind": "linear", "factor": factor}
    if kind == "yarn":
        return _yarn(metadata, prefix, factor)
    raise UnsupportedModel(
        f"{metadata.name}: the rope scaling {kind[:60]!r} is not supported; these are: none, "
        "linear, yarn, longrope and Llama 3's"
    )


def _longrope(
    metadata: Metadata, family: str, divisors: Mapping[str, tuple[float, ...]]
) -> dict[str, Any]:
    original = f"{family}.rope.scaling.original_context_length"
    return {
        "kind": "longrope",
        "original_max_positions": metadata.integer(original),
        "attention_factor": metadata.number(f"{family}.rope.scaling.attn_factor", 1.0),
        "short_factors": divisors.get(SHORT_FACTORS, ()),
        "long_factors": divisors.get(LONG_FACTORS, ()),
    }


def _yarn(metadata: Metadata, prefix: str, factor: float) -> dict[str, Any]:
    """llama.cpp scales cos and sin by attn_factor * (1 + 0.1 ln factor), as transformers does."""
    for key in ("yarn_log_multiplier", "yarn_ext_factor"):
        default = 1.0 if key == "yarn_ext_factor" else 0.0
        if metadata.number(f"{prefix}.{key}", default) != default:
            raise UnsupportedModel(f"{metadata.name}: {prefix}.{key} is not supported")
    extra = metadata.number(
        f"{prefix}.yarn_attn_factor", metadata.number(f"{prefix}.attn_factor", 1.0)
    )
    mscale = 0.1 * math.log(factor) + 1.0 if factor > 1.0 else 1.0
    return {
        "kind": "yarn",
        "factor": factor,
        "original_max_positions": metadata.integer(f"{prefix}.original_context_length"),
        "beta_fast": metadata.number(f"{prefix}.yarn_beta_fast", 32.0),
        "beta_slow": metadata.number(f"{prefix}.yarn_beta_slow", 1.0),
        "attention_factor": None if extra == 1.0 else extra * mscale,
    }
