"""Damaged GGUF files: one of our errors or a readable file, quickly, whatever the damage."""

import functools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glowplug.errors import CorruptSnapshot, SnapshotError, UnsupportedModel
from snapshot.gguf_header import read_gguf_header
from snapshot.gguf_source import open_gguf

MAGIC = b"GGUF" + struct.pack("<I", 3)


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


@functools.cache
def header_bytes(path: Path) -> int:
    """Where the tensors' data begin."""
    return int(gguf.GGUFReader(path).data_offset)


def test_agrees_with_the_gguf_package(write_gguf: Callable[..., Any]) -> None:
    path = write_gguf(quant=gguf.GGMLQuantizationType.Q4_0).path
    header = read_gguf_header(memoryview(path.read_bytes()), "model.gguf")
    reader = gguf.GGUFReader(path)
    fields = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    assert header.metadata == fields
    assert [
        (info.name, info.type, info.shape, info.offset, info.size_bytes)
        for info in header.tensors.values()
    ] == [
        (t.name, t.tensor_type, tuple(t.shape.tolist()[::-1]), t.data_offset, t.n_bytes)
        for t in reader.tensors
    ]


def test_every_truncation_is_corrupt(write_gguf: Callable[..., Any], tmp_path: Path) -> None:
    data = write_gguf(layers=1).path.read_bytes()
    path = tmp_path / "cut.gguf"
    header = header_bytes(tmp_path / "model.gguf")
    cuts = {*range(0, header, 37), *range(header, len(data), 4099), len(data) - 1}
    for length in sorted(cuts):
        path.write_bytes(data[:length])
        with pytest.raises(CorruptSnapshot) as caught:
            open_gguf(path)
        assert str(path) in str(caught.value)


@settings(
    max_examples=400,
    deadline=5000,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_flipped_bits_in_the_header(
    write_gguf: Callable[..., Any], tmp_path: Path, data: st.DataObject
) -> None:
    source = tmp_path / "model.gguf"
    if not source.exists():
        write_gguf(layers=1)
    content = bytearray(source.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, header_bytes(source) - 1))
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path / "flipped.gguf"
    path.write_bytes(content)
    try:
        open_gguf(path)
    except SnapshotError as error:
        assert str(path) in str(error)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"", CorruptSnapshot, "not a GGUF file"),
        (b"PK\x03\x04" + bytes(100), CorruptSnapshot, "not a GGUF file"),
        (b"GGUF", CorruptSnapshot, "past the end"),
        (b"GGUF" + struct.pack("<I", 1), UnsupportedModel, "GGUF version 1"),
        (b"GGUF" + struct.pack(">I", 3), UnsupportedModel, "little-endian"),
        (MAGIC + struct.pack("<QQ", 1 << 60, 0), CorruptSnapshot, "number of tensors"),
        (MAGIC + struct.pack("<QQ", 0, 1 << 60), CorruptSnapshot, "number of metadata keys"),
        (MAGIC + struct.pack("<QQQ", 0, 1, 1 << 60), CorruptSnapshot, "length of a metadata key"),
        (MAGIC + struct.pack("<QQ", 0, 1) + string(b"\xff"), CorruptSnapshot, "not UTF-8"),
        (
            MAGIC + struct.pack("<QQ", 0, 1) + string(b"k") + struct.pack("<I", 99),
            CorruptSnapshot,
            "unknown type 99",
        ),
        (  # a zero-sized read per item would never end
            MAGIC + struct.pack("<QQ", 0, 1) + string(b"k") + struct.pack("<IIQ", 9, 0, 1 << 62),
            CorruptSnapshot,
            "length of k",
        ),
        (
            MAGIC + struct.pack("<QQ", 0, 1) + string(b"k") + struct.pack("<IIQ", 9, 4, 1 << 23),
            CorruptSnapshot,
            "past the end",
        ),
        (
            MAGIC + struct.pack("<QQ", 0, 1) + string(b"k") + struct.pack("<IIQ", 9, 9, 1),
            CorruptSnapshot,
            "array of the unknown type 9",
        ),
        (
            MAGIC + struct.pack("<QQ", 0, 2) + 2 * (string(b"k") + struct.pack("<IB", 7, 1)),
            CorruptSnapshot,
            "k comes twice",
        ),
        (
            MAGIC
            + struct.pack("<QQ", 0, 1)
            + string(b"general.alignment")
            + struct.pack("<II", 4, 3),
            CorruptSnapshot,
            "no power of two",
        ),
    ],
)
def test_hostile_headers(data: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_gguf_header(memoryview(data), "model.gguf")


def tensor(
    name: bytes = b"t", *, dims: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0
) -> bytes:
    return (
        string(name)
        + struct.pack("<I", len(dims))
        + struct.pack(f"<{len(dims)}Q", *dims)
        + struct.pack("<IQ", kind, offset)
    )


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([tensor(), tensor(offset=128)], CorruptSnapshot, "t comes twice"),
        ([tensor(), tensor(b"u", offset=64)], CorruptSnapshot, "t and u overlap"),
        ([tensor(offset=16)], CorruptSnapshot, "not aligned to 32"),
        ([tensor(offset=1 << 20)], CorruptSnapshot, "cut short"),
        ([tensor(dims=(1 << 40,))], CorruptSnapshot, "cut short"),
        ([tensor(dims=(1 << 30, 1 << 30))], CorruptSnapshot, "elements"),
        ([tensor(dims=(0,))], CorruptSnapshot, "0 elements"),
        ([tensor(dims=())], CorruptSnapshot, "0 dimensions"),
        ([tensor(dims=(1, 1, 1, 1, 1))], CorruptSnapshot, "5 dimensions"),
        ([tensor(dims=(33,), kind=2)], CorruptSnapshot, "no multiple of Q4_0's 32"),
        ([tensor(kind=999)], UnsupportedModel, "unknown type 999"),
    ],
)
def test_hostile_tensor_tables(rows: list[bytes], error: type[Exception], message: str) -> None:
    data = MAGIC + struct.pack("<QQ", len(rows), 0) + b"".join(rows)
    data += bytes(-len(data) % 32) + bytes(512)
    with pytest.raises(error, match=message):
        read_gguf_header(memoryview(data), "model.gguf")


def test_git_lfs_pointer(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    with pytest.raises(CorruptSnapshot, match="git lfs pull"):
        open_gguf(path)


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.touch()
    with pytest.raises(CorruptSnapshot, match="empty"):
        open_gguf(path)
