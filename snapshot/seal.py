"""Seal a model source into a snapshot in the node cache.

Runs in a process of its own (seal_process.py), as it brings torch and reads untrusted files, or
directly in scripts. Blocking; safe to run for the same source in several processes at once.
"""

import os
from collections.abc import Callable
from pathlib import Path

from glowplug.errors import SnapshotError
from glowplug.spec import Dtype, Quantization
from snapshot.checkpoint import Checkpoint
from snapshot.eviction import make_room, trim
from snapshot.hashing import file_entry
from snapshot.manifest import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    TOKENIZER,
    WEIGHTS,
    FileEntry,
    Manifest,
    digest_of,
)
from snapshot.node_cache import NodeCache, sync_folder
from snapshot.source import Source, find_source, fingerprint
from snapshot.weights import write_weights
from snapshot.weights_file import plan_weights


def seal(
    source: str,
    *,
    dtype: Dtype,
    quantization: Quantization = "none",
    cache: NodeCache,
    progress: Callable[[float], None],
) -> str:
    """The digest of the source's snapshot, which is made unless it is in the cache already.

    The snapshot is made in a temporary folder of the cache, synced, and renamed into place whole;
    after a failure nothing of it is left. `progress` gets 0.0 to 1.0.

    Raises:
        SnapshotError: with the reason and what to do, for the user.
    """
    found = find_source(source)
    key = fingerprint(found, dtype, quantization)
    try:
        cache.clean()
        with cache.workplace(key) as folder:
            digest = cache.sealed(key)  # by another process, while this one waited
            if digest is None:
                manifest = _make(
                    folder,
                    found,
                    dtype=dtype,
                    quantization=quantization,
                    make_room=lambda size: make_room(cache, size),
                    progress=progress,
                )
                if fingerprint(found, dtype, quantization) != key:
                    raise SnapshotError(f"{source}: it changed while it was sealed; seal it again")
                digest = digest_of(manifest)
                cache.put(folder, digest)
                cache.record_sealed(key, digest)
    except OSError as error:
        place = error.filename or cache.root
        raise SnapshotError(f"{place}: {error.strerror}; sealing {source} failed") from error
    trim(cache, keep={digest})
    progress(1.0)
    return digest


def _make(
    folder: Path,
    source: Source,
    *,
    dtype: Dtype,
    quantization: Quantization,
    make_room: Callable[[int], object],
    progress: Callable[[float], None],
) -> bytes:
    """Make the snapshot in `folder`; returns its manifest's bytes."""
    checkpoint = _open(source)
    text = checkpoint.text
    make_room(plan_weights(checkpoint.config, dtype, quantization).size_bytes)
    folder.mkdir()
    weights = write_weights(
        folder / WEIGHTS, checkpoint, dtype=dtype, quantization=quantization, progress=progress
    )
    files = {WEIGHTS: weights}
    files[TOKENIZER] = _write(folder / TOKENIZER, text.tokenizer_json)
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
        files=files,
    ).to_bytes()
    if len(manifest) > MAX_MANIFEST_BYTES:
        raise SnapshotError(f"{source.text}: its chat template is too large")
    _write(folder / MANIFEST, manifest)
    sync_folder(folder)
    return manifest


def _open(source: Source) -> Checkpoint:
    if source.kind == "gguf":
        from snapshot.gguf_source import open_gguf

        return open_gguf(source.path)
    from snapshot.hf_source import open_huggingface

    return open_huggingface(source.path)


def _write(path: Path, data: bytes) -> FileEntry:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return file_entry(data)
