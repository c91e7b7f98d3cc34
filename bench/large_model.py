"""A Llama checkpoint of 1.2 GB with random weights and SmolLM2's tokenizer, made once.

It shows how a start grows with the bytes of its weights. Kept in the temporary folder.
"""

import json
import os
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from servers import MODEL

from snapshot.node_cache import NodeCache
from snapshot.restore import restore
from snapshot.seal import seal

LAYERS, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM = 24, 2048, 2048, 32, 4, 64
_SEED = 20240229
_SCALE = 0.02


def large_model() -> Path:
    """The checkpoint's folder, in Hugging Face's format."""
    root = Path(tempfile.gettempdir()) / f"glowplug-bench-{os.getuid()}"
    folder = root / f"llama-{LAYERS}x{HIDDEN}"
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    cache = NodeCache(root / "cache")
    digest = seal(MODEL, dtype="bfloat16", cache=cache, progress=lambda _: None)
    manifest = restore(cache.path(digest)).manifest
    (folder / "tokenizer.json").write_bytes((cache.path(digest) / "tokenizer.json").read_bytes())
    settings = {
        "chat_template": manifest.chat.template,
        "eos_token": manifest.chat.eos_token,
        "bos_token": manifest.chat.bos_token,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    save_file(_weights(manifest.config.vocab_size), folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": manifest.config.vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100_000.0,
        "max_position_embeddings": 2048,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": manifest.bos_token_id,
        "eos_token_id": list(manifest.generation.eos_token_ids),
        "torch_dtype": "bfloat16",
    }
    partial = folder / "config.json.partial"
    partial.write_text(json.dumps(config))
    partial.rename(folder / "config.json")  # last: now it is complete
    return folder


def _weights(vocab_size: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(_SEED)

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * _SCALE).bfloat16()

    tensors = {"model.embed_tokens.weight": random(vocab_size, HIDDEN)}
    for n in range(LAYERS):
        layer = f"model.layers.{n}"
        tensors |= {
            f"{layer}.input_layernorm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16),
            f"{layer}.self_attn.q_proj.weight": random(HEADS * HEAD_DIM, HIDDEN),
            f"{layer}.self_attn.k_proj.weight": random(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{layer}.self_attn.v_proj.weight": random(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{layer}.self_attn.o_proj.weight": random(HIDDEN, HEADS * HEAD_DIM),
            f"{layer}.post_attention_layernorm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16),
            f"{layer}.mlp.gate_proj.weight": random(INTERMEDIATE, HIDDEN),
            f"{layer}.mlp.up_proj.weight": random(INTERMEDIATE, HIDDEN),
            f"{layer}.mlp.down_proj.weight": random(HIDDEN, INTERMEDIATE),
        }
    return tensors | {"model.norm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16)}
