"""The layout of weights.safetensors, for any config."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load

from snapshot.layout import part_shapes, tensor_shapes
from snapshot.model_config import ModelConfig
from snapshot.weights_file import DTYPE_BYTES, PAGE_BYTES, plan_weights


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    kv_heads = draw(st.integers(1, 3))
    return ModelConfig(
        family="llama",
        vocab_size=draw(st.integers(1, 50)),
        hidden_size=draw(st.integers(1, 40)),
        intermediate_size=draw(st.integers(1, 40)),
        num_layers=draw(st.integers(1, 4)),
        num_heads=kv_heads * draw(st.integers(1, 3)),
        num_kv_heads=kv_heads,
        head_dim=2 * draw(st.integers(1, 6)),
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        max_positions=64,
        tie_embeddings=draw(st.booleans()),
        qkv_bias=draw(st.booleans()),
        o_bias=draw(st.booleans()),
        mlp_bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
    )


@settings(max_examples=100, deadline=None, derandomize=True)
@given(configs())
def test_parts_stack_to_tensors(config: ModelConfig) -> None:
    shapes = tensor_shapes(config)
    parts = part_shapes(config)
    assert list(parts) == list(shapes)
    for name, shape in shapes.items():
        assert sum(part[0] for part in parts[name].values()) == shape[0]
        assert {part[1:] for part in parts[name].values()} == {shape[1:]}
    names = [part for stack in parts.values() for part in stack]
    assert len(set(names)) == len(names)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(configs(), st.sampled_from(["bfloat16", "float32"]))
def test_the_file_is_valid_and_aligned(config: ModelConfig, dtype: str) -> None:
    plan = plan_weights(config, dtype)  # type: ignore[arg-type]
    assert len(plan.header) % PAGE_BYTES == 0
    assert plan.size_bytes % PAGE_BYTES == 0
    assert plan == plan_weights(config.model_copy(), dtype)  # type: ignore[arg-type]
    position = len(plan.header)
    for name, slot in plan.slots.items():
        assert slot.offset == position
        assert slot.offset % PAGE_BYTES == 0
        assert slot.shape == tensor_shapes(config)[name]
        assert slot.size_bytes == math.prod(slot.shape) * DTYPE_BYTES[dtype]  # type: ignore[index]
        assert 0 <= slot.padding_bytes < PAGE_BYTES
        position += slot.size_bytes + slot.padding_bytes
    assert position == plan.size_bytes

    data = bytearray(plan.header)
    fills = {}
    for number, (name, slot) in enumerate(plan.slots.items()):
        fills[name] = float(number)
        tensor = torch.full(slot.shape, float(number), dtype=getattr(torch, dtype))
        data += tensor.flatten().view(torch.uint8).numpy().tobytes() + bytes(slot.padding_bytes)
    loaded = load(bytes(data))  # the library's own validation
    tensors = {name: tensor for name, tensor in loaded.items() if not name.startswith("__pad__.")}
    assert tensors.keys() == fills.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == getattr(torch, dtype)
        assert tensor.shape == plan.slots[name].shape
        assert torch.all(tensor == fills[name])
