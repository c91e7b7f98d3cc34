"""Map a sealed adapter: its tensors, checked to the last byte.

Called by a replica in a thread of its own, for the first request that names the adapter. Reading
every byte for its hash is also what brings the file into memory, so that no step of the engine
waits for the disk.
"""

import hashlib
import mmap
from dataclasses import dataclass
from pathlib import Path

import torch

from glowplug.errors import CorruptSnapshot
from snapshot.adapter_layout import MAX_HEADER_BYTES, AdapterManifest, manifest_of, plan_adapter


@dataclass(frozen=True, kw_only=True)
class RestoredAdapter:
    """An adapter in memory. `pairs`: (a [R, in], b [out, R]) by layout.py's names; read only."""

    manifest: AdapterManifest
    pairs: dict[str, tuple[torch.Tensor, torch.Tensor]]
    size_bytes: int


def restore_adapter(path: Path) -> RestoredAdapter:
    """Map the file `sha256-HEX.safetensors`.

    Raises:
        CorruptSnapshot: it is missing, cut short or changed.
    """
    data = _map(path)
    if "sha256-" + hashlib.sha256(data).hexdigest() != path.stem:
        raise CorruptSnapshot(
            f"{path}: its bytes changed since it was sealed; remove it and deploy the function "
            "again"
        )
    size = int.from_bytes(data[:8], "little")
    if size > min(MAX_HEADER_BYTES, len(data) - 8):
        raise CorruptSnapshot(f"{path}: not a sealed adapter; deploy the function again")
    manifest = manifest_of(data[8 : 8 + size], str(path))
    plan = plan_adapter(manifest)
    if data[: len(plan.header)] != plan.header or len(data) != plan.size_bytes:
        raise CorruptSnapshot(f"{path}: not a sealed adapter; deploy the function again")
    dtype: torch.dtype = getattr(torch, manifest.dtype)
    flat = torch.frombuffer(data, dtype=dtype)
    tensors = {
        name: flat.narrow(0, slot.offset // dtype.itemsize, slot.size_bytes // dtype.itemsize).view(
            slot.shape
        )
        for name, slot in plan.slots.items()
    }
    pairs = {name: (tensors[f"{name}.a"], tensors[f"{name}.b"]) for name in manifest.blocks}
    return RestoredAdapter(manifest=manifest, pairs=pairs, size_bytes=len(data))


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(
                file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
            )
    except (OSError, ValueError) as error:  # ValueError: it is empty
        reason = error.strerror if isinstance(error, OSError) else error
        raise CorruptSnapshot(f"{path}: cannot be read ({reason})") from None
