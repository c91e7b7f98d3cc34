"""Hashes by piece, and how much of a snapshot each policy looks at."""

import hashlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import snapshot.hashing
from glowplug.errors import CorruptSnapshot
from snapshot.hashing import FileHasher, damaged, file_entry, pieces
from snapshot.manifest import TOKENIZER, WEIGHTS, FileEntry, Manifest, read_manifest
from snapshot.node_cache import NodeCache
from snapshot.seal import seal
from snapshot.verification import verify_files

SMALL_PIECE = 4096


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot.hashing, "PIECE_BYTES", SMALL_PIECE)


@pytest.fixture
def folder(write_gguf: Callable[..., Any], cache: NodeCache) -> Path:
    model = write_gguf(hidden=64, intermediate=96)
    digest = seal(str(model.path), dtype="float32", cache=cache, progress=lambda _: None)
    return cache.path(digest)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 8
    path.write_bytes(data)


@given(st.binary(max_size=3 * SMALL_PIECE), st.lists(st.integers(0, 3 * SMALL_PIECE), max_size=4))
def test_hashing_does_not_depend_on_how_it_is_fed(data: bytes, cuts: list[int]) -> None:
    snapshot.hashing.PIECE_BYTES = SMALL_PIECE
    hasher = FileHasher()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        hasher.update(memoryview(data)[start:end])
    entry = hasher.entry()
    assert entry == file_entry(data)
    assert entry.sha256 == hashlib.sha256(data).hexdigest()
    found = pieces("file", entry)
    assert sum(piece.size for piece in found) == len(data) == entry.size
    for piece in found:
        part = data[piece.offset : piece.offset + piece.size]
        assert hashlib.sha256(part).hexdigest() == piece.sha256
        assert piece.size <= SMALL_PIECE
    assert (len(entry.piece_sha256) > 0) == (len(data) > SMALL_PIECE)


def test_a_file_without_pieces_is_one() -> None:
    """Manifests of before, and files whose maker does not list pieces."""
    entry = FileEntry(size=10 * SMALL_PIECE, sha256="0" * 64)
    (piece,) = pieces("file", entry)
    assert (piece.offset, piece.size, piece.sha256) == (0, entry.size, entry.sha256)


@pytest.mark.parametrize(
    "wrong",
    [
        {"piece_bytes": 4, "piece_sha256": ["0" * 64]},
        {"piece_bytes": 0, "piece_sha256": ["0" * 64]},
        {"piece_bytes": 4, "piece_sha256": ["0" * 64] * 4},
        {"piece_bytes": -1, "piece_sha256": []},
        {"piece_bytes": 10, "piece_sha256": ["x" * 64]},
    ],
)
def test_pieces_must_fit_the_size(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        FileEntry(size=10, sha256="0" * 64, **wrong)


@pytest.mark.parametrize("threads", [1, 4])
def test_damaged_names_exactly_the_bad_pieces(tmp_path: Path, threads: int) -> None:
    data = bytes(range(256)) * 160  # ten pieces
    (tmp_path / "file").write_bytes(data)
    all_pieces = pieces("file", file_entry(data))
    assert damaged(tmp_path, all_pieces, threads=threads) == []
    flip(tmp_path / "file", 2 * SMALL_PIECE)
    flip(tmp_path / "file", 10 * SMALL_PIECE - 1)
    bad = damaged(tmp_path, all_pieces, threads=threads)
    assert [piece.offset // SMALL_PIECE for piece in bad] == [2, 9]
    (tmp_path / "file").write_bytes(data[: 3 * SMALL_PIECE + 1])
    bad = damaged(tmp_path, all_pieces, threads=threads)
    assert [piece.offset // SMALL_PIECE for piece in bad] == [3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("name", [WEIGHTS, TOKENIZER])
def test_always_sees_any_flipped_bit(folder: Path, name: str) -> None:
    manifest = read_manifest(folder)
    seen: list[float] = []
    verify_files(folder, manifest, progress=seen.append)
    assert seen[-1] == 1.0
    size = manifest.files[name].size
    for at in (0, 1, size // 3, size - 1):
        flip(folder / name, at)
        with pytest.raises(CorruptSnapshot, match=f"{name}: its bytes changed"):
            verify_files(folder, manifest, "always")
        flip(folder / name, at)
    verify_files(folder, manifest, "always")


def test_always_sees_a_file_that_is_cut_or_gone(folder: Path) -> None:
    manifest = read_manifest(folder)
    data = (folder / TOKENIZER).read_bytes()
    (folder / TOKENIZER).write_bytes(data[:-1])
    with pytest.raises(CorruptSnapshot, match="its bytes changed"):
        verify_files(folder, manifest)
    (folder / TOKENIZER).unlink()
    with pytest.raises(CorruptSnapshot, match=r"tokenizer\.json: cannot be read"):
        verify_files(folder, manifest)


def test_sampled_reads_little_and_finds_it_in_time(folder: Path) -> None:
    manifest = read_manifest(folder)
    count = len(manifest.files[WEIGHTS].piece_sha256)
    assert count > 20
    flip(folder / WEIGHTS, 7 * SMALL_PIECE + 5)
    found = 0
    for _ in range(40 * count):
        try:
            verify_files(folder, manifest, "sampled")
        except CorruptSnapshot:
            found += 1
    expected = 40 * count * 2 / (count + len(manifest.files[TOKENIZER].piece_sha256))
    assert expected / 2 < found < expected * 2


def test_sampled_always_reads_small_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = read_manifest(folder)
    text = (folder / TOKENIZER).read_bytes()
    small = FileEntry(size=len(text), sha256=hashlib.sha256(text).hexdigest())
    changed = Manifest(**{**dict(manifest), "files": {**manifest.files, TOKENIZER: small}})
    flip(folder / TOKENIZER, 100)
    for _ in range(20):
        with pytest.raises(CorruptSnapshot, match=TOKENIZER):
            verify_files(folder, changed, "sampled")


def test_never_reads_nothing(folder: Path) -> None:
    manifest = read_manifest(folder)
    for name in manifest.files:
        (folder / name).unlink()
    verify_files(folder, manifest, "never")
