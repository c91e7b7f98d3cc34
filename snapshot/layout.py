"""The names and shapes of a sealed model's weights: the seam between sealing and the runtime.

A decoder's are these, an encoder's those of encoder_layout.py.

Row-major `[out, in]` as `torch.nn.functional.linear` takes them; H hidden, D head_dim:

    embed                 [vocab, H]
    layers.N.attn_norm    [H]
    layers.N.qkv          [(heads + 2·kv_heads)·D, H]   rows: all of q, then k, then v
    layers.N.qkv_bias     [(heads + 2·kv_heads)·D]      if qkv_bias
    layers.N.q_norm       [D]                           if qk_norm
    layers.N.k_norm       [D]                           if qk_norm
    layers.N.o            [H, heads·D]
    layers.N.o_bias       [H]                           if o_bias
    layers.N.mlp_norm     [H]
    layers.N.gate_up      [2·intermediate, H]           rows: all of gate, then up
    layers.N.gate_up_bias [2·intermediate]              if mlp_bias
    layers.N.down         [H, intermediate]
    layers.N.down_bias    [H]                           if mlp_bias
    norm                  [H]
    lm_head               [vocab, H]                    unless tie_embeddings

Rotary halves are Hugging Face's (first half, second half), not interleaved pairs. Every tensor has
the snapshot's dtype, but for those that `weight_bits` names in a quantised snapshot.
"""

from typing import Literal

from glowplug.spec import Quantization
from snapshot.encoder_config import AnyConfig, EncoderConfig
from snapshot.encoder_layout import encoder_fused_rows, encoder_tensor_shapes
from snapshot.model_config import ModelConfig

# Of quantised weights; snapshot/quantization.py describes how they lie.
GROUP = 32  # weights of a row that share a scale
TILE_ROWS = 16  # rows that lie interleaved
Bits = Literal[4, 8]

_PROJECTIONS = frozenset(("qkv", "o", "gate_up", "up", "down"))
_VOCABULARY = frozenset(("embed", "lm_head"))  # 8 bits in any case: 4 would cost much accuracy


def tensor_shapes(config: AnyConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a sealed model with its shape, in the order the forward pass reads them."""
    if isinstance(config, EncoderConfig):
        return encoder_tensor_shapes(config)
    hidden, inter, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    qkv_rows = (config.num_heads + 2 * config.num_kv_heads) * head_dim
    shapes: dict[str, tuple[int, ...]] = {"embed": (config.vocab_size, hidden)}
    for n in range(config.num_layers):
        layer: dict[str, tuple[int, ...]] = {"attn_norm": (hidden,), "qkv": (qkv_rows, hidden)}
        if config.qkv_bias:
            layer["qkv_bias"] = (qkv_rows,)
        if config.qk_norm:
            layer |= {"q_norm": (head_dim,), "k_norm": (head_dim,)}
        layer["o"] = (hidden, config.num_heads * head_dim)
        if config.o_bias:
            layer["o_bias"] = (hidden,)
        layer |= {"mlp_norm": (hidden,), "gate_up": (2 * inter, hidden)}
        if config.mlp_bias:
            layer["gate_up_bias"] = (2 * inter,)
        layer["down"] = (hidden, inter)
        if config.mlp_bias:
            layer["down_bias"] = (hidden,)
        shapes |= {f"layers.{n}.{name}": shape for name, shape in layer.items()}
    shapes["norm"] = (hidden,)
    if not config.tie_embeddings:
        shapes["lm_head"] = (config.vocab_size, hidden)
    return shapes


def part_shapes(config: AnyConfig) -> dict[str, dict[str, tuple[int, ...]]]:
    """For every sealed tensor the parts that are stacked into it, top to bottom, and their shapes.

    A source holds parts (`layers.0.q`, `layers.0.gate_bias`, ...); a tensor that is not fused is
    its own only part.
    """
    rows = encoder_fused_rows(config) if isinstance(config, EncoderConfig) else _fused_rows(config)
    parts = {}
    for name, shape in tensor_shapes(config).items():
        prefix, _, last = name.rpartition(".")
        base = last.removesuffix("_bias")
        bias = last[len(base) :]
        parts[name] = (
            {f"{prefix}.{part}{bias}": (count, *shape[1:]) for part, count in rows[base].items()}
            if base in rows
            else {name: shape}
        )
    return parts


def _fused_rows(config: ModelConfig) -> dict[str, dict[str, int]]:
    """The parts of each fused tensor and their rows, top to bottom."""
    kv_rows = config.num_kv_heads * config.head_dim
    return {
        "qkv": {"q": config.num_heads * config.head_dim, "k": kv_rows, "v": kv_rows},
        "gate_up": {"gate": config.intermediate_size, "up": config.intermediate_size},
    }


def weight_bits(name: str, shape: tuple[int, ...], quantization: Quantization) -> Bits | None:
    """How wide a tensor's weights are sealed; None: as numbers of the snapshot's dtype.

    Norms and biases stay numbers, and so does a matrix whose rows are not whole groups.
    """
    last = name.rpartition(".")[2]
    if quantization == "none" or len(shape) < 2 or shape[-1] % GROUP:
        return None
    if last in _PROJECTIONS:
        return 4 if quantization == "int4" else 8
    return 8 if last in _VOCABULARY else None


def packed_bytes(rows: int, columns: int, bits: Bits) -> int:
    """The size of a quantised weight. `columns` is a multiple of GROUP."""
    group_bytes = GROUP * bits // 8 + (4 if bits == 4 else 2)
    return -(-rows // TILE_ROWS) * TILE_ROWS * (columns // GROUP) * group_bytes
