"""Linear layers and embeddings of 4- and 8-bit weights against float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.kernels import TorchKernels
from runtime.kernels.cpu_kernels import CpuKernels, cpu_kernels_supported
from snapshot.layout import GROUP, Bits
from snapshot.quantization import Quantized, pack, quantize

BF16 = torch.bfloat16
needs_cpu_kernels = pytest.mark.skipif(
    not cpu_kernels_supported(head_dim=64), reason="needs AVX-512 BF16, VNNI and the extension"
)
BITS = pytest.mark.parametrize("bits", [4, 8])
SHAPES = [(64, 96), (48, 32), (37, 64), (16, 1536), (5, 320)]


def random(*shape: int, dtype: torch.dtype = BF16, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(math.prod(shape))
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


def quantized(outputs: int, inputs: int, bits: Bits) -> Quantized:
    weights = random(outputs, inputs, dtype=torch.float32, scale=0.2)
    return Quantized(pack([quantize(weights, bits)], bits), outputs, inputs, bits)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """What the kernels multiply: the inputs in 8 bits, in groups of 32, in float64."""
    groups = x.float().view(len(x), x.shape[1] // GROUP, GROUP)
    top = groups.abs().amax(dim=-1, keepdim=True)
    codes = (groups * torch.where(top > 0, torch.tensor(127.0) / top, 0)).round()
    return (codes.double() * (top / 127).double()).flatten(1)


@needs_cpu_kernels
@BITS
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 7, 8, 9, 16, 31])
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_linear_layers(bits: Bits, rows: int, outputs: int, inputs: int) -> None:
    run, weight, x = CpuKernels(), quantized(outputs, inputs, bits), random(rows, inputs)
    bias = random(outputs)
    expected = rounded(x) @ weight.dense(torch.float64).T
    tolerance = 1e-5 * (x.double().abs() @ weight.dense(torch.float64).abs().T) + 1e-6

    def close(actual: torch.Tensor, wanted: torch.Tensor, rounding: float) -> None:
        assert actual.shape == wanted.shape
        assert ((actual.double() - wanted).abs() <= tolerance + rounding * wanted.abs()).all()

    close(run.logits(x, weight), expected, 0)
    close(run.linear(x, weight, None), expected, 2.0**-8)
    close(run.linear(x, weight, bias), expected + bias.double(), 2.0**-8)
    residual = random(rows, outputs, dtype=torch.float32)
    before = residual.double()
    run.linear_add(residual, x, weight, bias)
    close(residual, before + expected + bias.double(), 1e-6)


@needs_cpu_kernels
@BITS
@settings(max_examples=30, deadline=None, derandomize=True)
@given(rows=st.integers(2, 40), tiles=st.integers(1, 5), groups=st.integers(1, 6))
def test_a_row_does_not_depend_on_the_others(
    bits: Bits, rows: int, tiles: int, groups: int
) -> None:
    run, weight = CpuKernels(), quantized(16 * tiles - 5, GROUP * groups, bits)
    x = random(rows, GROUP * groups)
    together = run.logits(x, weight)
    alone = torch.cat([run.logits(row[None].contiguous(), weight) for row in x])
    assert torch.equal(together, alone)


@needs_cpu_kernels
@BITS
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_stays_none(bits: Bits, value: float) -> None:
    run, weight, x = CpuKernels(), quantized(32, 64, bits), random(3, 64)
    x[1, 40] = value
    y = run.logits(x, weight)
    assert not y[1].isfinite().any()
    assert y[[0, 2]].isfinite().all()


@needs_cpu_kernels
@BITS
def test_inputs_of_zero(bits: Bits) -> None:
    run, weight = CpuKernels(), quantized(32, 64, bits)
    assert not run.logits(torch.zeros(2, 64, dtype=BF16), weight).any()


@BITS
@pytest.mark.parametrize(
    "run", [TorchKernels(torch.float32), pytest.param(CpuKernels(), marks=needs_cpu_kernels)]
)
def test_embeddings_are_rows_of_the_weight(bits: Bits, run: TorchKernels | CpuKernels) -> None:
    weight = quantized(50, 96, bits)
    tokens = torch.tensor([0, 49, 17, 17, 16, 15])
    rows = run.embed(tokens, run.weight(weight))
    assert rows.dtype == torch.float32
    # One rounding apart: with and without fused multiply-add.
    assert torch.allclose(rows, weight.dense(torch.float32)[tokens], rtol=1e-6, atol=1e-7)


@BITS
def test_where_there_is_no_kernel_the_weights_become_numbers(bits: Bits) -> None:
    run, sealed, x = TorchKernels(torch.float32), quantized(40, 64, bits), random(5, 64).float()
    weight = run.weight(sealed)
    assert isinstance(weight, torch.Tensor)
    assert torch.equal(weight, sealed.dense(torch.float32))
    expected = x.double() @ sealed.dense(torch.float64).T
    assert torch.allclose(run.logits(x, weight).double(), expected, atol=1e-4)
