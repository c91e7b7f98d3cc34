"""What Hugging Face checkpoints call the parts of a model (layout.part_shapes).

A part that is fused in the checkpoint shares its name with those it is fused with.
"""

import re
from collections.abc import Callable, Container

from snapshot.model_config import ModelConfig

_TOP = {"embed": "{model}embed_tokens", "norm": "{model}norm", "lm_head": "{head}"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "router": "mlp.gate",
    "experts.N.gate": "mlp.experts.N.gate_proj",
    "experts.N.up": "mlp.experts.N.up_proj",
    "experts.N.down": "mlp.experts.N.down_proj",
    "shared.gate": "mlp.shared_expert.gate_proj",
    "shared.up": "mlp.shared_expert.up_proj",
    "shared_down": "mlp.shared_expert.down_proj",
    "shared_gate": "mlp.shared_expert_gate",
}
_GEMMA = {
    "post_attn_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
}
_OF_FAMILY: dict[str, dict[str, str]] = {
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA,
    "phi3": {
        **dict.fromkeys(("q", "k", "v"), "self_attn.qkv_proj"),
        **dict.fromkeys(("gate", "up"), "mlp.gate_up_proj"),
    },
    "mixtral": {
        "router": "block_sparse_moe.gate",
        "experts.N.gate": "block_sparse_moe.experts.N.w1",
        "experts.N.up": "block_sparse_moe.experts.N.w3",
        "experts.N.down": "block_sparse_moe.experts.N.w2",
    },
}
# Where the decoder and its head are; the last two beside a vision tower, in different versions.
_ROOTS = (
    ("model.", "lm_head"),
    ("language_model.model.", "language_model.lm_head"),
    ("model.language_model.", "lm_head"),
    ("", "lm_head"),  # saved without a head, to embed only
)
_NOT_WEIGHTS = re.compile(
    r".*rotary_emb\.inv_freq"  # saved by old versions; follows from the config
    r"|(model\.)?(vision_tower|multi_modal_projector)\..*"  # only text is served
)


def hf_names(config: ModelConfig, stored: Container[str]) -> Callable[[str], str]:
    """The namer of parts, for a checkpoint with these tensors.

    `layers.0.q_bias` -> `model.layers.0.self_attn.q_proj.bias`.
    """
    layer_names = _LAYER | _OF_FAMILY.get(config.family, {})
    prefix, head = next(
        (root for root in _ROOTS if f"{root[0]}embed_tokens.weight" in stored), _ROOTS[0]
    )

    def name_of(part: str) -> str:
        stem = part.removesuffix("_bias")
        suffix = "bias" if stem != part else "weight"
        if stem in _TOP:
            return f"{_TOP[stem].format(model=prefix, head=head)}.{suffix}"
        _, layer, last = stem.split(".", 2)
        expert = re.fullmatch(r"experts\.(\d+)\.(\w+)", last)
        if expert is None:
            return f"{prefix}layers.{layer}.{layer_names[last]}.{suffix}"
        name = layer_names[f"experts.N.{expert[2]}"].replace("N", expert[1])
        return f"{prefix}layers.{layer}.{name}.{suffix}"

    return name_of


def is_no_weight(name: str, config: ModelConfig) -> bool:
    """Whether a tensor need not be read."""
    if config.tie_embeddings and name in {f"{head}.weight" for _, head in _ROOTS}:
        return True  # a copy of the embedding, written by old versions
    return _NOT_WEIGHTS.fullmatch(name) is not None
