"""GGUF files of every supported quantisation and architecture, sealed and restored."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Quant

from glowplug.errors import CorruptSnapshot, UnsupportedModel
from snapshot.gguf_source import open_gguf
from snapshot.layout import part_shapes
from snapshot.node_cache import NodeCache
from snapshot.restore import restore
from snapshot.seal import seal

QUANTS = [
    Quant.F32,
    Quant.F16,
    Quant.BF16,
    Quant.Q8_0,
    Quant.Q4_0,
    Quant.Q4_1,
    Quant.Q4_K,
    Quant.Q5_K,
    Quant.Q6_K,
]


def sealed_parts(path: Any, cache: NodeCache, *, dtype: Any) -> dict[str, torch.Tensor]:
    """The restored tensors, cut into parts again."""
    digest = seal(str(path), dtype=dtype, cache=cache, progress=lambda _: None)
    restored = restore(cache.path(digest))
    cut = {}
    for name, parts in part_shapes(restored.manifest.config).items():
        sizes = [shape[0] for shape in parts.values()]
        cut |= dict(zip(parts, restored.tensors[name].split(sizes), strict=True))
    return cut


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("quant", QUANTS, ids=lambda quant: quant.name)
def test_every_quantisation(
    write_gguf: Callable[..., Any], cache: NodeCache, quant: Quant, dtype: Any
) -> None:
    model = write_gguf(quant=quant, hidden=256, intermediate=512, layers=1)
    parts = sealed_parts(model.path, cache, dtype=dtype)
    assert parts.keys() == model.parts.keys()
    for name, expected in model.parts.items():
        want = torch.from_numpy(expected.copy()).to(getattr(torch, dtype))
        assert torch.equal(parts[name], want), name


@pytest.mark.parametrize(
    ("family", "biases", "tied"),
    [
        ("llama", (), False),
        ("llama", ("q", "k", "v", "o", "gate", "up", "down"), True),
        ("qwen2", ("q", "k", "v"), True),
        ("qwen3", (), False),
    ],
)
def test_every_architecture(
    write_gguf: Callable[..., Any],
    cache: NodeCache,
    family: str,
    biases: tuple[str, ...],
    tied: bool,
) -> None:
    model = write_gguf(family=family, biases=biases, tied=tied, quant=Quant.Q8_0, heads=2)
    parts = sealed_parts(model.path, cache, dtype="float32")
    assert parts.keys() == model.parts.keys()
    for name, expected in model.parts.items():
        assert np.array_equal(parts[name].numpy(), expected), name


def test_config(write_gguf: Callable[..., Any]) -> None:
    config = open_gguf(write_gguf(family="qwen3", heads=2, tied=False).path).config
    assert config.model_dump(exclude={"rope_scaling"}) == {
        "architecture": "llama",
        "family": "qwen3",
        "vocab_size": 384,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_layers": 2,
        "num_heads": 2,
        "num_kv_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": pytest.approx(1e-5),
        "rope_theta": 10000.0,
        "max_positions": 128,
        "tie_embeddings": False,
        "qkv_bias": False,
        "o_bias": False,
        "mlp_bias": False,
        "qk_norm": True,
        "sliding_window": None,
        "sliding_layers": None,
        "rotary_dim": None,
        "sliding_rope_theta": None,
        "attention_scale": None,
        "attention_cap": None,
        "logit_cap": None,
        "experts": None,
    }


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"blk.1.ffn_up.weight": None}, CorruptSnapshot, "blk.1.ffn_up.weight is missing"),
        (
            {"blk.0.attn_q.weight": (np.zeros((8, 32), np.float32), Quant.F32)},
            CorruptSnapshot,
            r"blk.0.attn_q.weight has the shape \[8, 32\]",
        ),
        (
            {"blk.0.ffn_gate_exps.weight": (np.zeros((2, 8, 32), np.float32), Quant.F32)},
            UnsupportedModel,
            "ffn_gate_exps.weight is no part",
        ),
        (
            {"blk.0.ffn_up.weight": (np.zeros((64, 18), np.uint8), Quant.IQ4_NL)},
            UnsupportedModel,
            "type IQ4_NL; use a file of F32, F16, BF16, Q8_0",
        ),
        (
            {"blk.0.ffn_up.weight": (np.full((64, 32), np.nan, np.float32), Quant.F32)},
            CorruptSnapshot,
            "gate_up holds NaN or infinite values",
        ),
        (
            {"norm.weight": (np.zeros(32, np.float32), Quant.F32)},
            UnsupportedModel,
            "norm.weight is no part",
        ),
    ],
)
def test_wrong_tensors_are_refused(
    write_gguf: Callable[..., Any],
    cache: NodeCache,
    change: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    model = write_gguf(change=change)
    with pytest.raises(error, match=message):
        seal(str(model.path), dtype="bfloat16", cache=cache, progress=lambda _: None)
    assert cache.list() == []
    assert list((cache.root / "partial").iterdir()) == []


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"general.architecture": "gemma"}, UnsupportedModel, "'gemma' is not supported"),
        ({"general.type": "adapter"}, UnsupportedModel, "'adapter', not the model"),
        ({"split.count": 3}, UnsupportedModel, "one part of a split model"),
        ({"llama.expert_count": 8}, CorruptSnapshot, "llama.expert_used_count is missing"),
        ({"llama.block_count": None}, CorruptSnapshot, "llama.block_count is missing"),
        ({"llama.block_count": "two"}, CorruptSnapshot, "'two', which is not a whole number"),
        ({"llama.block_count": 4_000_000_000}, CorruptSnapshot, "num_layers"),
        ({"llama.attention.head_count": 0}, CorruptSnapshot, "num_heads"),
        ({"llama.attention.head_count_kv": 3}, CorruptSnapshot, "cannot share 3 key-value heads"),
        ({"llama.attention.head_count_kv": [2, 2]}, CorruptSnapshot, "not a whole number"),
        ({"llama.attention.value_length": 4}, UnsupportedModel, "value_length differs"),
        ({"llama.rope.dimension_count": 4}, UnsupportedModel, "dimension_count differs"),
        ({"llama.rope.scaling.type": "longrope"}, UnsupportedModel, "'longrope' is not supported"),
        ({"llama.vocab_size": 100}, CorruptSnapshot, "token_embd.weight has the shape"),
        ({"tokenizer.ggml.model": "bert"}, UnsupportedModel, "'bert' is not supported"),
        ({"tokenizer.ggml.pre": "unheard-of"}, UnsupportedModel, "'unheard-of' is not supported"),
        ({"tokenizer.ggml.pre": None}, CorruptSnapshot, "tokenizer.ggml.pre is missing"),
        ({"tokenizer.ggml.eos_token_id": 384}, CorruptSnapshot, "vocabulary has 384 tokens"),
        ({"tokenizer.ggml.merges": ["Q Q"]}, CorruptSnapshot, "'Q Q' names no tokens"),
        ({"tokenizer.ggml.merges": ["QQ"]}, CorruptSnapshot, "'QQ' names no tokens"),
        ({"tokenizer.ggml.token_type": [1]}, CorruptSnapshot, "384 tokens with 1 types"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, CorruptSnapshot, "2 tokens with 384 types"),
    ],
)
def test_wrong_metadata_is_refused(
    write_gguf: Callable[..., Any],
    metadata: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    model = write_gguf()
    with pytest.raises(error, match=message) as caught:
        model = write_gguf("wrong.gguf", metadata=metadata)
        open_gguf(model.path)
    assert str(caught.value).startswith(str(model.path))


def test_rope_scaling(write_gguf: Callable[..., Any]) -> None:
    def scaling(**keys: Any) -> dict[str, Any]:
        metadata = {f"llama.rope.{key.replace('__', '.')}": value for key, value in keys.items()}
        found = open_gguf(write_gguf(metadata=metadata).path).config.rope_scaling
        return found.model_dump(exclude_defaults=True)

    assert scaling() == {}
    assert scaling(scaling__type="none") == {}
    assert scaling(scaling__type="linear", scaling__factor=4.0) == {"kind": "linear", "factor": 4.0}
    assert scaling(scale_linear=2.0) == {"kind": "linear", "factor": 2.0}
    yarn = {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__original_context_length": 64}
    expected = {"kind": "yarn", "factor": 4.0, "original_max_positions": 64}
    assert scaling(**yarn) == expected
    # llama.cpp multiplies its own factor, 1 + 0.1 ln 4, by the file's.
    assert scaling(**yarn, scaling__attn_factor=2.0) == {
        **expected,
        "attention_factor": pytest.approx(2.0 * 1.138629436),
    }


def test_text_format(write_gguf: Callable[..., Any]) -> None:
    text = open_gguf(
        write_gguf(
            metadata={
                "tokenizer.ggml.eot_token_id": 3,
                "general.sampling.temp": 0.5,
                "general.sampling.top_k": 20,
            }
        ).path
    ).text
    assert text.add_bos
    assert text.bos_token_id == 1
    assert text.generation.eos_token_ids == (2, 3, 0)  # <|endoftext|> ends an answer too
    assert text.generation.temperature == 0.5
    assert text.generation.top_k == 20
    assert text.generation.top_p is None
    assert text.chat.bos_token == "<s>"
    assert text.chat.eos_token == "</s>"
    assert text.chat.template is not None
    assert text.chat.template.startswith("{{ bos_token }}")
