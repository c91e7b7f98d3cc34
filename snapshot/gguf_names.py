"""What GGUF files call the parts of a model (layout.part_shapes); see gguf.constants.TENSOR_NAMES.

A part that is fused in the file, as experts are, shares its name with those it is fused with.
"""

import re
from collections.abc import Callable

from snapshot.model_config import ModelConfig

_TOP = {"embed": "token_embd", "norm": "output_norm", "lm_head": "output"}
_LAYER = {
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "o": "attn_output",
    "post_attn_norm": "post_attention_norm",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "post_mlp_norm": "post_ffw_norm",
    "router": "ffn_gate_inp",
    "experts.N.gate": "ffn_gate_exps",
    "experts.N.up": "ffn_up_exps",
    "experts.N.down": "ffn_down_exps",
    "shared.gate": "ffn_gate_shexp",
    "shared.up": "ffn_up_shexp",
    "shared_down": "ffn_down_shexp",
    "shared_gate": "ffn_gate_inp_shexp",
}
_OF_FAMILY: dict[str, dict[str, str]] = {
    "phi3": {
        **dict.fromkeys(("q", "k", "v"), "attn_qkv"),
        **dict.fromkeys(("gate", "up"), "ffn_up"),
    },
}


def gguf_names(config: ModelConfig) -> Callable[[str], str]:
    """The namer of parts: `layers.0.q_bias` -> `blk.0.attn_q.bias`."""
    layer_names = _LAYER | _OF_FAMILY.get(config.family, {})

    def name_of(part: str) -> str:
        stem = part.removesuffix("_bias")
        suffix = "bias" if stem != part else "weight"
        if stem in _TOP:
            return f"{_TOP[stem]}.{suffix}"
        _, layer, last = stem.split(".", 2)
        last = re.sub(r"^experts\.\d+\.", "experts.N.", last)
        return f"blk.{layer}.{layer_names[last]}.{suffix}"

    return name_of


def stored_rows(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A tensor's shape as rows: experts [E, out, in] lie one after another, and the gate of the
    shared expert is a single row."""
    if len(shape) == 3:
        return (shape[0] * shape[1], shape[2])
    return (1, *shape) if name.endswith("ffn_gate_inp_shexp.weight") and len(shape) == 1 else shape
