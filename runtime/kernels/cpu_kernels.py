"""Kernels for bfloat16 on x86 processors with AVX-512 BF16 and VNNI: cpu.cpp, by raw pointers."""

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from runtime.engine.batch import Batch
from runtime.kernels.interface import HeadShape, Weight

try:
    from runtime.kernels import _cpu
except ImportError:  # it was not built here
    _cpu = None  # type: ignore[assignment]

_STORE_BF16, _STORE_F32, _ADD_F32 = range(3)  # enum Output in cpu.cpp


def cpu_kernels_supported(*, head_dim: int) -> bool:
    """Whether the extension was built and this processor and head size suit it."""
    return _cpu is not None and _cpu.supported() and head_dim % 32 == 0 and head_dim <= 256


class CpuKernels:
    """Implements runtime.kernels.interface.Kernels."""

    def weight(self, sealed: Weight) -> Weight:
        return sealed

    def embed(self, tokens: Tensor, weight: Weight) -> Tensor:
        if isinstance(weight, Tensor):
            return F.embedding(tokens, weight).float()
        y = torch.empty(tokens.shape[0], weight.columns)
        _cpu.quantized_rows(
            weight.data.data_ptr(),
            tokens.data_ptr(),
            y.data_ptr(),
            tokens.shape[0],
            weight.columns,
            weight.bits,
        )
        return y

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
        y = torch.empty(x.shape[0], _rows(weight), dtype=torch.bfloat16)
        _linear(x, weight, bias, y, _STORE_BF16)
        return y

    def linear_add(self, residual: Tensor, x: Tensor, weight: Weight, bias: Tensor | None) -> None:
        _linear(x, weight, bias, residual, _ADD_F32)

    def logits(self, x: Tensor, weight: Weight) -> Tensor:
        y = torch.empty(x.shape[0], _rows(weight))
        _linear(x, weight, None, y, _STORE_F32)
        return y

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y = torch.empty(x.shape, dtype=torch.bfloat16)
        _cpu.rms_norm(x.data_ptr(), weight.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1], eps)
        return y

    def rotate(
        self,
        qkv: Tensor,
        shape: HeadShape,
        *,
        rope: Tensor,
        batch: Batch,
        layer_kv: tuple[Tensor, Tensor],
        norms: tuple[Tensor, Tensor] | None,
        eps: float,
    ) -> Tensor:
        tokens = qkv.shape[0]
        q = torch.empty(tokens, shape.heads, shape.dim, dtype=torch.bfloat16)
        _cpu.rotate(
            qkv.data_ptr(),
            rope.data_ptr(),
            batch.positions.data_ptr(),
            batch.slots.data_ptr(),
            norms[0].data_ptr() if norms else 0,
            norms[1].data_ptr() if norms else 0,
            q.data_ptr(),
            layer_kv[0].data_ptr(),
            layer_kv[1].data_ptr(),
            tokens,
            shape.heads,
            shape.kv_heads,
            shape.dim,
            2 * rope.shape[2],
            eps,
        )
        return q

    def begin_step(self) -> None:
        _cpu.set_threads(torch.get_num_threads())  # each step uses as many threads as torch would

    def plan_attention(self, batch: Batch, *, block_size: int, window: int | None) -> int:
        self.begin_step()
        return window or 0

    def attention(
        self,
        q: Tensor,
        layer_kv: tuple[Tensor, Tensor],
        batch: Batch,
        plan: int,
        *,
        scale: float | None = None,
        cap: float | None = None,
    ) -> Tensor:
        keys, values = layer_kv
        _, block_size, kv_heads, dim = keys.shape
        rows, heads, _ = q.shape
        out = torch.empty_like(q)
        _cpu.attention(
            q.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            batch.tables.data_ptr(),
            batch.sequences.data_ptr(),
            batch.positions.data_ptr(),
            out.data_ptr(),
            rows,
            heads,
            kv_heads,
            dim,
            block_size,
            batch.tables.shape[1],
            plan,
            dim**-0.5 if scale is None else scale,
            cap or 0.0,
        )
        return out.view(rows, -1)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        rows, width = gate_up.shape
        y = torch.empty(rows, width // 2, dtype=torch.bfloat16)
        _cpu.silu_mul(gate_up.data_ptr(), y.data_ptr(), rows, width // 2)
        return y

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        rows, width = gate_up.shape
        y = torch.empty(rows, width // 2, dtype=torch.bfloat16)
        _cpu.gelu_mul(gate_up.data_ptr(), y.data_ptr(), rows, width // 2)
        return y

    def add_rms_norm(self, residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
        rows, width = x.shape
        _cpu.add_rms_norm(x.data_ptr(), weight.data_ptr(), residual.data_ptr(), rows, width, eps)

    def soft_cap(self, logits: Tensor, cap: float) -> None:
        _cpu.soft_cap(logits.data_ptr(), logits.shape[0], logits.shape[1], cap)


def _rows(weight: Weight) -> int:
    return weight.shape[0] if isinstance(weight, Tensor) else weight.rows


def _linear(x: Tensor, weight: Weight, bias: Tensor | None, y: Tensor, output: int) -> None:
    bias_pointer = 0 if bias is None else bias.data_ptr()
    if isinstance(weight, Tensor):
        _cpu.linear(
            x.data_ptr(),
            weight.data_ptr(),
            bias_pointer,
            y.data_ptr(),
            x.shape[0],
            weight.shape[0],
            weight.shape[1],
            output,
        )
    else:
        _cpu.quantized_linear(
            x.data_ptr(),
            weight.data.data_ptr(),
            bias_pointer,
            y.data_ptr(),
            x.shape[0],
            weight.rows,
            weight.columns,
            output,
            weight.bits,
        )
