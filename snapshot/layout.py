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
    layers.N.post_attn_norm [H]                         gemma
    layers.N.mlp_norm     [H]
    layers.N.gate_up      [2·intermediate, H]           rows: all of gate, then up
    layers.N.gate_up_bias [2·intermediate]              if mlp_bias
    layers.N.down         [H, intermediate]
    layers.N.down_bias    [H]                           if mlp_bias
    layers.N.post_mlp_norm [H]                          gemma
    norm                  [H]
    lm_head               [vocab, H]                    unless tie_embeddings

A layer with E experts has, in place of gate_up and down (I experts.intermediate_size, S
shared_intermediate_size):

    layers.N.router            [E, H]
    layers.N.experts_gate_up   [E·2·I, H]   rows: the first expert's gate, its up, then the next's
    layers.N.experts_down      [E·H, I]     rows: the first expert's, then the next's
    layers.N.shared_gate_up    [2·S, H]     if there is a shared expert
    layers.N.shared_down       [H, S]       likewise
    layers.N.shared_gate       [1, H]       likewise

So an expert's weights are adjacent rows, and a step reads those of the chosen ones only. Gemma's
norms are kept as it stores them, as the difference from 1, which loses nothing in bfloat16.

Rotary halves are Hugging Face's (first half, second half), not interleaved pairs. Every tensor has
the snapshot's dtype, but for those that `weight_bits` names in a quantised snapshot.
"""

from typing import Literal

from glowplug.spec import Quantization
from snapshot.encoder_config import AnyConfig, EncoderConfig
from snapshot.encoder_layout import encoder_fused_rows, encoder_tensor_shapes
from snapshot.model_config import Experts, ModelConfig

# Of quantised weights; snapshot/quantization.py describes how they lie.
GROUP = 32  # weights of a row that share a scale
TILE_ROWS = 16  # rows that lie interleaved
Bits = Literal[4, 8]

_PROJECTIONS = frozenset(
    (
        *("qkv", "o", "gate_up", "up", "down"),
        *("experts_gate_up", "experts_down", "shared_gate_up", "shared_down"),
    )
)
_VOCABULARY = frozenset(("embed", "lm_head"))  # 8 bits in any case: 4 would cost much accuracy


def tensor_shapes(config: AnyConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a sealed model with its shape, in the order the forward pass reads them."""
    if isinstance(config, EncoderConfig):
        return encoder_tensor_shapes(config)
    hidden, head_dim = config.hidden_size, config.head_dim
    qkv_rows = (config.num_heads + 2 * config.num_kv_heads) * head_dim
    post_norms = config.architecture == "gemma"
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
        if post_norms:
            layer["post_attn_norm"] = (hidden,)
        layer["mlp_norm"] = (hidden,)
        if config.experts is not None and config.has_experts(n):
            layer |= _expert_shapes(config.experts, hidden)
        else:
            layer |= _mlp_shapes(config)
        if post_norms:
            layer["post_mlp_norm"] = (hidden,)
        shapes |= {f"layers.{n}.{name}": shape for name, shape in layer.items()}
    shapes["norm"] = (hidden,)
    if not config.tie_embeddings:
        shapes["lm_head"] = (config.vocab_size, hidden)
    return shapes


def _mlp_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inter = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {"gate_up": (2 * inter, hidden)}
    if config.mlp_bias:
        shapes["gate_up_bias"] = (2 * inter,)
    shapes["down"] = (hidden, inter)
    if config.mlp_bias:
        shapes["down_bias"] = (hidden,)
    return shapes


def _expert_shapes(experts: Experts, hidden: int) -> dict[str, tuple[int, ...]]:
    count, inter, shared = (
        experts.count,
        experts.intermediate_size,
        experts.shared_intermediate_size,
    )
    shapes: dict[str, tuple[int, ...]] = {
        "router": (count, hidden),
        "experts_gate_up": (count * 2 * inter, hidden),
        "experts_down": (count * hidden, inter),
    }
    if shared is not None:
        shapes |= {
            "shared_gate_up": (2 * shared, hidden),
            "shared_down": (hidden, shared),
            "shared_gate": (1, hidden),
        }
    return shapes


def part_shapes(config: AnyConfig) -> dict[str, dict[str, tuple[int, ...]]]:
    """For every sealed tensor the parts that are stacked into it, top to bottom, and their shapes.

    A source holds parts (`layers.0.q`, `layers.0.gate_bias`, `layers.0.experts.3.up`, ...); a
    tensor that is not fused is its own only part.
    """
    rows = encoder_fused_rows(config) if isinstance(config, EncoderConfig) else _part_rows(config)
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


def _part_rows(config: ModelConfig) -> dict[str, dict[str, int]]:
    """For each kind of fused tensor its parts with the rows of each."""
    kv_rows = config.num_kv_heads * config.head_dim
    rows = {
        "qkv": {"q": config.num_heads * config.head_dim, "k": kv_rows, "v": kv_rows},
        "gate_up": {"gate": config.intermediate_size, "up": config.intermediate_size},
    }
    if config.experts is not None:
        inter, shared = config.experts.intermediate_size, config.experts.shared_intermediate_size
        numbers = range(config.experts.count)
        rows |= {
            "experts_gate_up": {
                f"experts.{n}.{part}": inter for n in numbers for part in ("gate", "up")
            },
            "experts_down": {f"experts.{n}.down": config.hidden_size for n in numbers},
        }
        if shared is not None:
            rows["shared_gate_up"] = {"shared.gate": shared, "shared.up": shared}
    return rows


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
