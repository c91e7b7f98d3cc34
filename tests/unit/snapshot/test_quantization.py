"""Weights of 4 and 8 bits: rounding, layout, GGUF's own codes, sealed and restored."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Quant
from hypothesis import given, settings
from hypothesis import strategies as st

from glowplug.errors import CorruptSnapshot
from snapshot.layout import GROUP, TILE_ROWS, Bits, packed_bytes, part_shapes, weight_bits
from snapshot.node_cache import NodeCache
from snapshot.quantization import Codes, Quantized, pack, quantize, unpack
from snapshot.restore import restore
from snapshot.seal import seal

SIZES = st.tuples(st.integers(1, 50), st.integers(1, 4).map(lambda groups: groups * GROUP))


def random_codes(rows: int, columns: int, bits: Bits, seed: int) -> Codes:
    generator = torch.Generator().manual_seed(seed)
    groups = columns // GROUP
    codes = torch.randint(0, 1 << bits, (rows, groups, GROUP), generator=generator)
    tables = torch.randn(2, rows, groups, generator=generator).half()
    return Codes(codes.to(torch.uint8), tables[0], tables[1] if bits == 4 else None)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(SIZES, SIZES, st.sampled_from([4, 8]), st.integers(0, 1000))
def test_what_is_packed_comes_out_again(
    first: tuple[int, int], second: tuple[int, int], bits: Bits, seed: int
) -> None:
    columns = first[1]
    parts = [random_codes(rows, columns, bits, seed + rows) for rows in (first[0], second[0])]
    rows = first[0] + second[0]
    data = pack(parts, bits)
    assert data.dtype == torch.uint8
    assert data.numel() == packed_bytes(rows, columns, bits)
    found = unpack(Quantized(data, rows, columns, bits))
    assert torch.equal(found.codes, torch.cat([part.codes for part in parts]))
    assert torch.equal(found.scales, torch.cat([part.scales for part in parts]))
    if bits == 4:
        minima = [part.minima for part in parts if part.minima is not None]
        assert found.minima is not None
        assert torch.equal(found.minima, torch.cat(minima))
    else:
        assert found.minima is None


@settings(max_examples=80, deadline=None, derandomize=True)
@given(SIZES, st.sampled_from([4, 8]), st.integers(0, 1000), st.floats(1e-3, 100))
def test_rounding_is_to_the_nearest_code(
    size: tuple[int, int], bits: Bits, seed: int, spread: float
) -> None:
    weights = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * spread
    codes = quantize(weights, bits)
    numbers = Quantized(pack([codes], bits), *size, bits).dense(torch.float32)
    step = codes.scales.float().repeat_interleave(GROUP, dim=1)
    # Half a step, and what the ends of the range lose to the rounding of the scale to float16.
    slack = weights.abs().max() * 2.0**-9
    assert ((numbers - weights).abs() <= step / 2 + slack).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_constant_groups(bits: Bits) -> None:
    weights = torch.zeros(3, 64)
    weights[1] = 0.25
    weights[2, 5] = -7.0
    numbers = Quantized(pack([quantize(weights, bits)], bits), 3, 64, bits).dense(torch.float32)
    assert torch.allclose(numbers, weights, atol=0.002)
    assert torch.equal(numbers[0], weights[0])


def test_the_last_tile_is_filled_with_zeros() -> None:
    data = pack([random_codes(TILE_ROWS + 3, 32, 8, 0)], 8)
    whole = unpack(Quantized(data, 2 * TILE_ROWS, 32, 8))
    assert not whole.codes[TILE_ROWS + 3 :].any()
    assert not whole.scales[TILE_ROWS + 3 :].any()


def test_which_weights_are_quantised() -> None:
    assert weight_bits("layers.3.qkv", (96, 64), "int4") == 4
    assert weight_bits("layers.3.qkv", (96, 64), "int8") == 8
    assert weight_bits("layers.3.qkv", (96, 64), "none") is None
    assert weight_bits("embed", (96, 64), "int4") == 8
    assert weight_bits("lm_head", (96, 64), "int4") == 8
    assert weight_bits("layers.3.down", (64, 40), "int4") is None
    for name in ("norm", "layers.0.attn_norm", "layers.0.qkv_bias"):
        assert weight_bits(name, (64,), "int4") is None


@pytest.mark.parametrize(
    ("quant", "quantization"), [(Quant.Q4_0, "int4"), (Quant.Q4_1, "int4"), (Quant.Q8_0, "int8")]
)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_codes_of_a_gguf_file_are_kept(
    write_gguf: Callable[..., Any], cache: NodeCache, quant: Quant, quantization: Any, family: str
) -> None:
    """Not rounded again: every weight is exactly what the file says, rotary rows reordered."""
    model = write_gguf(quant=quant, family=family, hidden=64, heads=2, tied=False)
    digest = seal(
        str(model.path),
        dtype="bfloat16",
        quantization=quantization,
        cache=cache,
        progress=lambda _: None,
    )
    restored = restore(cache.path(digest))
    assert restored.manifest.quantization == quantization
    for name, parts in part_shapes(restored.manifest.config).items():
        tensor = restored.tensors[name]
        expected = np.concatenate([model.parts[part] for part in parts])
        if isinstance(tensor, Quantized):
            if tensor.bits == (8 if quant == Quant.Q8_0 else 4):
                assert np.array_equal(tensor.dense(torch.float32).numpy(), expected), name
            else:  # the vocabulary's, which 4-bit files of this test have in 4 bits
                assert np.allclose(tensor.dense(torch.float32).numpy(), expected, atol=0.05), name
        else:
            assert np.array_equal(tensor.float().numpy(), expected.astype(np.float32)) or (
                torch.equal(tensor, torch.from_numpy(expected).bfloat16())
            ), name


def test_each_quantization_is_a_snapshot_of_its_own(
    write_gguf: Callable[..., Any], cache: NodeCache
) -> None:
    path = str(write_gguf().path)

    def sealed(quantization: Any) -> str:
        return seal(
            path,
            dtype="bfloat16",
            quantization=quantization,
            cache=cache,
            progress=lambda _: None,
        )

    digests = [sealed(each) for each in ("none", "int8", "int4")]
    assert len(set(digests)) == 3
    assert digests == [sealed(each) for each in ("none", "int8", "int4")]
    for digest in digests:
        cache.verify(digest)
    assert {snapshot.quantization for snapshot in cache.list()} == {"none", "int8", "int4"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e6])
def test_what_has_no_code_is_refused(
    write_gguf: Callable[..., Any], cache: NodeCache, value: float
) -> None:
    """1e6 is beyond float16, in which scales are kept."""
    model = write_gguf(quant=Quant.F32)
    stored = bytearray(model.path.read_bytes())
    largest = model.parts["layers.0.q"].astype(np.float32).tobytes()[:4]
    at = stored.find(largest)
    stored[at : at + 4] = np.float32(value).tobytes()
    model.path.write_bytes(stored)
    with pytest.raises(CorruptSnapshot, match=r"layers\.0\.qkv holds"):
        seal(
            str(model.path),
            dtype="bfloat16",
            quantization="int4",
            cache=cache,
            progress=lambda _: None,
        )
