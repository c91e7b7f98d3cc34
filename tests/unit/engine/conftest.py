"""A tiny random model and its engine, for tests that need real steps but no sense."""

import pytest
import tokenizers
import torch

from runtime.models.registry import build_model
from snapshot.layout import tensor_shapes
from snapshot.model_config import ModelConfig

CONFIG = ModelConfig(
    family="llama",
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rms_norm_eps=1e-5,
    rope_theta=1000.0,
    max_positions=96,
    tie_embeddings=True,
)


@pytest.fixture(scope="session")
def tiny_tensors():
    generator = torch.Generator().manual_seed(3)
    return {
        name: torch.randn(shape, generator=generator) * (0.4 if len(shape) == 2 else 0.1)
        + (0.0 if len(shape) == 2 else 1.0)
        for name, shape in tensor_shapes(CONFIG).items()
    }


@pytest.fixture(scope="session")
def tiny_model(tiny_tensors):
    return build_model(CONFIG, tiny_tensors)


@pytest.fixture(scope="session")
def tiny_tokenizer():
    vocab = {f" w{n}": n for n in range(CONFIG.vocab_size)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token=" w0"))
    tokenizer.decoder = tokenizers.decoders.Fuse()
    return tokenizer
