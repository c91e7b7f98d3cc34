"""Tiny models in every format that can be sealed, with the tensors they must come out as."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Quant
from s3 import BUCKET, CREDENTIALS, Proxy, counting_proxy, moto_server
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from snapshot.node_cache import NodeCache

CORPUS = [
    "The quick brown fox jumps over the lazy dog. 12345 and 67890, don't you think?",
    "def main():\n    print('hello world')\n    return {'a': 1, 'b': [2, 3]}\n",
    "Grüße aus München, café naïve; 日本語のテキスト. Привет, мир!",
]
SPECIALS = ["<|endoftext|>", "<s>", "</s>", "<|user|>"]
VOCAB_SIZE = 384

GGUF_NAMES = {
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "o": "attn_output",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}


@dataclass(frozen=True)
class GgufModel:
    """A written file, and what each part (layout.part_shapes) must dequantise to."""

    path: Path
    parts: dict[str, np.ndarray]


@pytest.fixture
def cache(tmp_path: Path) -> NodeCache:
    return NodeCache(tmp_path / "cache")


@pytest.fixture(scope="session")
def proxy() -> Iterator[Proxy]:
    """An S3 with an empty bucket, to be reset by each test's own fixture."""
    with pytest.MonkeyPatch.context() as patch, moto_server() as port, counting_proxy(port) as it:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        boto3.client("s3", endpoint_url=it.endpoint).create_bucket(Bucket=BUCKET)
        yield it


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer of VOCAB_SIZE tokens, the special ones first."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trained.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE,
            special_tokens=SPECIALS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    assert trained.get_vocab_size() == VOCAB_SIZE
    return trained


@pytest.fixture
def gguf_tokenizer_metadata(tokenizer: Tokenizer) -> dict[str, Any]:
    """The tokenizer as a GGUF file has it."""
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in SPECIALS else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": "{{ bos_token }}{% for m in messages %}{{ m }}{% endfor %}",
    }


@pytest.fixture
def write_gguf(tmp_path: Path, gguf_tokenizer_metadata: dict[str, Any]) -> Callable[..., GgufModel]:
    """Writes a file with random weights of one quantisation; `metadata` None removes a key."""

    def write(
        name: str = "model.gguf",
        *,
        family: str = "llama",
        quant: Quant = Quant.F32,
        hidden: int = 32,
        intermediate: int = 64,
        heads: int = 4,
        kv_heads: int = 2,
        layers: int = 2,
        tied: bool = True,
        biases: tuple[str, ...] = (),
        metadata: dict[str, Any] | None = None,
        change: dict[str, Any] | None = None,
        seed: int = 0,
    ) -> GgufModel:
        rng = np.random.default_rng(seed)
        head_dim = hidden // heads
        keys: dict[str, Any] = {
            "general.architecture": family,
            f"{family}.block_count": layers,
            f"{family}.context_length": 128,
            f"{family}.embedding_length": hidden,
            f"{family}.feed_forward_length": intermediate,
            f"{family}.attention.head_count": heads,
            f"{family}.attention.head_count_kv": kv_heads,
            f"{family}.attention.layer_norm_rms_epsilon": 1e-5,
            f"{family}.rope.freq_base": 10000.0,
            **gguf_tokenizer_metadata,
            **(metadata or {}),
        }
        rows = {
            "attn_norm": (hidden,),
            "q": (hidden, hidden),
            "k": (kv_heads * head_dim, hidden),
            "v": (kv_heads * head_dim, hidden),
            "o": (hidden, hidden),
            "mlp_norm": (hidden,),
            "gate": (intermediate, hidden),
            "up": (intermediate, hidden),
            "down": (hidden, intermediate),
        }
        if family == "qwen3":
            rows |= {"q_norm": (head_dim,), "k_norm": (head_dim,)}
        shapes: dict[str, tuple[int, ...]] = {"embed": (VOCAB_SIZE, hidden), "norm": (hidden,)}
        if not tied:
            shapes["lm_head"] = (VOCAB_SIZE, hidden)
        for layer in range(layers):
            shapes |= {f"layers.{layer}.{part}": shape for part, shape in rows.items()}
            shapes |= {f"layers.{layer}.{part}_bias": rows[part][:1] for part in biases}

        parts: dict[str, np.ndarray] = {}
        stored: dict[str, tuple[np.ndarray, Quant]] = {}
        for part, shape in shapes.items():
            kind = quant if len(shape) == 2 else Quant.F32
            raw = encode(rng, shape, kind)
            parts[part] = gguf.quants.dequantize(raw, kind).reshape(shape)
            last = part.rpartition(".")[2].removesuffix("_bias")
            if family == "llama" and last in ("q", "k"):
                raw = permute(raw, heads if last == "q" else kv_heads)
            stored[gguf_name(part)] = raw, kind
        for tensor, replacement in (change or {}).items():
            if replacement is None:
                del stored[tensor]
            else:
                stored[tensor] = replacement
        path = tmp_path / name
        write_file(path, keys, stored)
        return GgufModel(path, parts)

    return write


@pytest.fixture
def save_hf(tmp_path: Path, tokenizer: Tokenizer) -> Callable[..., tuple[Path, Any]]:
    """Saves a tiny random model as transformers does; returns the folder and the model."""

    def save(
        family: str = "llama", *, shard_bytes: int = 1 << 30, dtype: str = "float32", **fields: Any
    ) -> tuple[Path, Any]:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        sizes = {
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
        config = AutoConfig.for_model(family, **{**sizes, **fields})
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
        with torch.no_grad():
            for parameter in model.parameters():  # norms and biases are not random by themselves
                parameter.normal_(0.1, 0.5)
        folder = tmp_path / f"hf-{family}"
        model.save_pretrained(folder, max_shard_size=shard_bytes)
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>", "special": True}})
        )
        return folder, model

    return save


def gguf_name(part: str) -> str:
    suffix = "bias" if part.endswith("_bias") else "weight"
    stem = part.removesuffix("_bias")
    top = {"embed": "token_embd", "norm": "output_norm", "lm_head": "output"}
    if stem in top:
        return f"{top[stem]}.{suffix}"
    _, layer, last = stem.split(".")
    return f"blk.{layer}.{GGUF_NAMES[last]}.{suffix}"


def permute(raw: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's convert_hf_to_gguf.py, LlamaModel.permute."""
    return (
        raw.reshape(heads, 2, raw.shape[0] // heads // 2, *raw.shape[1:])
        .swapaxes(1, 2)
        .reshape(raw.shape)
    )


def encode(rng: np.random.Generator, shape: tuple[int, ...], kind: Quant) -> np.ndarray:
    """Random values in one quantisation, as rows of bytes (or of floats)."""
    values = rng.standard_normal(shape, dtype=np.float32) * 0.1
    if kind not in (Quant.Q4_K, Quant.Q5_K, Quant.Q6_K):
        return gguf.quants.quantize(values, kind)
    # gguf cannot write these: any bytes are valid blocks, as long as their float16 scales are sane.
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (values.size // block, size), dtype=np.uint8)
    scales = [(208, 210)] if kind == Quant.Q6_K else [(0, 2), (2, 4)]
    for start, stop in scales:
        scale = (rng.random((len(blocks), 1)) * 1e-3).astype(np.float16)
        blocks[:, start:stop] = scale.view(np.uint8)
    return blocks.reshape(shape[0], -1)


def write_file(
    path: Path, keys: dict[str, Any], tensors: dict[str, tuple[np.ndarray, Quant]]
) -> None:
    writer = gguf.GGUFWriter(path, keys["general.architecture"])
    for key, value in keys.items():
        if key == "general.architecture" or value is None:
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, (raw, kind) in tensors.items():
        writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
