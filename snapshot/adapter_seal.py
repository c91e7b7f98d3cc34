"""Seal a PEFT adapter for a sealed model: check, fuse, and write it into the node cache.

Runs in the sealing process (seal_process.py), or directly in scripts. The model's snapshot is
only looked at, never written: adding an adapter to a function leaves it as it is.
"""

import hashlib
import os
from collections.abc import Callable, Collection
from pathlib import Path

import torch

from glowplug.errors import CorruptSnapshot, SnapshotError, UnsupportedModel
from glowplug.spec import Dtype
from snapshot.adapter_layout import (
    MAX_HEADER_BYTES,
    RANK_STEP,
    AdapterManifest,
    BlockShape,
    adapted_parts,
    plan_adapter,
)
from snapshot.adapter_source import AdapterCheckpoint, open_adapter
from snapshot.adapter_store import AdapterStore, adapter_fingerprint
from snapshot.durable import sync_folder
from snapshot.eviction import make_room
from snapshot.model_config import ModelConfig

_ARCHITECTURES = ("llama",)  # whose projections are layout.py's


def seal_adapter(
    source: str, *, snapshot: str, store: AdapterStore, keep: Collection[str] = ()
) -> str:
    """The digest of the source's adapter, which is made unless it is in the cache already. `keep`:
    the digests of others that must not leave the cache for it, nor the model's snapshot.

    Raises:
        SnapshotError: with the reason and what to do, for the user.
        NotFound: the model's snapshot is not here.
    """
    base = store.base(snapshot)
    config = base.config
    if not isinstance(config, ModelConfig) or config.architecture not in _ARCHITECTURES:
        raise UnsupportedModel(
            f"{source}: adapters of {config.architecture} models are not supported"
        )
    key = adapter_fingerprint(source, base)
    try:
        with store.cache.workplace(f"adapter-{key}") as path:
            digest = store.sealed(key)
            if digest is None:
                folder = Path(source).expanduser().absolute()
                with open_adapter(folder, config) as checkpoint:
                    digest = _write(
                        path,
                        checkpoint,
                        config,
                        base.dtype,
                        make_room=lambda size: make_room(store.cache, size, keep={snapshot, *keep}),
                    )
                if adapter_fingerprint(source, base) != key:
                    raise SnapshotError(f"{source}: it changed while it was sealed; deploy again")
                store.folder.mkdir(parents=True, exist_ok=True)
                store.cache.touch(digest)  # before others can take it for long unused
                path.rename(store.folder / f"{digest}.safetensors")
                sync_folder(store.folder)
                store.record(key, digest)
            else:
                store.cache.touch(digest)
    except OSError as error:
        place = error.filename or store.folder
        raise SnapshotError(f"{place}: {error.strerror}; sealing {source} failed") from error
    return digest


def _write(
    path: Path,
    checkpoint: AdapterCheckpoint,
    config: ModelConfig,
    dtype: Dtype,
    *,
    make_room: Callable[[int], object],
) -> str:
    """Write the file, synced to disk; its digest."""
    parts_of = adapted_parts(config)
    ranks = {
        name: sum(checkpoint.parts[part].rank for part in parts if part in checkpoint.parts)
        for name, parts in parts_of.items()
    }
    manifest = AdapterManifest(
        dtype=dtype,
        blocks={
            name: BlockShape(
                rank=-(-ranks[name] // RANK_STEP) * RANK_STEP,
                inputs=next(iter(parts.values()))[1],
                outputs=sum(outputs for outputs, _ in parts.values()),
            )
            for name, parts in parts_of.items()
            if ranks[name]
        },
    )
    plan = plan_adapter(manifest)
    if len(plan.header) > MAX_HEADER_BYTES:
        raise SnapshotError(f"{checkpoint.name}: too many layers for an adapter")
    make_room(plan.size_bytes)
    torch_dtype: torch.dtype = getattr(torch, dtype)
    sha256 = hashlib.sha256()
    with path.open("xb") as file:

        def write(data: bytes | memoryview) -> None:
            sha256.update(data)
            file.write(data)

        write(plan.header)
        for name, block in manifest.blocks.items():
            fused = _fuse(checkpoint, parts_of[name], block)
            for tensor, slot_name in zip(fused, (f"{name}.a", f"{name}.b"), strict=True):
                rounded = tensor.to(torch_dtype)
                if not torch.isfinite(rounded).all():
                    raise CorruptSnapshot(
                        f"{checkpoint.name}: {name} has values beyond {manifest.dtype}; the "
                        "adapter's training diverged"
                    )
                write(rounded.view(torch.uint8).flatten().numpy().data)
                write(bytes(plan.slots[slot_name].padding_bytes))
        file.flush()
        os.fsync(file.fileno())
    return "sha256-" + sha256.hexdigest()


def _fuse(
    checkpoint: AdapterCheckpoint, parts: dict[str, tuple[int, int]], block: BlockShape
) -> tuple[torch.Tensor, torch.Tensor]:
    """a [R, in] and b [out, R] of one tensor, in float32; see adapter_layout.py."""
    a = torch.zeros(block.rank, block.inputs)
    b = torch.zeros(block.outputs, block.rank)
    row, column = 0, 0
    for name, (outputs, _) in parts.items():
        if part := checkpoint.parts.get(name):
            columns = slice(column, column + part.rank)
            a[columns] = checkpoint.read(part.a)
            b[row : row + outputs, columns] = checkpoint.read(part.b) * part.scale
            column += part.rank
        row += outputs
    return a, b
