"""A Hugging Face folder's encoder of the BERT family: its config, and its tensors' names.

transformers: models/{bert,roberta,xlm_roberta}/, also for the defaults.
"""

import re
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from glowplug.errors import CorruptSnapshot, UnsupportedModel
from snapshot.encoder_config import EncoderConfig

ENCODER_FAMILIES = ("bert", "roberta", "xlm-roberta")

_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
_TOP = {
    "embed": "embeddings.word_embeddings.weight",
    "positions": "embeddings.position_embeddings.weight",
    "token_types": "embeddings.token_type_embeddings.weight",
    "embed_norm": "embeddings.LayerNorm.weight",
    "embed_norm_bias": "embeddings.LayerNorm.bias",
}
_LAYER = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "o": "attention.output.dense",
    "attn_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "mlp_norm": "output.LayerNorm",
}
# A pooler, the heads of pretraining, and buffers that older versions saved.
_NOT_USED = re.compile(r"(bert\.|roberta\.)?(pooler|cls|lm_head)\..*|.*embeddings\.position_ids")


def encoder_config(fields: dict[str, Any], path: Path) -> EncoderConfig:
    """The config in `fields`, the content of config.json at `path`.

    Raises:
        UnsupportedModel: not an encoder, or with parts that are not known.
        CorruptSnapshot: a field is missing or impossible.
    """
    family = str(fields.get("model_type"))
    activation = fields.get("hidden_act", "gelu")
    if activation not in _ACTIVATIONS:
        raise UnsupportedModel(f"{path}: hidden_act {str(activation)[:60]!r} is not supported")
    kind = fields.get("position_embedding_type", "absolute")
    if kind != "absolute":
        raise UnsupportedModel(
            f"{path}: position_embedding_type {str(kind)[:60]!r} is not supported"
        )
    for flag in ("is_decoder", "add_cross_attention", "quantization_config"):
        if fields.get(flag):
            raise UnsupportedModel(f"{path}: {flag} is not supported for {family}")
    rows = fields.get("max_position_embeddings", 512)
    offset = 0 if family == "bert" else _padding_id(fields, path) + 1
    try:
        return EncoderConfig.model_validate(
            {
                "family": family,
                "vocab_size": fields.get("vocab_size"),
                "hidden_size": fields.get("hidden_size"),
                "intermediate_size": fields.get("intermediate_size"),
                "num_layers": fields.get("num_hidden_layers"),
                "num_heads": fields.get("num_attention_heads"),
                "position_rows": rows,
                "position_offset": offset,
                "max_positions": rows - offset if isinstance(rows, int) else rows,
                "token_types": fields.get("type_vocab_size", 2),
                "norm_eps": fields.get("layer_norm_eps", 1e-12),
                "activation": _ACTIVATIONS[activation],
            }
        )
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][:1])
        message = first["msg"].removeprefix("Value error, ")
        raise CorruptSnapshot(
            f"{path}: {field + ': ' if field else ''}{message}; the file is damaged or not a model"
        ) from None


def _padding_id(fields: dict[str, Any], path: Path) -> int:
    """RoBERTa counts positions from the one after the padding token's id."""
    padding = fields.get("pad_token_id", 1)
    if not isinstance(padding, int) or not 0 <= padding < 1 << 16:
        raise CorruptSnapshot(f"{path}: pad_token_id {str(padding)[:40]} is not a token's id")
    return padding


def encoder_names(stored: Container[str]) -> Callable[[str], str]:
    """The namer of parts, for a checkpoint with these tensors: a model with a head on it calls the
    encoder `bert.` or `roberta.`.

    `layers.0.q_bias` -> `bert.encoder.layer.0.attention.self.query.bias`.
    """
    prefix = next((each for each in ("bert.", "roberta.") if each + _TOP["embed"] in stored), "")

    def name_of(part: str) -> str:
        if part in _TOP:
            return prefix + _TOP[part]
        _, layer, last = part.split(".")
        stem = last.removesuffix("_bias")
        suffix = "bias" if stem != last else "weight"
        return f"{prefix}encoder.layer.{layer}.{_LAYER[stem]}.{suffix}"

    return name_of


def is_no_encoder_weight(name: str) -> bool:
    """Whether a tensor takes no part in embeddings."""
    return bool(_NOT_USED.fullmatch(name))
