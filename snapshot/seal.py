"""Seal a model source into a snapshot in the node cache.

Runs in a process of its own (seal_process.py), as it brings torch and reads untrusted files, or
directly in scripts. Blocking; safe to run for the same source in several processes at once.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

from glowplug.errors import SnapshotError
from glowplug.spec import Dtype, Quantization
from snapshot.checkpoint import Checkpoint
from snapshot.draft import about_draft, check_draft, find_draft
from snapshot.durable import sync_folder, write_synced
from snapshot.eviction import make_room, trim, used_bytes
from snapshot.hashing import file_entry
from snapshot.manifest import (
    DRAFT_WEIGHTS,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    TOKENIZER,
    WEIGHTS,
    DraftModel,
    FileEntry,
    Manifest,
    digest_of,
)
from snapshot.node_cache import NodeCache
from snapshot.source import Source, find_source, fingerprint
from snapshot.weights import write_weights
from snapshot.weights_file import plan_weights

_SNAPSHOT = "snapshot"
_MAKER = "torch"


def seal(
    source: str | Source,
    *,
    dtype: Dtype,
    quantization: Quantization = "none",
    draft: str | Source | None = None,
    cache: NodeCache,
    progress: Callable[[float], None],
) -> str:
    """The digest of the source's snapshot, which is made unless it is in the cache already.

    `source` is what find_source takes or gives; `draft` a draft model's, which is sealed into the
    same snapshot. The snapshot is made in a folder of its own in the cache, synced, and renamed
    into place whole; after a failure nothing of it is left, and where this process is killed the
    next sealing goes on with it. `progress` gets 0.0 to 1.0.

    Raises:
        SnapshotError: with the reason and what to do, for the user.
    """
    found = find_source(source) if isinstance(source, str) else source
    found_draft = draft if isinstance(draft, Source) else find_draft(draft)
    key = fingerprint(found, dtype, quantization, found_draft)
    try:
        cache.clean()
        with cache.resumable(name := f"seal-{key}") as folder:
            digest = cache.sealed(key)  # by another process, while this one waited
            if digest is None:
                manifest = _make(
                    folder,
                    found,
                    found_draft,
                    dtype=dtype,
                    quantization=quantization,
                    make_room=lambda size: make_room(cache, size, keep={name}),
                    progress=progress,
                )
                if fingerprint(found, dtype, quantization, found_draft) != key:
                    raise SnapshotError(
                        f"{found.text}: it changed while it was sealed; seal it again"
                    )
                digest = digest_of(manifest)
                cache.put(folder / _SNAPSHOT, digest)
                cache.record_sealed(key, digest)
    except OSError as error:
        place = error.filename or cache.root
        raise SnapshotError(f"{place}: {error.strerror}; sealing {found.text} failed") from error
    trim(cache, keep={digest})
    progress(1.0)
    return digest


def _make(
    folder: Path,
    source: Source,
    draft_source: Source | None,
    *,
    dtype: Dtype,
    quantization: Quantization,
    make_room: Callable[[int], object],
    progress: Callable[[float], None],
) -> bytes:
    """Make the snapshot in `folder`/snapshot; returns its manifest's bytes."""
    checkpoint = _open(source)
    text = checkpoint.text
    weights = {WEIGHTS: checkpoint}
    draft = None
    if draft_source is not None:
        with about_draft():
            weights[DRAFT_WEIGHTS] = _open(draft_source)
            draft_config = check_draft(checkpoint, weights[DRAFT_WEIGHTS])
        draft = DraftModel(source=draft_source.text, config=draft_config)
    sizes = {
        name: plan_weights(each.config, dtype, quantization).size_bytes
        for name, each in weights.items()
    }
    _begin(folder)
    make_room(max(0, sum(sizes.values()) - used_bytes(folder)))
    snapshot = folder / _SNAPSHOT
    snapshot.mkdir(exist_ok=True)
    files: dict[str, FileEntry] = {}
    for name, each in weights.items():
        done = sum(entry.size for entry in files.values())
        files[name] = write_weights(
            snapshot / name,
            each,
            journal=folder / f"{name}.pieces",
            dtype=dtype,
            quantization=quantization,
            progress=_part(progress, done, sizes[name], sum(sizes.values())),
        )
    files[TOKENIZER] = _write(snapshot / TOKENIZER, text.tokenizer_json)
    manifest = Manifest(
        source=source.text,
        dtype=dtype,
        quantization=quantization,
        config=checkpoint.config,
        add_bos=text.add_bos,
        bos_token_id=text.bos_token_id,
        generation=text.generation,
        chat=text.chat,
        embedding=checkpoint.embedding,
        draft=draft,
        files=files,
    ).to_bytes()
    if len(manifest) > MAX_MANIFEST_BYTES:
        raise SnapshotError(f"{source.text}: its chat template is too large")
    _write(snapshot / MANIFEST, manifest)
    sync_folder(snapshot)
    return manifest


def _begin(folder: Path) -> None:
    """The folder for what is being made. What a killed sealing has left there stays, if the same
    torch has made it: another may round differently, and the digest would be one of neither."""
    import torch

    maker = folder / _MAKER
    if not maker.is_file() or maker.read_bytes() != torch.__version__.encode():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        maker.write_bytes(torch.__version__.encode())


def _part(
    progress: Callable[[float], None], done: int, size: int, total: int
) -> Callable[[float], None]:
    """The progress of one file of several, of which `done` bytes are written."""
    return lambda fraction: progress((done + fraction * size) / total)


def _open(source: Source) -> Checkpoint:
    if source.kind == "gguf":
        from snapshot.gguf_source import open_gguf

        return open_gguf(source.path)
    from snapshot.hf_source import open_huggingface

    return open_huggingface(source.path)


def _write(path: Path, data: bytes) -> FileEntry:
    write_synced(path, data, replace=True)
    return file_entry(data)
