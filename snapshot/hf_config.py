"""Hugging Face config.json -> ModelConfig, read as transformers 5 reads it.

What all model types share; hf_families.py has what each of them is by itself.
"""

from pathlib import Path
from typing import Any

from glowplug.errors import UnsupportedModel
from snapshot.hf_encoder import ENCODER_FAMILIES
from snapshot.hf_families import FAMILIES
from snapshot.hf_gemma import text_fields
from snapshot.model_config import ModelConfig, checked_config


def hf_config(fields: dict[str, Any], path: Path) -> ModelConfig:
    """The config in `fields`, the content of config.json at `path`.

    Raises:
        UnsupportedModel: another model type, quantised weights, or an unknown rope kind.
        CorruptSnapshot: a field is missing or impossible.
    """
    fields = text_fields(fields, path)
    name = str(fields.get("model_type"))
    family = FAMILIES.get(name)
    if family is None:
        raise UnsupportedModel(
            f"{path}: the model type {name[:60]!r} is not supported; these are: "
            f"{', '.join((*FAMILIES, *ENCODER_FAMILIES))}, and the language model of gemma3"
        )
    if fields.get("quantization_config"):
        raise UnsupportedModel(
            f"{path}: the weights are quantised (quantization_config); give the unquantised model, "
            "or a GGUF file of it"
        )
    field, expected = family.activation
    activation = fields.get(field) or expected
    if activation != expected:
        raise UnsupportedModel(f"{path}: {field} {str(activation)[:60]!r} is not supported")

    fields = {**family.defaults, **fields}
    heads = fields.get("num_attention_heads")
    hidden = fields.get("hidden_size")
    head_dim = fields.get("head_dim")
    if head_dim is None and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
        head_dim = hidden // heads
    kv_heads = fields["num_key_value_heads"]
    return checked_config(
        str(path),
        {
            "family": name,
            "vocab_size": fields.get("vocab_size"),
            "hidden_size": hidden,
            "intermediate_size": fields.get("intermediate_size"),
            "num_layers": fields.get("num_hidden_layers"),
            "num_heads": heads,
            "num_kv_heads": heads if kv_heads is None else kv_heads,
            "head_dim": head_dim,
            "rms_norm_eps": fields.get("rms_norm_eps", 1e-6),
            "max_positions": fields["max_position_embeddings"],
            "tie_embeddings": bool(fields.get("tie_word_embeddings", False)),
            **family.details(fields, path),
        },
    )
