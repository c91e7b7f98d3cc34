"""A draft model in the same snapshot: checked against its target, covered by digest and look-up."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoders import write_encoder
from gguf import GGMLQuantizationType as Quant

from glowplug.errors import CorruptSnapshot, SnapshotError, UnsupportedModel
from snapshot.manifest import DRAFT_WEIGHTS, MANIFEST, TOKENIZER, WEIGHTS, read_manifest
from snapshot.node_cache import NodeCache
from snapshot.restore import restore
from snapshot.seal import seal

WriteGguf = Callable[..., Any]


def sealed(cache: NodeCache, target: Path, draft: Path | None, **options: Any) -> str:
    return seal(
        str(target),
        **({"dtype": "float32", "progress": lambda _: None} | options),
        cache=cache,
        draft=None if draft is None else str(draft),
    )


@pytest.fixture
def target(write_gguf: WriteGguf) -> Path:
    path: Path = write_gguf("target.gguf", layers=3).path
    return path


@pytest.fixture
def draft(write_gguf: WriteGguf) -> Path:
    path: Path = write_gguf("draft.gguf", layers=1, hidden=16, heads=2, kv_heads=1, seed=5).path
    return path


def test_both_models_are_in_the_snapshot(target: Path, draft: Path, cache: NodeCache) -> None:
    seen: list[float] = []
    digest = sealed(cache, target, draft, progress=seen.append)
    folder = cache.path(digest)
    names = {file.name for file in folder.iterdir()}
    assert names == {MANIFEST, TOKENIZER, WEIGHTS, DRAFT_WEIGHTS}
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    manifest = cache.verify(digest)
    assert manifest.draft is not None
    assert manifest.draft.source == str(draft)
    assert (manifest.config.num_layers, manifest.draft.config.num_layers) == (3, 1)
    assert digest == "sha256-" + hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()

    together = restore(folder)
    for source, tensors in ((target, together.tensors), (draft, together.draft)):
        alone = restore(cache.path(sealed(cache, source, None)))
        assert alone.draft is None
        assert tensors is not None
        assert tensors.keys() == alone.tensors.keys()
        for name, tensor in tensors.items():
            assert torch.equal(tensor, alone.tensors[name])


def test_the_look_up_tells_draft_models_apart(
    target: Path, draft: Path, write_gguf: WriteGguf, cache: NodeCache
) -> None:
    other = write_gguf("other.gguf", layers=1, seed=9).path
    digests = [sealed(cache, target, each) for each in (None, draft, other)]
    assert len(set(digests)) == 3
    assert [sealed(cache, target, each) for each in (None, draft, other)] == digests
    shutil.copyfile(other, draft)  # replaced
    changed = sealed(cache, target, draft)
    assert changed not in digests
    assert restore(cache.path(changed)).manifest.draft.config.hidden_size == 32  # type: ignore[union-attr]


def test_the_digest_covers_the_draft_model(target: Path, draft: Path, cache: NodeCache) -> None:
    digest = sealed(cache, target, draft)
    weights = cache.path(digest) / DRAFT_WEIGHTS
    data = bytearray(weights.read_bytes())
    data[-5000] ^= 1
    weights.write_bytes(data)
    with pytest.raises(CorruptSnapshot, match=r"draft\.safetensors"):
        cache.verify(digest)
    weights.unlink()
    with pytest.raises(CorruptSnapshot, match=r"draft\.safetensors"):
        read_manifest(cache.path(digest))


def renamed(metadata: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    tokens = [new if token == old else token for token in metadata["tokenizer.ggml.tokens"]]
    return {"tokenizer.ggml.tokens": tokens}


def test_another_vocabulary_is_refused(
    target: Path,
    write_gguf: WriteGguf,
    cache: NodeCache,
    gguf_tokenizer_metadata: dict[str, Any],
) -> None:
    metadata = renamed(gguf_tokenizer_metadata, "<|user|>", "<|human|>")
    other = write_gguf("other.gguf", metadata=metadata).path
    with pytest.raises(UnsupportedModel, match=r"draft_model: .*token '<\|human\|>' is number 3"):
        sealed(cache, target, other)
    assert not list((cache.root / "partial").iterdir())


def test_another_vocabulary_size_is_refused(
    target: Path,
    write_gguf: WriteGguf,
    cache: NodeCache,
    gguf_tokenizer_metadata: dict[str, Any],
) -> None:
    tokens = [*gguf_tokenizer_metadata["tokenizer.ggml.tokens"], "<extra>"]
    types = [*gguf_tokenizer_metadata["tokenizer.ggml.token_type"], 3]
    metadata = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    embed = np.zeros((len(tokens), 32), dtype=np.float32)
    change = {"token_embd.weight": (embed, Quant.F32)}
    other = write_gguf("other.gguf", metadata=metadata, change=change).path
    with pytest.raises(UnsupportedModel, match=r"draft_model: .*has 385 tokens, that of"):
        sealed(cache, target, other)


def test_a_draft_model_that_is_not_there(target: Path, cache: NodeCache, tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match=r"draft_model: .*no such file"):
        sealed(cache, target, tmp_path / "missing.gguf")


def test_neither_of_them_may_be_an_encoder(target: Path, cache: NodeCache, tmp_path: Path) -> None:
    encoder = tmp_path / "encoder"
    write_encoder(encoder, "bert")
    refused = r"draft_model: .*encoder is an encoder, which generates nothing"
    with pytest.raises(UnsupportedModel, match=refused + " to guess; leave draft_model out"):
        sealed(cache, encoder, target)
    with pytest.raises(UnsupportedModel, match=refused + "; give a decoder"):
        sealed(cache, target, encoder)
