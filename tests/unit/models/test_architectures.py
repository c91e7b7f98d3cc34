"""Gemma, Phi and mixtures of experts against transformers, on tiny random checkpoints."""

import pytest
import torch
import transformers
from tiny_models import PROMPTS, SIZES, bind, reference, run, save_checkpoint, sealed

from runtime.kernels.cpu_kernels import CpuKernels, cpu_kernels_supported
from runtime.kernels.torch_kernels import TorchKernels
from runtime.models import llama

needs_cpu_kernels = pytest.mark.skipif(
    not cpu_kernels_supported(head_dim=32), reason="needs AVX-512 BF16 and the built extension"
)
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.7],
    "long_factor": [1.5, 3.0, 5.0, 9.0],
}


def gemma2(**changes):
    own = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 7}
    return transformers.Gemma2Config(**(SIZES | own | changes))


def gemma3(**changes):
    own = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 5}
    return transformers.Gemma3TextConfig(**(SIZES | own | {"sliding_window_pattern": 3} | changes))


def phi3(**changes):
    return transformers.Phi3Config(**(SIZES | {"pad_token_id": 0} | changes))


def longrope(*, original: int, **changes):
    return phi3(original_max_position_embeddings=original, rope_parameters=LONGROPE, **changes)


def mixtral(**changes):
    own = {"num_local_experts": 4, "num_experts_per_tok": 2}
    return transformers.MixtralConfig(**(SIZES | own | changes))


def qwen2_moe(**changes):
    own = {**EXPERTS, "shared_expert_intermediate_size": 40}
    return transformers.Qwen2MoeConfig(**(SIZES | own | changes))


def qwen3_moe(**changes):
    return transformers.Qwen3MoeConfig(**(SIZES | EXPERTS | {"head_dim": 16} | changes))


CONFIGS = {
    "gemma2": gemma2(),
    "gemma2-low-caps": gemma2(attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
    "gemma2-no-caps": gemma2(attn_logit_softcapping=None, final_logit_softcapping=None),
    "gemma2-one-kv-head": gemma2(num_key_value_heads=1),
    "gemma2-biases": gemma2(attention_bias=True),
    "gemma3": gemma3(),
    "gemma3-linear": gemma3(
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        }
    ),
    "gemma3-cap": gemma3(final_logit_softcapping=4.0),
    "phi3": phi3(),
    "phi3-window": phi3(sliding_window=6),
    "phi3-grouped": phi3(num_key_value_heads=3),
    "phi3-partial": phi3(
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        }
    ),
    "phi3-short": longrope(original=256),
    "mixtral": mixtral(),
    "mixtral-window": mixtral(sliding_window=6),
    "qwen2-moe": qwen2_moe(),
    "qwen2-moe-normalised": qwen2_moe(norm_topk_prob=True, num_experts_per_tok=3),
    "qwen2-moe-window": qwen2_moe(use_sliding_window=True, sliding_window=6),
    "qwen2-moe-no-bias": qwen2_moe(qkv_bias=False),
    "qwen3-moe": qwen3_moe(),
    "qwen3-moe-normalised": qwen3_moe(norm_topk_prob=True),
    "qwen3-moe-some": qwen3_moe(mlp_only_layers=[1]),
    "qwen3-moe-step": qwen3_moe(decoder_sparse_step=2),
    "qwen3-moe-window": qwen3_moe(use_sliding_window=True, sliding_window=6),
    "qwen3-moe-biases": qwen3_moe(attention_bias=True, num_experts_per_tok=5),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(name, tmp_path):
    theirs = save_checkpoint(CONFIGS[name], tmp_path / "model")
    ours = sealed(tmp_path / "model", tmp_path / "cache")
    for budget in (64, 5):  # whole prompts, and chunks that mix with decoding
        logits = run(ours, PROMPTS, budget=budget, steps=6)
        for prompt, rows in zip(PROMPTS, logits, strict=True):
            torch.testing.assert_close(rows, reference(theirs, prompt, 6), atol=2e-4, rtol=1e-4)


def test_the_longest_context_decides_between_the_factors_of_longrope(tmp_path):
    theirs = save_checkpoint(longrope(original=8), tmp_path / "model")
    long, short = PROMPTS[0], PROMPTS[1]
    ours = sealed(tmp_path / "model", tmp_path / "cache")
    assert ours.kv_variant == "TorchKernels long"
    logits = run(ours, [long], budget=64, steps=6)[0]
    torch.testing.assert_close(logits, reference(theirs, long, 6), atol=2e-4, rtol=1e-4)
    ours = bind(tmp_path / "cache", max_context=8)
    assert ours.kv_variant == "TorchKernels short"
    logits = run(ours, [short], budget=64, steps=6)[0]
    torch.testing.assert_close(logits, reference(theirs, short, 6), atol=2e-4, rtol=1e-4)


def test_the_language_model_of_gemma3_without_its_vision_tower(tmp_path):
    config = transformers.Gemma3Config(
        text_config=gemma3().to_dict(),
        vision_config={
            "model_type": "siglip_vision_model",
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
        },
        eos_token_id=[2, 3],
    )
    theirs = save_checkpoint(
        config, tmp_path / "model", kind=transformers.Gemma3ForConditionalGeneration
    )
    ours = sealed(tmp_path / "model", tmp_path / "cache")
    assert ours.config.family == "gemma3_text"
    logits = run(ours, PROMPTS, budget=5, steps=4)
    for prompt, rows in zip(PROMPTS, logits, strict=True):
        torch.testing.assert_close(rows, reference(theirs, prompt, 4), atol=2e-4, rtol=1e-4)


# In bfloat16 a token whose experts score nearly the same may go to others than in float32. With all
# experts for every token there is no such choice, and the arithmetic can be compared.
ROUNDED = {
    "gemma2": gemma2(head_dim=32, num_attention_heads=4, attn_logit_softcapping=5.0),
    "gemma2-256": gemma2(head_dim=256, num_attention_heads=2),
    "gemma3": gemma3(head_dim=32, num_attention_heads=4),
    "phi3": phi3(
        hidden_size=192,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.75,
        },
    ),
    "mixtral": mixtral(head_dim=32, num_experts_per_tok=4),
    "qwen2-moe": qwen2_moe(hidden_size=192, num_experts_per_tok=5),
    "qwen3-moe": qwen3_moe(head_dim=32, num_experts_per_tok=5, norm_topk_prob=True),
}


@needs_cpu_kernels
@pytest.mark.parametrize("name", ROUNDED)
def test_our_kernels_are_as_near_to_float32_as_torchs(name, tmp_path):
    theirs = save_checkpoint(ROUNDED[name], tmp_path / "model", scale=0.1)
    exact = torch.cat([reference(theirs, prompt, 1) for prompt in PROMPTS])
    ours = sealed(tmp_path / "model", tmp_path / "cache", "bfloat16")
    assert isinstance(ours._kernels, CpuKernels)
    error = (run(ours, PROMPTS, budget=64, steps=1)[:, 0] - exact).pow(2).mean()
    ours._kernels = TorchKernels(torch.bfloat16)
    torchs_error = (run(ours, PROMPTS, budget=64, steps=1)[:, 0] - exact).pow(2).mean()
    assert 0 < error <= 1.5 * torchs_error  # few sequences: chance decides within this
    assert error < 2e-3 * exact.pow(2).mean()


@needs_cpu_kernels
@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize(
    "config",
    [
        gemma2(hidden_size=64, intermediate_size=96, head_dim=32, num_attention_heads=4),
        phi3(hidden_size=192, intermediate_size=96),
        qwen2_moe(
            hidden_size=192,
            num_experts_per_tok=5,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=64,
        ),
        qwen3_moe(hidden_size=64, head_dim=32, num_experts_per_tok=5, moe_intermediate_size=32),
        # Experts of 72 rows, which are not whole tiles.
        qwen3_moe(hidden_size=64, head_dim=32, num_experts_per_tok=5, moe_intermediate_size=36),
    ],
    ids=["gemma2", "phi3", "qwen2-moe", "qwen3-moe", "qwen3-moe-72"],
)
def test_quantised_weights(config, quantization, tmp_path, monkeypatch):
    """Our kernels on the codes against torch's on the numbers that the codes stand for."""
    save_checkpoint(config, tmp_path / "model", scale=0.1)
    ours = sealed(tmp_path / "model", tmp_path / "cache", "bfloat16", quantization)
    monkeypatch.setattr(llama, "kernels_for", lambda **_: TorchKernels(torch.bfloat16))
    with_torch = bind(tmp_path / "cache")
    logits = run(ours, PROMPTS, budget=64, steps=1)
    expected = run(with_torch, PROMPTS, budget=64, steps=1)
    assert (logits - expected).pow(2).mean() < 5e-3 * expected.pow(2).mean()


@needs_cpu_kernels
@pytest.mark.parametrize("name", ROUNDED)
def test_a_sequence_does_not_depend_on_its_company(name, tmp_path):
    """To the last bit, also in chunks."""
    config = ROUNDED[name]
    if hasattr(config, "num_experts_per_tok"):
        config.num_experts_per_tok = 2
    save_checkpoint(config, tmp_path / "model")
    ours = sealed(tmp_path / "model", tmp_path / "cache", "bfloat16")
    prompts = [*PROMPTS, *([n, n + 1, 7 * n % 128] for n in range(3, 8))]
    alone = torch.cat([run(ours, [prompt], budget=64, steps=6) for prompt in prompts])
    for budget in (64, 7):
        assert torch.equal(run(ours, prompts, budget=budget, steps=6), alone)


class Recording(TorchKernels):
    """Kernels that keep the weights they were given."""

    def __init__(self) -> None:
        super().__init__(torch.float32)
        self.read: list[int] = []

    def linear(self, x, weight, bias):
        self.read.append(weight.data_ptr())
        return super().linear(x, weight, bias)


def test_a_step_reads_the_chosen_experts_only_and_each_once(tmp_path):
    save_checkpoint(mixtral(num_local_experts=16, num_hidden_layers=1), tmp_path / "model")
    ours = sealed(tmp_path / "model", tmp_path / "cache")
    (layer,) = ours._expert_layers.values()
    experts = [expert.gate_up.data_ptr() for expert in layer.experts]
    for prompts in ([[5]], [[5], [9], [77], [100]]):
        ours._kernels = recording = Recording()
        run(ours, prompts, budget=64, steps=1)
        read = [pointer for pointer in recording.read if pointer in experts]
        assert read == sorted(set(read))
        assert 2 <= len(read) <= 2 * len(prompts)
