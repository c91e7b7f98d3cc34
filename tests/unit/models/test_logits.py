"""The models against transformers, on tiny random checkpoints of every family and rope kind."""

import pytest
import torch
import transformers
from tiny_models import PROMPTS, SIZES, reference, run, save_checkpoint, sealed

ROPES = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


def llama(**changes):
    return transformers.LlamaConfig(**(SIZES | changes))


def mistral(**changes):
    return transformers.MistralConfig(**(SIZES | changes))


def qwen2(**changes):
    return transformers.Qwen2Config(**(SIZES | changes))


def qwen3(**changes):
    return transformers.Qwen3Config(**(SIZES | {"head_dim": 16} | changes))


CONFIGS = {
    "llama": llama(),
    "llama-tied": llama(tie_word_embeddings=True),
    "llama-biases": llama(attention_bias=True, mlp_bias=True),
    "llama-head-dim": llama(head_dim=24),
    "llama-one-kv-head": llama(num_key_value_heads=1),
    "mistral": mistral(sliding_window=None),
    "mistral-window": mistral(sliding_window=7),
    "qwen2": qwen2(),
    "qwen2-window": qwen2(use_sliding_window=True, sliding_window=9, max_window_layers=1),
    "qwen3": qwen3(),
    "qwen3-tied": qwen3(tie_word_embeddings=True),
    **{f"llama-rope-{kind}": llama(rope_parameters=rope) for kind, rope in ROPES.items()},
    **{f"qwen3-rope-{kind}": qwen3(rope_parameters=rope) for kind, rope in ROPES.items()},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(name, tmp_path):
    theirs = save_checkpoint(CONFIGS[name], tmp_path / "model")
    ours = sealed(tmp_path / "model", tmp_path / "cache")
    for budget in (64, 5):  # whole prompts, and chunks that mix with decoding
        logits = run(ours, PROMPTS, budget=budget, steps=6)
        for prompt, rows in zip(PROMPTS, logits, strict=True):
            torch.testing.assert_close(rows, reference(theirs, prompt, 6), atol=1e-3, rtol=1e-4)


def test_bfloat16_is_no_further_from_float32_than_transformers(tmp_path):
    theirs = save_checkpoint(CONFIGS["llama"], tmp_path / "model")
    exact = torch.cat([reference(theirs, prompt, 1) for prompt in PROMPTS])
    theirs_rounded = theirs.bfloat16()
    rounded = torch.cat([reference(theirs_rounded, prompt, 1) for prompt in PROMPTS])
    ours = sealed(tmp_path / "model", tmp_path / "cache", "bfloat16")
    logits = run(ours, PROMPTS, budget=64, steps=1)[:, 0]
    assert 0 < (logits - exact).pow(2).mean() <= 1.05 * (rounded - exact).pow(2).mean()
