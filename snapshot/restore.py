"""Restore a snapshot: its tensors, ready for the forward pass, with no work per byte on the CPU.

Called by a replica once, on its main thread. On the CPU the weights file is mapped and every tensor
is a view of the mapping: nothing is copied, and replicas of one snapshot share its pages. The
mapping is private and copy-on-write: a stray write to a weight cannot reach the file or others.
Threads read what is not in memory (reading.py) while the caller goes on.
"""

import math
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from glowplug.errors import CorruptSnapshot
from glowplug.spec import Dtype
from snapshot.manifest import DRAFT_WEIGHTS, WEIGHTS, Manifest, read_manifest
from snapshot.page_cache import mmap_noreserve
from snapshot.quantization import Quantized
from snapshot.reading import Reading
from snapshot.weights_file import Slot, WeightsPlan, plan_weights


@dataclass(frozen=True, kw_only=True)
class Restored:
    """A snapshot in memory. `tensors` by the names of layout.py; do not write to them."""

    manifest: Manifest
    tensors: dict[str, torch.Tensor | Quantized]
    reading: Reading  # of the model's weights; goes on in the background
    draft: dict[str, torch.Tensor | Quantized] | None  # the draft model's, where there is one


def restore(folder: Path, *, device: str = "cpu") -> Restored:
    """Map a sealed snapshot, or copy it to another device.

    Names, shapes, dtype and file sizes are checked, and the weights file's header byte by byte; the
    weights themselves are not read (NodeCache.verify does that).

    Raises:
        CorruptSnapshot: a file is missing, cut short or changed.
    """
    manifest = read_manifest(folder)
    plan = plan_weights(manifest.config, manifest.dtype, manifest.quantization)
    data = _map(folder / WEIGHTS, plan)
    reading = Reading(data)
    draft = None
    if manifest.draft is not None:  # used after the first token only: the kernel reads it ahead
        draft_plan = plan_weights(manifest.draft.config, manifest.dtype, manifest.quantization)
        draft_data = _map(folder / DRAFT_WEIGHTS, draft_plan)
        draft_data.madvise(mmap.MADV_WILLNEED)
        draft = _tensors(draft_data, draft_plan, manifest.dtype, device)
    return Restored(
        manifest=manifest,
        tensors=_tensors(data, plan, manifest.dtype, device),
        reading=reading,
        draft=draft,
    )


def _tensors(
    data: mmap.mmap, plan: WeightsPlan, dtype_name: Dtype, device: str
) -> dict[str, torch.Tensor | Quantized]:
    dtype: torch.dtype = getattr(torch, dtype_name)  # they have torch's names
    flat = torch.frombuffer(data, dtype=torch.uint8)
    return {
        name: _view(flat.narrow(0, slot.offset, slot.size_bytes).to(device), slot, dtype)
        for name, slot in plan.slots.items()
    }


def _view(data: torch.Tensor, slot: Slot, dtype: torch.dtype) -> torch.Tensor | Quantized:
    """A slot's bytes as its tensor."""
    if slot.bits is None:
        return data.view(dtype).view(slot.shape)
    return Quantized(data, math.prod(slot.shape[:-1]), slot.shape[-1], slot.bits)


def _map(path: Path, plan: WeightsPlan) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != plan.size_bytes:
                raise CorruptSnapshot(
                    f"{path}: {size} bytes, the model's config asks for {plan.size_bytes}; remove "
                    "the snapshot and seal it again"
                )
            data = mmap.mmap(
                file.fileno(),
                0,
                flags=mmap.MAP_PRIVATE | mmap_noreserve(),
                prot=mmap.PROT_READ | mmap.PROT_WRITE,
            )
    except OSError as error:
        raise CorruptSnapshot(f"{path}: cannot be read ({error.strerror})") from None
    if data[: len(plan.header)] != plan.header:
        raise CorruptSnapshot(
            f"{path}: its header was changed; remove the snapshot and seal it again"
        )
    return data
