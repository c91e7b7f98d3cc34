"""Restore: views of one shared mapping, and a clear error for every damage it can see."""

import json
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

import snapshot.restore
from glowplug.errors import CorruptSnapshot
from snapshot.manifest import MANIFEST, WEIGHTS
from snapshot.node_cache import NodeCache
from snapshot.restore import restore
from snapshot.seal import seal
from snapshot.weights_file import PAGE_BYTES, WeightsPlan, plan_weights


@pytest.fixture(params=["bfloat16", "float32"])
def folder(request: Any, write_gguf: Callable[..., Any], cache: NodeCache) -> Path:
    model = write_gguf(hidden=64, intermediate=96, layers=2)
    digest = seal(str(model.path), dtype=request.param, cache=cache, progress=lambda _: None)
    return cache.path(digest)


def test_agrees_with_safetensors(folder: Path) -> None:
    restored = restore(folder)
    loaded = load_file(folder / WEIGHTS)
    tensors = {name: tensor for name, tensor in loaded.items() if not name.startswith("__pad__.")}
    assert tensors.keys() == restored.tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(restored.tensors[name], tensor)
    for name, tensor in loaded.items():
        if name.startswith("__pad__."):
            assert not tensor.any()


def test_tensors_are_aligned_views_of_one_mapping(folder: Path) -> None:
    restored = restore(folder)
    plan = plan_weights(restored.manifest.config, restored.manifest.dtype)
    storages = {tensor.untyped_storage().data_ptr() for tensor in restored.tensors.values()}
    assert len(storages) == 1
    base = storages.pop()
    assert base % mmap.PAGESIZE == 0
    for name, tensor in restored.tensors.items():
        assert tensor.data_ptr() - base == plan.slots[name].offset
        assert tensor.data_ptr() % PAGE_BYTES == 0
        assert tensor.is_contiguous()


def test_the_mapping_lives_as_long_as_a_tensor(folder: Path) -> None:
    kept = restore(folder).tensors["norm"]
    expected = load_file(folder / WEIGHTS)["norm"]
    assert torch.equal(kept, expected)


def test_a_write_reaches_neither_file_nor_others(folder: Path) -> None:
    before = (folder / WEIGHTS).read_bytes()
    one, other = restore(folder), restore(folder)
    one.tensors["norm"].fill_(42.0)
    assert torch.all(one.tensors["norm"] == 42.0)
    assert not torch.any(other.tensors["norm"] == 42.0)
    assert (folder / WEIGHTS).read_bytes() == before


def smaps(name: str) -> dict[str, int]:
    """This process's kB by kind over its mappings of a file."""
    sums: dict[str, int] = {}
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            inside = line.endswith(name)
        elif inside and line.endswith("kB"):
            kind, value = line.removesuffix("kB").split(":")
            sums[kind] = sums.get(kind, 0) + int(value)
    return sums


def test_processes_share_the_pages(folder: Path) -> None:
    restored = restore(folder)
    total = sum(float(tensor.float().sum()) for tensor in restored.tensors.values())
    ours_r, ours_w = os.pipe()
    theirs_r, theirs_w = os.pipe()
    child = os.fork()
    if child == 0:  # as a replica: restores for itself after the fork
        status = 1
        try:
            again = restore(folder)
            same = sum(float(tensor.float().sum()) for tensor in again.tensors.values()) == total
            os.write(theirs_w, b"touched")
            os.read(ours_r, 1)
            status = 0 if same else 2
        finally:
            os._exit(status)
    assert os.read(theirs_r, 7) == b"touched"
    sizes = smaps(str(folder / WEIGHTS))
    os.write(ours_w, b"x")
    assert os.waitpid(child, 0)[1] == 0
    for descriptor in (ours_r, ours_w, theirs_r, theirs_w):
        os.close(descriptor)
    file_kb = (folder / WEIGHTS).stat().st_size // 1024
    assert sizes["Rss"] >= file_kb * 0.9
    assert sizes["Anonymous"] == 0  # nothing was copied
    assert sizes["Private_Dirty"] == 0
    assert sizes["Shared_Clean"] + sizes.get("Shared_Dirty", 0) >= file_kb * 0.9


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_every_flipped_header_byte_is_noticed(folder: Path) -> None:
    manifest = restore(folder).manifest
    header = len(plan_weights(manifest.config, manifest.dtype).header)
    for at in [0, 1, 7, 8, 9, *range(10, header, 211), header - 1]:
        flip(folder / WEIGHTS, at)
        with pytest.raises(CorruptSnapshot, match="header was changed"):
            restore(folder)
        flip(folder / WEIGHTS, at)
    restore(folder)


@pytest.mark.parametrize("name", ["weights.safetensors", "tokenizer.json"])
def test_truncated_or_missing_files(folder: Path, name: str) -> None:
    data = (folder / name).read_bytes()
    for content in (data[:-1], data[: len(data) // 2], b"", data + b"\0"):
        (folder / name).write_bytes(content)
        with pytest.raises(CorruptSnapshot, match=name):
            restore(folder)
    (folder / name).unlink()
    with pytest.raises(CorruptSnapshot, match=name):
        restore(folder)


def test_changed_manifest(folder: Path) -> None:
    path = folder / MANIFEST
    data = path.read_bytes()
    for content in (data + b"\n", data[:-1], data.replace(b"llama", b"lllma", 1), b"", b"{}"):
        path.write_bytes(content)
        with pytest.raises(CorruptSnapshot, match="does not match the snapshot's digest"):
            restore(folder)
    path.unlink()
    with pytest.raises(CorruptSnapshot, match="cannot be read"):
        restore(folder)


def test_manifest_of_another_model(folder: Path) -> None:
    """A manifest with a right digest whose config does not describe the weights file."""
    from snapshot.manifest import digest_of

    content = json.loads((folder / MANIFEST).read_bytes())
    content["config"]["num_layers"] = 1
    data = json.dumps(content).encode()
    (folder / MANIFEST).write_bytes(data)
    moved = folder.rename(folder.with_name(digest_of(data)))
    with pytest.raises(CorruptSnapshot, match="the model's config asks for"):
        restore(moved)


@pytest.mark.parametrize("name", ["../../etc/passwd", "more.bin"])
def test_manifest_with_other_files(folder: Path, name: str) -> None:
    from snapshot.manifest import digest_of

    content = json.loads((folder / MANIFEST).read_bytes())
    content["files"][name] = content["files"][WEIGHTS]
    data = json.dumps(content).encode()
    (folder / MANIFEST).write_bytes(data)
    moved = folder.rename(folder.with_name(digest_of(data)))
    with pytest.raises(CorruptSnapshot, match="lists other files"):
        restore(moved)


def test_weights_larger_than_memory_can_be_mapped(tmp_path: Path) -> None:
    size = psutil.virtual_memory().total * 2 // PAGE_BYTES * PAGE_BYTES
    path = tmp_path / WEIGHTS
    path.touch()
    os.truncate(path, size)  # a hole: takes no room on the disk
    plan = WeightsPlan(header=bytes(PAGE_BYTES), slots={}, size_bytes=size)
    mapped = snapshot.restore._map(path, plan)
    assert len(mapped) == size
    assert mapped[size - 1] == 0
    mapped.close()


def test_wrong_format(folder: Path) -> None:
    from snapshot.manifest import digest_of

    content = json.loads((folder / MANIFEST).read_bytes())
    content["format"] = 99
    data = json.dumps(content).encode()
    (folder / MANIFEST).write_bytes(data)
    moved = folder.rename(folder.with_name(digest_of(data)))
    with pytest.raises(CorruptSnapshot, match="format 99, this version reads 2"):
        restore(moved)
