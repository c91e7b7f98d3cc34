"""The models against transformers, on tiny random checkpoints of every family and rope kind."""

from pathlib import Path

import pytest
import tokenizers
import torch
import transformers

from runtime.engine.batch import build_batch
from runtime.engine.blocks import BlockPool
from runtime.engine.kv_cache import KVCache
from runtime.engine.request import GenerationRequest, SamplingParams
from runtime.engine.scheduler import Scheduler
from runtime.engine.sequence import Sequence
from runtime.models.registry import Model, build_model
from snapshot.node_cache import NodeCache
from snapshot.restore import restore
from snapshot.seal import seal

SIZES = {
    "vocab_size": 128,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
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


def save_checkpoint(config: transformers.PretrainedConfig, folder: Path) -> torch.nn.Module:
    """A random model with weights large enough that mistakes show."""
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.3 if parameter.ndim == 2 else 0.1
            offset = 1.0 if "norm" in name else 0.0
            parameter.copy_(torch.randn_like(parameter) * scale + offset)
    model.save_pretrained(folder)
    vocab = {f"t{n}": n for n in range(config.vocab_size)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="t0"))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "t1", "eos_token": "t2"}')
    return model


def sealed(folder: Path, cache: Path, dtype: str = "float32") -> Model:
    node_cache = NodeCache(cache)
    digest = seal(str(folder), dtype=dtype, cache=node_cache, progress=lambda _: None)
    restored = restore(node_cache.path(digest))
    return build_model(restored.manifest.config, restored.tensors)


def run(model: Model, prompts: list[list[int]], *, budget: int, steps: int) -> torch.Tensor:
    """Feed the prompts as one growing batch; the logits of every sampled token, by sequence."""
    cache = KVCache(model.config, blocks=80, block_size=4, dtype=model.dtype, device="cpu")
    scheduler = Scheduler(BlockPool(80), block_size=4, max_seqs=8, max_batch_tokens=budget)
    sequences = []
    for n, prompt in enumerate(prompts):
        request = GenerationRequest(
            id=str(n), prompt=tuple(prompt), params=SamplingParams(max_tokens=steps)
        )
        sequences.append(Sequence(request, None, arrived_s=0.0))
        scheduler.add(sequences[-1])
    rows: dict[str, list[torch.Tensor]] = {seq.id: [] for seq in sequences}
    with torch.inference_mode():
        while scheduler.has_work:
            plan = scheduler.schedule()
            logits = model.forward(build_batch(plan, block_size=4, device="cpu"), cache)
            sampling = iter(logits)
            for chunk in plan.chunks:
                seq = chunk.sequence
                if chunk.samples:
                    row = next(sampling)
                    rows[seq.id].append(row)
                    seq.append(int(row.argmax()))
                scheduler.commit(chunk)
                if seq.generated == steps:
                    scheduler.finish(seq)
    return torch.stack([torch.stack(rows[seq.id]) for seq in sequences])


def reference(model: torch.nn.Module, prompt: list[int], steps: int) -> torch.Tensor:
    """transformers' logits for greedy decoding, without its cache."""
    tokens, rows = list(prompt), []
    with torch.inference_mode():
        for _ in range(steps):
            row = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
            rows.append(row.float())
            tokens.append(int(row.argmax()))
    return torch.stack(rows)


PROMPTS = [[5, 9, 33, 70, 2, 8, 110, 64, 7, 12, 90, 3, 41, 17, 28], [77], [4, 4, 100, 6, 51, 88]]


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
