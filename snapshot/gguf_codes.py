"""The codes that GGUF's simple quantised types hold, as ours. Called by gguf_source.py.

A block is 32 weights (ggml-common.h of llama.cpp): Q4_0 has d (float16) and 16 bytes; Q4_1 has d, m
and 16 bytes; Q8_0 has d and 32 signed bytes. The low halves of 16 bytes are weights 0..15, the high
ones the rest.
"""

import torch
from gguf.constants import GGMLQuantizationType as Quant
from torch import Tensor

from snapshot.layout import Bits
from snapshot.quantization import Codes

BITS: dict[Quant, Bits] = {Quant.Q4_0: 4, Quant.Q4_1: 4, Quant.Q8_0: 8}


def block_codes(blocks: Tensor, kind: Quant) -> Codes:
    """The codes of uint8 blocks [rows, groups, bytes] of one of the types in BITS."""
    scales = _f16(blocks[..., :2])
    if kind == Quant.Q8_0:
        return Codes(blocks[..., 2:] ^ 128, scales, None)  # a signed byte plus 128
    halves = blocks[..., 2:] if kind == Quant.Q4_0 else blocks[..., 4:]
    codes = torch.cat((halves & 15, halves >> 4), dim=-1)
    minima = scales * -8 if kind == Quant.Q4_0 else _f16(blocks[..., 2:4])
    return Codes(codes, scales, minima)


def _f16(pairs: Tensor) -> Tensor:
    return pairs.contiguous().view(torch.float16).squeeze(-1)
