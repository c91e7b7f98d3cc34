"""The names and shapes of a sealed encoder's weights; layout.py dispatches here.

Row-major `[out, in]` as `torch.nn.functional.linear` takes them; H hidden:

    embed                    [vocab, H]
    positions                [position_rows, H]
    token_types              [token_types, H]
    embed_norm, …_bias       [H]
    layers.N.qkv             [3·H, H]            rows: all of q, then k, then v
    layers.N.qkv_bias        [3·H]
    layers.N.o, …_bias       [H, H], [H]
    layers.N.attn_norm, …_bias  [H]              after attention and its residual
    layers.N.up, …_bias      [intermediate, H], [intermediate]
    layers.N.down, …_bias    [H, intermediate], [H]
    layers.N.mlp_norm, …_bias   [H]              after the MLP and its residual
"""

from snapshot.encoder_config import EncoderConfig


def encoder_tensor_shapes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor with its shape, in the order the forward pass reads them."""
    hidden, inter = config.hidden_size, config.intermediate_size
    layer = {
        "qkv": (3 * hidden, hidden),
        "o": (hidden, hidden),
        "attn_norm": (hidden,),
        "up": (inter, hidden),
        "down": (hidden, inter),
        "mlp_norm": (hidden,),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "embed": (config.vocab_size, hidden),
        "positions": (config.position_rows, hidden),
        "token_types": (config.token_types, hidden),
        "embed_norm": (hidden,),
        "embed_norm_bias": (hidden,),
    }
    for n in range(config.num_layers):
        for name, shape in layer.items():
            shapes[f"layers.{n}.{name}"] = shape
            shapes[f"layers.{n}.{name}_bias"] = (shape[0],)
    return shapes


def encoder_fused_rows(config: EncoderConfig) -> dict[str, dict[str, int]]:
    """The parts of each fused tensor and their rows, top to bottom."""
    return {"qkv": dict.fromkeys(("q", "k", "v"), config.hidden_size)}
