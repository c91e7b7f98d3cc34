"""Write `weights.safetensors`: fuse, convert, lay out and hash a checkpoint's tensors in one pass.

Called by seal.py, which has made room. At most one sealed tensor is in memory at a time. What a
killed sealing has written is not made again (seal_journal.py).
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from glowplug.errors import CorruptSnapshot
from glowplug.spec import Dtype, Quantization
from snapshot.block_writer import BlockWriter
from snapshot.checkpoint import Checkpoint
from snapshot.layout import Bits, part_shapes
from snapshot.manifest import FileEntry
from snapshot.quantization import Codes, pack, quantize
from snapshot.seal_journal import resumed
from snapshot.weights_file import plan_weights

_WRITE_BYTES = 1 << 22
_QUANTIZE_ROWS = 4096  # at a time: what rounding needs beside the numbers stays small
Parts = Mapping[str, tuple[int, ...]]


def write_weights(
    path: Path,
    checkpoint: Checkpoint,
    *,
    journal: Path,
    dtype: Dtype,
    quantization: Quantization,
    progress: Callable[[float], None],
) -> FileEntry:
    """Write the file (synced to disk) and return its size and SHA-256; `progress` gets 0.0 to 1.0.
    A file that is there is gone on with as far as its journal says that it is right.

    Raises:
        CorruptSnapshot: a tensor holds a NaN or an infinity, or cannot be read.
        OSError: the disk has become full, for one.
    """
    plan = plan_weights(checkpoint.config, dtype, quantization)
    parts = part_shapes(checkpoint.config)
    torch_dtype: torch.dtype = getattr(torch, dtype)  # they have torch's names
    position = 0
    with resumed(path, journal) as part:
        blocks = BlockWriter(part.file)

        def write(data: memoryview) -> None:
            nonlocal position
            there = min(len(data), max(0, part.kept_bytes - position))
            position += there
            for start in range(there, len(data), _WRITE_BYTES):
                chunk = data[start : start + _WRITE_BYTES]
                part.hasher.update(chunk)
                blocks.write(chunk)
                part.note()  # pieces are whole blocks: what is hashed of them is written
                position += len(chunk)
                progress(position / plan.size_bytes)

        write(memoryview(plan.header))
        for name, slot in plan.slots.items():
            end = position + slot.size_bytes + slot.padding_bytes
            if end <= part.kept_bytes:
                position = end
                continue
            if slot.bits is None:
                tensor = _numbers(checkpoint, name, parts[name], torch_dtype)
            else:
                tensor = _quantized(checkpoint, name, parts[name], slot.bits)
            write(tensor.view(torch.uint8).flatten().numpy().data)
            write(memoryview(bytes(slot.padding_bytes)))
        blocks.finish()
        os.fsync(part.file.fileno())
        return part.hasher.entry()


def _numbers(checkpoint: Checkpoint, name: str, parts: Parts, dtype: torch.dtype) -> torch.Tensor:
    """The parts, stacked."""
    rows = sum(shape[0] for shape in parts.values())
    tensor = torch.empty((rows, *next(iter(parts.values()))[1:]), dtype=dtype)
    row = 0
    for part, shape in parts.items():
        checkpoint.read(part, tensor[row : row + shape[0]])
        row += shape[0]
    if not _is_finite(tensor):
        raise _not_finite(checkpoint, name)
    return tensor


def _quantized(checkpoint: Checkpoint, name: str, parts: Parts, bits: Bits) -> torch.Tensor:
    """The parts' codes, stacked and laid out: the source's own where it has such."""
    codes: list[Codes] = []
    for part, shape in parts.items():
        own = checkpoint.read_codes(part, bits)
        if own is not None:
            codes.append(own)
            continue
        numbers = _numbers(checkpoint, name, {part: shape}, torch.float32)
        codes += [quantize(rows, bits) for rows in torch.split(numbers, _QUANTIZE_ROWS)]
    for part_codes in codes:
        tables = (part_codes.scales, part_codes.minima)
        if not all(table is None or _is_finite(table) for table in tables):
            raise _not_finite(checkpoint, name)
    return pack(codes, bits)


def _not_finite(checkpoint: Checkpoint, name: str) -> CorruptSnapshot:
    return CorruptSnapshot(
        f"{checkpoint.name}: the tensor {name} holds NaN or infinite values; the file is damaged, "
        "download it again"
    )


def _is_finite(tensor: torch.Tensor) -> bool:
    low, high = torch.aminmax(tensor)  # one pass; a NaN wins both
    return bool(torch.isfinite(low) and torch.isfinite(high))
