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
from snapshot.checkpoint import Checkpoint, Place, match_parts
from snapshot.gguf_codes import BITS, block_codes
from snapshot.gguf_config import ROPE_TENSORS, gguf_config
from snapshot.gguf_header import GgufHeader, TensorInfo, read_gguf_header
from snapshot.gguf_names import gguf_names, stored_rows
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
Bytes = npt.NDArray[np.uint8]


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
    config = gguf_config(header, _rope_divisors(header, data, name), name)
    places = _check_tensors(header, config, name)
    return Checkpoint(
        name=name,
        config=config,
        text=gguf_tokenizer(header.metadata, config.vocab_size, name),
        read=_reader(data, header, places, config),
        read_codes=_codes_reader(data, header, places, config),
    )


def _rope_divisors(header: GgufHeader, data: Bytes, name: str) -> dict[str, tuple[float, ...]]:
    """The divisors of the rotary frequencies, where the file has them (Llama 3, Phi-3)."""
    divisors = {}
    for tensor in ROPE_TENSORS:
        info = header.tensors.get(tensor)
        if info is None:
            continue
        if info.type != Quant.F32:
            raise UnsupportedModel(f"{name}: the tensor {tensor} is not F32; convert it again")
        divisors[tensor] = tuple(_raw(data, info).view(np.float32).tolist())
    return divisors


def _raw(data: Bytes, info: TensorInfo) -> Bytes:
    return data[info.offset : info.offset + info.size_bytes]


def _check_tensors(header: GgufHeader, config: ModelConfig, name: str) -> dict[str, Place]:
    """Where each part is."""
    places = match_parts(
        config,
        {info.name: stored_rows(info.name, info.shape) for info in header.tensors.values()},
        name_of=gguf_names(config),
        ignored=lambda tensor: tensor in ROPE_TENSORS,
        where=name,
    )
    for info in {place.tensor: header.tensors[place.tensor] for place in places.values()}.values():
        if info.type not in _TYPES:
            raise UnsupportedModel(
                f"{name}: the tensor {info.name} has the type {info.type.name}; use a file of "
                f"{', '.join(kind.name for kind in _TYPES)}"
            )
    return places


def _reader(
    data: Bytes, header: GgufHeader, places: dict[str, Place], config: ModelConfig
) -> Callable[[str, torch.Tensor], None]:
    half = config.head_dim // 2

    def read(part: str, out: torch.Tensor) -> None:
        place = places[part]
        info = header.tensors[place.tensor]
        rows = out
        group = 1
        if _interleaved(part, config):
            # In the file a head's row 2i is row i of the first half, 2i + 1 row i of the second.
            rows = out.view(-1, 2, half, *out.shape[1:]).transpose(1, 2)
            group = config.head_dim
        if config.architecture == "gemma" and part.endswith("norm"):
            stored = torch.empty(out.shape)  # with the 1 that the layout leaves out
            _dequantize_rows(data, info, stored, group=1, row=0)
            out.copy_(stored - 1.0)
        else:
            _dequantize_rows(data, info, rows, group=group, row=place.row)

    return read


def _codes_reader(
    data: Bytes, header: GgufHeader, places: dict[str, Place], config: ModelConfig
) -> Callable[[str, Bits], Codes | None]:
    half = config.head_dim // 2

    def read_codes(part: str, bits: Bits) -> Codes | None:
        place = places[part]
        info = header.tensors[place.tensor]
        if BITS.get(info.type) != bits:
            return None
        row_bytes = info.size_bytes // math.prod(info.shape[:-1])
        raw = _raw(data, info)[place.row * row_bytes :][: place.rows * row_bytes]
        blocks = torch.from_numpy(raw.copy()).view(place.rows, info.shape[-1] // GROUP, -1)
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


def _dequantize_rows(
    data: Bytes, info: TensorInfo, out: torch.Tensor, *, group: int, row: int
) -> None:
    """Fill `out` [rows / group, ...] from the file's rows from `row`, some groups at a time."""
    if len(info.shape) == 1:  # short, and its blocks may span rows
        out = out.unsqueeze(0)
        group = info.shape[0]
    count = len(out)
    row_bytes = info.size_bytes // math.prod(info.shape[:-1])
    if len(info.shape) == 1:
        row_bytes //= group
    group_bytes = row_bytes * group
    step = max(1, _CHUNK_ELEMENTS * count // max(out.numel(), 1))
    raw = _raw(data, info)[row * row_bytes :]
    for start in range(0, count, step):
        end = min(start + step, count)
        chunk = raw[start * group_bytes : end * group_bytes]
        # One long row: dequantize() works on 16 rows at a time, which is slow for short ones.
        values = dequantize(chunk.reshape(1, -1), info.type)
        if not values.flags.writeable:  # F32 comes back as a view of the file
            values = values.copy()
        target = out[start:end]
        target.copy_(torch.from_numpy(values).view(target.shape))
