"""The operations a decoder layer is made of, per device: torch's own, or ours where torch has none.

`kernels_for` chooses. Every set computes the same thing; the tests hold each against float64.
"""

import torch

from runtime.kernels.cpu_kernels import CpuKernels, cpu_kernels_supported
from runtime.kernels.interface import Kernels
from runtime.kernels.torch_kernels import TorchKernels


def kernels_for(*, dtype: torch.dtype, device: str, head_dim: int) -> Kernels:
    """The fastest kernels for a model on this machine."""
    if device == "cpu" and dtype is torch.bfloat16 and cpu_kernels_supported(head_dim=head_dim):
        return CpuKernels()
    return TorchKernels(dtype)
