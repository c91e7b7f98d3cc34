"""Write `weights.safetensors`: fuse, convert, lay out and hash a checkpoint's tensors in one pass.

Called by seal.py. At most one sealed tensor is in memory at a time.
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from glowplug.errors import CorruptSnapshot, SnapshotError
from glowplug.spec import Dtype
from snapshot.checkpoint import Checkpoint
from snapshot.layout import part_shapes
from snapshot.manifest import FileEntry
from snapshot.weights_file import plan_weights

_WRITE_BYTES = 1 << 22


def write_weights(
    path: Path, checkpoint: Checkpoint, *, dtype: Dtype, progress: Callable[[float], None]
) -> FileEntry:
    """Write the file (synced to disk) and return its size and SHA-256; `progress` gets 0.0 to 1.0.

    Raises:
        CorruptSnapshot: a tensor holds a NaN or an infinity, or cannot be read.
        SnapshotError: the disk has too little room for it.
        OSError: the disk has become full, for one.
    """
    plan = plan_weights(checkpoint.config, dtype)
    parts = part_shapes(checkpoint.config)
    torch_dtype: torch.dtype = getattr(torch, dtype)  # they have torch's names
    free = shutil.disk_usage(path.parent).free
    if free < plan.size_bytes:
        raise SnapshotError(
            f"{path.parent}: {free >> 20} MiB are free, the snapshot needs "
            f"{plan.size_bytes >> 20}; make room or remove snapshots"
        )
    sha256 = hashlib.sha256()
    written = 0
    with path.open("xb") as file:

        def write(data: memoryview) -> None:
            nonlocal written
            for start in range(0, len(data), _WRITE_BYTES):
                chunk = data[start : start + _WRITE_BYTES]
                sha256.update(chunk)
                file.write(chunk)
                written += len(chunk)
                progress(written / plan.size_bytes)

        write(memoryview(plan.header))
        for name, slot in plan.slots.items():
            tensor = torch.empty(slot.shape, dtype=torch_dtype)
            row = 0
            for part, shape in parts[name].items():
                checkpoint.read(part, tensor[row : row + shape[0]])
                row += shape[0]
            if not _is_finite(tensor):
                raise CorruptSnapshot(
                    f"{checkpoint.name}: the tensor {name} holds NaN or infinite values; the file "
                    "is damaged, download it again"
                )
            write(tensor.view(torch.uint8).flatten().numpy().data)
            write(memoryview(bytes(slot.padding_bytes)))
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(size=written, sha256=sha256.hexdigest())


def _is_finite(tensor: torch.Tensor) -> bool:
    low, high = torch.aminmax(tensor)  # one pass; a NaN wins both
    return bool(torch.isfinite(low) and torch.isfinite(high))
