"""Open a GGUF file as a Checkpoint. Called by seal.py in the sealing process only.

The file is mapped; tensors are dequantised chunk by chunk with the `gguf` package.
"""

import math
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGMLQuantizationType as Quant
from gguf.quants import dequantize

from glowplug.errors import CorruptSnapshot, UnsupportedModel
from snapshot.checkpoint import Checkpoint, match_parts
from snapshot.gguf_codes import BITS, block_codes
from snapshot.gguf_config import gguf_config
from snapshot.gguf_header import GgufHeader, TensorInfo, read_gguf_header
from snapshot.gguf_tokenizer import gguf_tokenizer
from snapshot.json_file import LFS_POINTER, refuse_lfs_pointer
from snapshot.layout import GROUP, Bits
from snapshot.model_config import ModelConfig
from snapshot.quantization import Codes

_CHUNK_ELEMENTS = 1 << 20  # converted at a time: fits the caches, and long enough for numpy
_TYPES = (
    Quant.F32,
    Quant.F16,
    Quant.BF16,
    Quant.Q8_0,
    Quant.Q4_0,
    Quant.Q4_1,
    Quant.Q4_K,
    Quant.Q5_K,
    Quant.Q6_K,
)
_TOP = {"embed": "token_embd", "norm": "output_norm", "lm_head": "output"}
_LAYER = {
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
Bytes = npt.NDArray[np.uint8]

_ROPE_FREQS = "rope_freqs.weight"  # read into the config


def open_gguf(path: Path) -> Checkpoint:
    """Map and check the file; it stays mapped as long as the checkpoint lives.

    Raises:
        CorruptSnapshot: damaged, cut short, or not what it says it is.
        UnsupportedModel: an architecture, tensor type or tokenizer that is not known.
    """
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise CorruptSnapshot(f"{path}: the file is empty; download it again")
        refuse_lfs_pointer(file.read(len(LFS_POINTER)), path)
        data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)
    name = str(path)
    header = read_gguf_header(data.data, name)
    config = gguf_config(header, _rope_freqs(header, data, name), name)
    infos = _check_tensors(header, config, name)
    return Checkpoint(
        name=name,
        config=config,
        text=gguf_tokenizer(header.metadata, config.vocab_size, name),
        read=_reader(data, infos, config),
        read_codes=_codes_reader(data, infos, config),
    )


def _rope_freqs(header: GgufHeader, data: Bytes, name: str) -> tuple[float, ...] | None:
    """The divisors of the rotary frequencies, where the file has them (Llama 3)."""
    info = header.tensors.get(_ROPE_FREQS)
    if info is None:
        return None
    if info.type != Quant.F32:
        raise UnsupportedModel(f"{name}: the tensor {_ROPE_FREQS} is not F32; convert it again")
    return tuple(_raw(data, info).view(np.float32).tolist())


def _raw(data: Bytes, info: TensorInfo) -> Bytes:
    return data[info.offset : info.offset + info.size_bytes]


def _gguf_name(part: str) -> str:
    """`layers.0.q_bias` -> `blk.0.attn_q.bias`."""
    stem = part.removesuffix("_bias")
    suffix = "bias" if stem != part else "weight"
    if stem in _TOP:
        return f"{_TOP[stem]}.{suffix}"
    _, layer, last = stem.split(".")
    return f"blk.{layer}.{_LAYER[last]}.{suffix}"


def _check_tensors(header: GgufHeader, config: ModelConfig, name: str) -> dict[str, TensorInfo]:
    """The tensor of each part."""
    names = match_parts(
        config,
        {info.name: info.shape for info in header.tensors.values()},
        name_of=_gguf_name,
        ignored=lambda tensor: tensor == _ROPE_FREQS,
        where=name,
    )
    infos = {part: header.tensors[tensor] for part, tensor in names.items()}
    for info in infos.values():
        if info.type not in _TYPES:
            raise UnsupportedModel(
                f"{name}: the tensor {info.name} has the type {info.type.name}; use a file of "
                f"{', '.join(kind.name for kind in _TYPES)}"
            )
    return infos


def _reader(
    data: Bytes, infos: dict[str, TensorInfo], config: ModelConfig
) -> Callable[[str, torch.Tensor], None]:
    half = config.head_dim // 2

    def read(part: str, out: torch.Tensor) -> None:
        rows = out
        group = 1
        if _interleaved(part, config):
            # In the file a head's row 2i is row i of the first half, 2i + 1 row i of the second.
            rows = out.view(-1, 2, half, *out.shape[1:]).transpose(1, 2)
            group = config.head_dim
        _dequantize_rows(data, infos[part], rows, group=group)

    return read


def _codes_reader(
    data: Bytes, infos: dict[str, TensorInfo], config: ModelConfig
) -> Callable[[str, Bits], Codes | None]:
    half = config.head_dim // 2

    def read_codes(part: str, bits: Bits) -> Codes | None:
        info = infos[part]
        if BITS.get(info.type) != bits:
            return None
        blocks = torch.from_numpy(_raw(data, info).copy())
        blocks = blocks.view(info.shape[0], info.shape[1] // GROUP, -1)
        if _interleaved(part, config):
            heads = blocks.view(-1, half, 2, *blocks.shape[1:])
            blocks = heads.transpose(1, 2).reshape(blocks.shape)
        return block_codes(blocks, info.type)

    return read_codes


def _interleaved(part: str, config: ModelConfig) -> bool:
    """llama.cpp interleaves the rotary halves of Llama's query and key rows, not of Qwen's."""
    return config.family in ("llama", "mistral") and part.rpartition(".")[2] in (
        "q",
        "k",
        "q_bias",
        "k_bias",
    )


def _dequantize_rows(data: Bytes, info: TensorInfo, out: torch.Tensor, *, group: int) -> None:
    """Fill `out` [rows / group, ...] from the file, some groups of rows at a time."""
    if len(info.shape) == 1:  # short, and its blocks may span rows
        out = out.unsqueeze(0)
        group = info.shape[0]
    count = len(out)
    group_bytes = info.size_bytes // count
    step = max(1, _CHUNK_ELEMENTS // (group * math.prod(info.shape[1:])))
    raw = _raw(data, info)
    for start in range(0, count, step):
        chunk = raw[start * group_bytes : (start + step) * group_bytes]
        # One long row: dequantize() works on 16 rows at a time, which is slow for short ones.
        values = dequantize(chunk.reshape(1, -1), info.type)
        if not values.flags.writeable:  # F32 comes back as a view of the file
            values = values.copy()
        target = out[start : start + step]
        target.copy_(torch.from_numpy(values).view(target.shape))
