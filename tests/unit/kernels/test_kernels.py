"""Every set of kernels against the same operations in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import integers

from runtime.engine.batch import Batch, Span
from runtime.kernels import TorchKernels, kernels_for
from runtime.kernels.cpu_kernels import CpuKernels, cpu_kernels_supported
from runtime.kernels.interface import HeadShape

BF16 = torch.bfloat16
needs_cpu_kernels = pytest.mark.skipif(
    not cpu_kernels_supported(head_dim=64), reason="needs AVX-512 BF16 and the built extension"
)
KERNELS = [
    pytest.param(TorchKernels(BF16), id="torch"),
    pytest.param(CpuKernels(), id="cpu", marks=needs_cpu_kernels),
]


def random(*shape: int, dtype=BF16, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + math.prod(shape))
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


def close(actual: torch.Tensor, expected: torch.Tensor, *, rounding: float = 2.0**-8) -> None:
    """Equal up to one rounding to bfloat16 of the result, and of sums in float32."""
    assert actual.shape == expected.shape
    error = (actual.double() - expected).abs()
    assert (error <= rounding * expected.abs() + 2e-3).all(), float(error.max())


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 5, 7, 16, 17, 40])
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 96), (48, 100), (37, 64), (16, 1), (5, 33)])
def test_linear_layers(kernels, rows, outputs, inputs):
    x, weight = random(rows, inputs), random(outputs, inputs, scale=0.2)
    bias = random(outputs)
    expected = x.double() @ weight.double().T
    close(kernels.linear(x, weight, None), expected)
    close(kernels.linear(x, weight, bias), expected + bias.double(), rounding=2.0**-7)
    close(kernels.logits(x, weight), expected)
    residual = random(rows, outputs, dtype=torch.float32)
    before = residual.double()
    kernels.linear_add(residual, x, weight, bias)
    error = (residual.double() - before - expected - bias.double()).abs()
    assert (error <= 2.0**-7 * (expected.abs() + bias.double().abs()) + 2e-3).all()


@needs_cpu_kernels
@given(integers(1, 20), integers(1, 70), integers(1, 130))
@settings(derandomize=True, max_examples=60, deadline=None)
def test_linear_of_any_shape(rows, outputs, inputs):
    x, weight = random(rows, inputs), random(outputs, inputs, scale=0.2)
    close(CpuKernels().linear(x, weight, None), x.double() @ weight.double().T)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("width", [16, 64, 576, 37])
def test_rms_norm(kernels, width):
    x, weight = random(20, width, dtype=torch.float32, scale=3), random(width, dtype=torch.float32)
    wide = x.double()
    expected = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    close(kernels.rms_norm(x, weight, 1e-5), expected)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("width", [16, 48, 1536, 21])
def test_silu_mul(kernels, width):
    gate_up = random(6, 2 * width, scale=4)
    gate_up[0, :4] = torch.tensor([-80.0, 80.0, 0.0, -0.0])
    gate, up = gate_up.double().chunk(2, dim=-1)
    # torch rounds silu(gate) before it multiplies.
    close(kernels.silu_mul(gate_up), gate / (1 + (-gate).exp()) * up, rounding=2.0**-7)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("width", [16, 48, 1536, 21])
def test_gelu_mul(kernels, width):
    gate_up = random(6, 2 * width, scale=3)
    gate_up[0, :4] = torch.tensor([-80.0, 80.0, 0.0, -0.0])
    gate, up = gate_up.double().chunk(2, dim=-1)
    expected = torch.nn.functional.gelu(gate, approximate="tanh") * up
    close(kernels.gelu_mul(gate_up), expected, rounding=2.0**-7)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("width", [16, 64, 576, 37])
def test_add_rms_norm(kernels, width):
    x, weight = random(20, width, dtype=torch.float32, scale=3), random(width, dtype=torch.float32)
    residual = random(20, width, dtype=torch.float32, seed=3)
    wide = x.double()
    normed = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    expected = residual.double() + normed
    kernels.add_rms_norm(residual, x, weight, 1e-5)
    torch.testing.assert_close(residual.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("width", [16, 100, 4099])
@pytest.mark.parametrize("cap", [2.0, 30.0])
def test_soft_cap(kernels, width, cap):
    logits = random(3, width, dtype=torch.float32, scale=40)
    logits[0, :5] = torch.tensor([0.0, 1e-4, -1e-4, 1e30, -1e30])
    expected = cap * (logits.double() / cap).tanh()
    kernels.soft_cap(logits, cap)
    torch.testing.assert_close(logits.double(), expected, atol=4e-7 * cap, rtol=1e-6)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("rotary", [32, 24, 2])
@pytest.mark.parametrize("normed", [False, True])
def test_rotate_writes_the_cache(kernels, normed, rotary):
    shape, tokens, blocks, block_size = HeadShape(6, 2, 32), 5, 4, 4
    qkv = random(tokens, 10 * shape.dim)
    rope = random(50, 2, rotary // 2, dtype=torch.float32)
    positions, slots = torch.tensor([3, 4, 9, 0, 49]), torch.tensor([6, 7, 15, 0, 9])
    keys, values = (torch.zeros(blocks, block_size, 2, shape.dim, dtype=BF16) for _ in "kv")
    norms = (
        tuple(random(shape.dim, dtype=torch.float32, seed=n) for n in (1, 2)) if normed else None
    )
    batch = Batch(
        tokens=positions,
        positions=positions,
        slots=slots,
        tables=torch.zeros(1, 1, dtype=torch.long),
        sequences=torch.zeros(tokens, dtype=torch.long),
        spans=(),
        logit_rows=None,
    )
    q = kernels.rotate(
        qkv, shape, rope=rope, batch=batch, layer_kv=(keys, values), norms=norms, eps=1e-6
    )

    def rotated(x: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        x = x.double()
        if norm is not None:
            x = x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * norm.double()
        cos, sin = rope.double()[positions][:, :, None].unbind(1)
        first, second = x[..., :rotary].chunk(2, dim=-1)
        turned = (first * cos - second * sin, second * cos + first * sin)
        return torch.cat((*turned, x[..., rotary:]), dim=-1)

    heads = qkv.view(tokens, 10, shape.dim)
    close(q, rotated(heads[:, :6], norms[0] if norms else None))
    close(keys.view(-1, 2, shape.dim)[slots], rotated(heads[:, 6:8], norms[1] if norms else None))
    assert torch.equal(values.view(-1, 2, shape.dim)[slots], heads[:, 8:])
    untouched = [slot for slot in range(blocks * block_size) if slot not in slots]
    assert not keys.view(-1, 2, shape.dim)[untouched].any()


def exact_attention(
    q, keys, values, *, first: int, window: int | None, scale: float | None, cap: float | None
) -> torch.Tensor:
    """float64 causal attention: q [T, heads, dim], the queries at positions first, first + 1, …"""
    group = q.shape[1] // keys.shape[1]
    keys, values = (x.double().repeat_interleave(group, dim=1) for x in (keys, values))
    scale = q.shape[2] ** -0.5 if scale is None else scale
    scores = torch.einsum("qhd,khd->hqk", q.double(), keys) * scale
    scores = scores if cap is None else cap * (scores / cap).tanh()
    query, key = torch.arange(first, first + len(q))[:, None], torch.arange(len(keys))
    seen = key <= query
    if window is not None:
        seen &= key > query - window
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values).flatten(1)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("window", [None, 5, 100])
@pytest.mark.parametrize(
    ("contexts", "chunks"),
    [
        ([1], []),
        ([47], []),
        ([1300], []),
        ([3, 16, 17, 33], []),
        ([700, 2], []),
        ([], [(0, 9)]),
        ([], [(7, 20), (0, 40)]),
        ([12, 60], [(30, 5)]),
        ([5], [(600, 70)]),
    ],
)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "scale", "cap"),
    [
        (9, 3, 64, None, None),
        (4, 4, 32, None, None),
        (8, 1, 128, None, None),
        (4, 2, 256, 0.07, 2.0),
        (2, 2, 96, None, 0.5),
    ],
)
def test_attention_over_scattered_blocks(
    kernels, window, contexts, chunks, heads, kv_heads, dim, scale, cap
):
    block_size = 16
    lengths = contexts + [start + count for start, count in chunks]
    counts = [-(-length // block_size) for length in lengths]
    blocks = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(4))
    tables = blocks.split(counts)
    keys, values = (random(sum(counts), block_size, kv_heads, dim, seed=n) for n in (1, 2))
    rows = len(contexts) + sum(count for _, count in chunks)
    q = random(rows, heads, dim)

    width = max(counts)
    padded = [torch.cat((table, table[:1].expand(width - len(table)))) for table in tables]
    spans = [(length - 1, 1) for length in contexts] + chunks
    row, rows_of = 0, []
    for start, count in spans:
        rows_of.append(Span(row, row + count, start + count))
        row += count
    batch = Batch(
        tokens=torch.zeros(rows),
        positions=torch.cat([torch.arange(start, start + count) for start, count in spans]),
        slots=torch.zeros(rows),
        tables=torch.stack(padded),
        sequences=torch.cat([torch.full((count,), n) for n, (_, count) in enumerate(spans)]),
        spans=tuple(rows_of),
        logit_rows=None,
    )
    plan = kernels.plan_attention(batch, block_size=block_size, window=window)
    out = kernels.attention(q, (keys, values), batch, plan, scale=scale, cap=cap)

    row = 0
    for length, count, table in zip(
        lengths, [1] * len(contexts) + [count for _, count in chunks], tables, strict=True
    ):
        own = [x[table].flatten(0, 1)[:length] for x in (keys, values)]
        expected = exact_attention(
            q[row : row + count],
            *own,
            first=length - count,
            window=window,
            scale=scale,
            cap=cap,
        )
        error = (out[row : row + count].double() - expected).abs().max()
        assert error < 2e-2, (length, float(error))
        row += count


@needs_cpu_kernels
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 96), (37, 100), (576, 1536)])
def test_a_row_of_a_linear_layer_does_not_depend_on_its_company(outputs, inputs):
    x, weight, bias = random(37, inputs), random(outputs, inputs, scale=0.2), random(outputs)
    alone = torch.cat([CpuKernels().linear(row[None], weight, bias) for row in x])
    for rows in (2, 3, 4, 7, 8, 16, 37):
        assert torch.equal(CpuKernels().linear(x[:rows], weight, bias), alone[:rows])


@needs_cpu_kernels
@pytest.mark.parametrize("window", [None, 600])
def test_a_row_of_attention_does_not_depend_on_its_company(window):
    """Also not on how its context is shared out between threads, which is split from 512 keys."""
    keys, values = random(100, 16, 2, 64, seed=1), random(100, 16, 2, 64, seed=2)
    positions = torch.tensor([1500, 3, 511, 512, 513, 1024, 40, 7, *range(900, 960)])
    tables = torch.stack(
        [torch.randperm(100, generator=torch.Generator().manual_seed(n)) for n in range(9)]
    )
    sequences = torch.tensor([*range(8), *[8] * 60])
    q = random(len(positions), 6, 64)

    def attend(rows: list[int]) -> torch.Tensor:
        nothing = torch.empty(0)
        batch = Batch(
            tokens=nothing,
            positions=positions[rows],
            slots=nothing,
            tables=tables,
            sequences=sequences[rows],
            spans=(),
            logit_rows=None,
        )
        kernels = CpuKernels()
        plan = kernels.plan_attention(batch, block_size=16, window=window)
        return kernels.attention(q[rows].contiguous(), (keys, values), batch, plan)

    together = attend(list(range(len(positions))))
    alone = torch.cat([attend([row]) for row in range(len(positions))])
    assert torch.equal(together, alone)


def test_the_choice():
    assert isinstance(kernels_for(dtype=torch.float32, device="cpu", head_dim=64), TorchKernels)
    assert isinstance(kernels_for(dtype=BF16, device="cpu", head_dim=20), TorchKernels)
    expected = CpuKernels if cpu_kernels_supported(head_dim=64) else TorchKernels
    assert isinstance(kernels_for(dtype=BF16, device="cpu", head_dim=64), expected)
