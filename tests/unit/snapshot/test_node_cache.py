"""The node cache: find, list, verify and remove snapshots."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from glowplug.errors import CorruptSnapshot, NotFound
from snapshot.manifest import MANIFEST, TOKENIZER, WEIGHTS
from snapshot.node_cache import NodeCache
from snapshot.restore import restore
from snapshot.seal import seal

NOBODY = "sha256-" + "0" * 64


@pytest.fixture
def digest(write_gguf: Callable[..., Any], cache: NodeCache) -> str:
    path = write_gguf(family="qwen2", biases=("q", "k", "v")).path
    return seal(str(path), dtype="bfloat16", cache=cache, progress=lambda _: None)


def test_an_empty_cache(cache: NodeCache) -> None:
    assert cache.list() == []
    cache.clean()
    assert cache.sealed("0" * 64) is None
    assert not cache.root.exists()


@pytest.mark.parametrize(
    "wrong",
    [NOBODY, "", "sha256-", "../..", "sha256-" + "0" * 63 + "/", "tmp", "sha256-" + "Z" * 64],
)
def test_not_found(cache: NodeCache, digest: str, wrong: str) -> None:
    for method in (cache.path, cache.verify, cache.remove):
        with pytest.raises(NotFound, match="no snapshot"):
            method(wrong)
    assert cache.path(digest).is_dir()


def test_list(cache: NodeCache, digest: str, write_gguf: Callable[..., Any]) -> None:
    before = time.time()
    second = write_gguf("second.gguf", seed=3).path
    other = seal(str(second), dtype="float32", cache=cache, progress=lambda _: None)
    newest, oldest = cache.list()
    assert (newest.digest, oldest.digest) == (other, digest)
    assert (newest.source, newest.dtype, newest.architecture) == (str(second), "float32", "llama")
    assert oldest.architecture == "qwen2"
    assert before - 1 <= newest.created_s <= time.time() + 1
    folder = cache.path(other)
    assert newest.size_bytes == sum((folder / name).stat().st_size for name in (WEIGHTS, TOKENIZER))


def test_damaged_snapshots_are_not_listed(cache: NodeCache, digest: str) -> None:
    (cache.path(digest) / MANIFEST).write_bytes(b"{}")
    (cache.root / NOBODY).mkdir()
    assert cache.list() == []


def test_remove(cache: NodeCache, digest: str) -> None:
    mapped = restore(cache.path(digest)).tensors["embed"]
    copy = mapped.clone()
    cache.remove(digest)
    with pytest.raises(NotFound):
        cache.path(digest)
    assert cache.list() == []
    assert list((cache.root / "tmp").iterdir()) == []
    assert list((cache.root / "sources").iterdir()) == []
    assert torch.equal(mapped, copy)  # who has it mapped keeps it


def test_remove_a_damaged_one(cache: NodeCache, digest: str) -> None:
    (cache.path(digest) / MANIFEST).unlink()
    cache.remove(digest)
    assert not (cache.root / digest).exists()


def test_remove_keeps_what_other_sources_were_sealed_into(
    cache: NodeCache, digest: str, write_gguf: Callable[..., Any]
) -> None:
    second = write_gguf("second.gguf", seed=3).path
    other = seal(str(second), dtype="bfloat16", cache=cache, progress=lambda _: None)
    cache.remove(digest)
    assert [path.read_text() for path in (cache.root / "sources").iterdir()] == [other]


@pytest.mark.parametrize("name", [WEIGHTS, TOKENIZER])
def test_verify_reads_every_byte(cache: NodeCache, digest: str, name: str) -> None:
    assert cache.verify(digest).dtype == "bfloat16"
    path: Path = cache.path(digest) / name
    data = bytearray(path.read_bytes())
    for at in (0, len(data) // 2, len(data) - 1):
        data[at] ^= 1
        path.write_bytes(data)
        with pytest.raises(CorruptSnapshot, match=f"{name}: its bytes changed"):
            cache.verify(digest)
        data[at] ^= 1
    path.write_bytes(data)
    cache.verify(digest)


def test_wrong_source_entries(cache: NodeCache, digest: str) -> None:
    entry = next((cache.root / "sources").iterdir())
    assert cache.sealed(entry.name) == digest
    for content in (b"", b"\xff", b"../../etc", NOBODY.encode()):
        entry.write_bytes(content)
        assert cache.sealed(entry.name) is None


def test_no_torch() -> None:
    """The command line and the pod's supervisor import these."""
    import subprocess
    import sys

    code = (
        "import sys, snapshot.node_cache, snapshot.sealer, snapshot.source, snapshot.manifest\n"
        "heavy = {'torch', 'numpy', 'gguf', 'transformers', 'tokenizers', 'safetensors'}\n"
        "sys.exit(bool(heavy & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_restore_imports_no_sealing_code() -> None:
    import subprocess
    import sys

    code = (
        "import sys, snapshot.restore\n"
        "sys.exit(bool({'gguf', 'transformers', 'safetensors'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
