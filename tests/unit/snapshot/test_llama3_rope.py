"""Llama 3's rope scaling, recovered from the tensor that llama.cpp writes for it."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Quant
from hypothesis import given, settings
from hypothesis import strategies as st

from glowplug.errors import UnsupportedModel
from snapshot.gguf_source import open_gguf
from snapshot.llama3_rope import fit_llama3_rope


def converter_divisors(
    *, theta: float, dim: int, factor: float, low: float, high: float, context: float
) -> list[float]:
    """llama.cpp's convert_hf_to_gguf.py, LlamaModel.generate_extra_tensors, in float32."""
    freqs = 1.0 / (np.float32(theta) ** (np.arange(0, dim, 2, dtype=np.float32) / dim))
    divisors = []
    for freq in freqs:
        wavelength = 2 * math.pi / freq
        if wavelength < context / high:
            divisors.append(1.0)
        elif wavelength > context / low:
            divisors.append(factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, dtype=np.float32).tolist()


@pytest.mark.parametrize(("dim", "factor"), [(64, 32.0), (128, 8.0), (128, 32.0)])
def test_published_models(dim: int, factor: float) -> None:
    """Llama 3.1 8B and 3.2 1B and 3B."""
    divisors = converter_divisors(
        theta=500000.0, dim=dim, factor=factor, low=1.0, high=4.0, context=8192
    )
    scaling = fit_llama3_rope(tuple(divisors), theta=500000.0, head_dim=dim)
    assert scaling is not None
    assert scaling.model_dump(exclude_defaults=True) == {
        "kind": "llama3",
        "factor": factor,
        "original_max_positions": 8192,
    }


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    theta=st.sampled_from([10000.0, 100000.0, 500000.0]),
    dim=st.sampled_from([64, 128]),
    factor=st.sampled_from([2.0, 4.0, 8.0, 16.0, 32.0]),
    low=st.sampled_from([0.5, 1.0, 2.0]),
    ratio=st.sampled_from([4.0, 8.0, 16.0]),
    context=st.sampled_from([2048, 4096, 8192, 16384]),
)
def test_any_parameters(
    theta: float, dim: int, factor: float, low: float, ratio: float, context: int
) -> None:
    """Whatever is fitted has the very frequencies; only ratios to `low` can be recovered."""
    divisors = converter_divisors(
        theta=theta, dim=dim, factor=factor, low=low, high=low * ratio, context=context
    )
    scaling = fit_llama3_rope(tuple(divisors), theta=theta, head_dim=dim)
    assert scaling is not None
    assert scaling.original_max_positions is not None
    again = converter_divisors(
        theta=theta,
        dim=dim,
        factor=scaling.factor,
        low=scaling.low_freq_factor,
        high=scaling.high_freq_factor,
        context=scaling.original_max_positions,
    )
    np.testing.assert_allclose(again, divisors, rtol=2e-4)


def test_other_frequencies_do_not_fit() -> None:
    assert fit_llama3_rope((1.0, 2.0, 3.0, 4.0), theta=10000.0, head_dim=8) is None
    assert fit_llama3_rope((1.0, 8.0), theta=10000.0, head_dim=8) is None
    assert fit_llama3_rope((1.0, math.nan, 1.0, 8.0), theta=10000.0, head_dim=8) is None
    assert fit_llama3_rope((1.0, math.inf, 1.0, 8.0), theta=10000.0, head_dim=8) is None


def rope_freqs(divisors: list[float]) -> dict[str, Any]:
    return {"rope_freqs.weight": (np.array(divisors, dtype=np.float32), Quant.F32)}


def test_in_a_file(write_gguf: Callable[..., Any]) -> None:
    divisors = converter_divisors(
        theta=10000.0, dim=64, factor=8.0, low=1.0, high=4.0, context=8192
    )
    model = write_gguf(hidden=256, change=rope_freqs(divisors))
    assert open_gguf(model.path).config.rope_scaling.model_dump(exclude_defaults=True) == {
        "kind": "llama3",
        "factor": 8.0,
        "original_max_positions": 8192,
    }
    model = write_gguf(hidden=256, change=rope_freqs([1.0] * 32))
    assert open_gguf(model.path).config.rope_scaling.kind == "default"
    model = write_gguf(hidden=256, change=rope_freqs([1.0, 5.0] * 16))
    with pytest.raises(UnsupportedModel, match=r"rope_freqs.weight is not Llama 3's scaling"):
        open_gguf(model.path)
