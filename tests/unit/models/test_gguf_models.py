"""GGUF files of Gemma, Phi and mixtures of experts, written with the gguf package's own names from
checkpoints of transformers, against transformers."""

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from tiny_models import PROMPTS, SIZES, reference, run, save_checkpoint, sealed

EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
GEMMA = {"head_dim": 16, "sliding_window": 5}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.7],
    "long_factor": [1.5, 3.0, 5.0, 9.0],
}
MOE_KEYS = {"expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": 24}
# Of each: the architecture in GGUF, transformers' config, and the keys that are not every model's.
MODELS: dict[str, tuple[str, transformers.PretrainedConfig, dict[str, Any]]] = {
    "gemma2": (
        "gemma2",
        transformers.Gemma2Config(**SIZES, **GEMMA, query_pre_attn_scalar=16),
        {
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "attention.sliding_window": 5,
        },
    ),
    "gemma3": (
        "gemma3",
        transformers.Gemma3TextConfig(
            **(SIZES | {"num_hidden_layers": 7}),
            **GEMMA,
            query_pre_attn_scalar=16,
            rope_parameters={
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        ),
        {
            "attention.sliding_window": 5,
            "rope.freq_base": 1e6,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
    "phi3": (
        "phi3",
        transformers.Phi3Config(**SIZES, pad_token_id=0, sliding_window=6),
        {
            "attention.sliding_window": 6,
            "rope.dimension_count": 8,
        },
    ),
    "phi3-longrope": (
        "phi3",
        transformers.Phi3Config(
            **SIZES, pad_token_id=0, original_max_position_embeddings=256, rope_parameters=LONGROPE
        ),
        {"rope.dimension_count": 8, "rope.scaling.original_context_length": 256},
    ),
    "phi3-partial": (
        "phi3",
        transformers.Phi3Config(
            **SIZES,
            pad_token_id=0,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
            },
        ),
        {"rope.dimension_count": 4},
    ),
    "mixtral": (
        "llama",
        transformers.MixtralConfig(**SIZES, num_local_experts=4),
        {"expert_count": 4, "expert_used_count": 2, "rope.freq_base": 1e6},
    ),
    "qwen2-moe": (
        "qwen2moe",
        transformers.Qwen2MoeConfig(**SIZES, **EXPERTS, shared_expert_intermediate_size=40),
        {**MOE_KEYS, "expert_shared_feed_forward_length": 40},
    ),
    "qwen3-moe": (
        "qwen3moe",
        transformers.Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=16, norm_topk_prob=True),
        MOE_KEYS,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name, tmp_path):
    architecture, config, keys = MODELS[name]
    theirs = save_checkpoint(config, tmp_path / "model")
    write_gguf(tmp_path, architecture, config, keys)
    ours = sealed(tmp_path / "model.gguf", tmp_path / "cache")
    for budget in (64, 5):
        logits = run(ours, PROMPTS, budget=budget, steps=4)
        for prompt, rows in zip(PROMPTS, logits, strict=True):
            torch.testing.assert_close(rows, reference(theirs, prompt, 4), atol=3e-4, rtol=1e-4)


def write_gguf(
    folder: Path, architecture: str, config: transformers.PretrainedConfig, keys: dict[str, Any]
) -> None:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    every: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": 10000.0,
    }
    writer = gguf.GGUFWriter(folder / "model.gguf", architecture)
    for key, value in (every | keys).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add[type(value)](f"{architecture}.{key}", value)
    add_tokenizer(writer, config.vocab_size)
    for name, tensor in gguf_tensors(folder / "model", architecture, config).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: gguf.GGUFWriter, size: int) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"t{n}" for n in range(3, size))])
    writer.add_token_scores([0.0] * size)
    writer.add_token_types([2, 3, 3, *([1] * (size - 3))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def gguf_tensors(
    folder: Path, architecture: str, config: transformers.PretrainedConfig
) -> dict[str, np.ndarray]:
    """The checkpoint's tensors as llama.cpp's convert_hf_to_gguf.py writes them."""
    architectures = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(architectures[architecture], config.num_hidden_layers)
    tensors: dict[str, np.ndarray] = {}
    experts: dict[str, dict[int, torch.Tensor]] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor
        if match := re.fullmatch(r"(.*experts)\.(\d+)\.(\w+)\.weight", name):
            base = (
                match[1]
                .replace("model.layers", "layers")
                .replace("block_sparse_moe", "feed_forward")
                if architecture == "llama"
                else match[1]
            )
            experts.setdefault(f"{base}.{match[3]}.weight", {})[int(match[2])] = tensor
            continue
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            values = values + 1
        if architecture == "llama" and re.search(r"\.[qk]_proj", name):
            heads = config.num_attention_heads
            heads = heads if "q_proj" in name else config.num_key_value_heads
            values = tensor.view(heads, 2, -1, tensor.shape[1]).transpose(1, 2)
            values = values.reshape(tensor.shape)
        tensors[gguf_name(names, name)] = values.squeeze().numpy()
    for name, by_number in experts.items():
        stacked = torch.stack([by_number[n] for n in range(len(by_number))])
        tensors[gguf_name(names, name)] = stacked.numpy()
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        for length in ("long", "short"):
            factors = np.array(rope[f"{length}_factor"], dtype=np.float32)
            tensors[f"rope_factors_{length}.weight"] = factors
    return tensors


def gguf_name(names: gguf.TensorNameMap, name: str) -> str:
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found
