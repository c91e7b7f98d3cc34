"""The names and shapes of a sealed decoder's weights: the seam between sealing and the runtime.

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
the snapshot's dtype.
"""

from snapshot.model_config import ModelConfig


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a sealed model with its shape, in the order the forward pass reads them."""
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


def part_shapes(config: ModelConfig) -> dict[str, dict[str, tuple[int, ...]]]:
    """For every sealed tensor the parts that are stacked into it, top to bottom, and their shapes.

    A source holds parts (`layers.0.q`, `layers.0.gate_bias`, ...); a tensor that is not fused is
    its own only part.
    """
    kv_rows = config.num_kv_heads * config.head_dim
    rows = {
        "qkv": {"q": config.num_heads * config.head_dim, "k": kv_rows, "v": kv_rows},
        "gate_up": {"gate": config.intermediate_size, "up": config.intermediate_size},
    }
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
