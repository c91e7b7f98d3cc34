"""Read a GGUF file's header: metadata and where each tensor's bytes are.

Called by gguf_source.py in the sealing process. The `gguf` package's own reader trusts the file
(a wrong array length keeps it busy for ever), so this one checks every count, length and offset
against the file before it uses it. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import struct
from dataclasses import dataclass
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from glowplug.errors import CorruptSnapshot, UnsupportedModel

_VERSIONS = (2, 3)
_MAX_ENTRIES = 1 << 16  # metadata keys, and tensors
_MAX_NAME_BYTES = 1 << 10
_MAX_STRING_BYTES = 1 << 26
_MAX_ITEMS = 1 << 24  # of one array
_MAX_DIMENSIONS = 4
_MAX_ELEMENTS = 1 << 42
_DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 1 << 20

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")

Value = bool | int | float | str | list[Any]


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """Where one tensor is. `shape` is row-major, the reverse of GGUF's order."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int  # from the start of the file
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class GgufHeader:
    """All of a GGUF file but the weights."""

    metadata: dict[str, Value]
    tensors: dict[str, TensorInfo]


class _Cursor:
    """Reads little-endian values in order and refuses to leave the file."""

    def __init__(self, data: memoryview, name: str) -> None:
        self.data = data
        self.name = name
        self.position = 0

    def corrupt(self, problem: str) -> CorruptSnapshot:
        return CorruptSnapshot(
            f"{self.name}: {problem} at byte {self.position}; the file is damaged or cut short, "
            "download it again"
        )

    def take(self, count: int, what: str) -> memoryview:
        if count > len(self.data) - self.position:
            raise self.corrupt(f"{what} reaches past the end of the file")
        chunk = self.data[self.position : self.position + count]
        self.position += count
        return chunk

    def u32(self, what: str) -> int:
        return int(_U32.unpack(self.take(4, what))[0])

    def u64(self, what: str, *, limit: int) -> int:
        value = int(_U64.unpack(self.take(8, what))[0])
        if value > limit:
            raise self.corrupt(f"{what} is {value}, over the limit of {limit},")
        return value

    def string(self, what: str, *, limit: int = _MAX_STRING_BYTES) -> str:
        raw = self.take(self.u64(f"the length of {what}", limit=limit), what)
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError:
            raise self.corrupt(f"{what} is not UTF-8") from None

    def value(self, kind: int, key: str) -> Value:
        if kind == _STRING:
            return self.string(key)
        if kind == _ARRAY:
            return self.array(key)
        if kind not in _SCALARS:
            raise self.corrupt(f"{key} has the unknown type {kind}")
        code = _SCALARS[kind]
        value: Value = struct.unpack("<" + code, self.take(struct.calcsize(code), key))[0]
        return value

    def array(self, key: str) -> list[Any]:
        kind = self.u32(key)
        count = self.u64(f"the length of {key}", limit=_MAX_ITEMS)
        if kind == _STRING:
            return [self.string(key) for _ in range(count)]
        if kind not in _SCALARS:
            raise self.corrupt(f"{key} is an array of the unknown type {kind}")
        code = f"<{count}{_SCALARS[kind]}"
        return list(struct.unpack(code, self.take(struct.calcsize(code), key)))


def read_gguf_header(data: memoryview, name: str) -> GgufHeader:
    """Parse and check the header of a mapped GGUF file; `name` is for error messages.

    Raises:
        CorruptSnapshot: not GGUF, cut short, or a count, length or offset is impossible.
        UnsupportedModel: another version, big-endian, or an unknown tensor type.
    """
    cursor = _Cursor(data, name)
    if len(cursor.data) < 4 or bytes(cursor.take(4, "the magic number")) != b"GGUF":
        raise CorruptSnapshot(
            f"{name}: not a GGUF file; give a .gguf file or a Hugging Face folder"
        )
    version = cursor.u32("the version")
    if version not in _VERSIONS:
        raise UnsupportedModel(
            f"{name}: GGUF version {version}; only versions 2 and 3 in little-endian order are "
            "read, convert the model with a current llama.cpp"
        )
    tensor_count = cursor.u64("the number of tensors", limit=_MAX_ENTRIES)
    key_count = cursor.u64("the number of metadata keys", limit=_MAX_ENTRIES)
    metadata: dict[str, Value] = {}
    for _ in range(key_count):
        key = cursor.string("a metadata key", limit=_MAX_NAME_BYTES)
        if key in metadata:
            raise cursor.corrupt(f"the metadata key {key} comes twice")
        metadata[key] = cursor.value(cursor.u32(key), key)
    return GgufHeader(metadata=metadata, tensors=_read_tensors(cursor, tensor_count, metadata))


def _read_tensors(cursor: _Cursor, count: int, metadata: dict[str, Value]) -> dict[str, TensorInfo]:
    """The tensor table, with offsets from the start of the file."""
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if (
        not isinstance(alignment, int)
        or not 1 <= alignment <= _MAX_ALIGNMENT
        or alignment & (alignment - 1)
    ):
        raise cursor.corrupt(f"general.alignment is {alignment}, which is no power of two,")
    rows = [_read_tensor(cursor) for _ in range(count)]
    start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for info in rows:
        if info.name in tensors:
            raise cursor.corrupt(f"the tensor {info.name} comes twice")
        if info.offset % alignment:
            raise cursor.corrupt(f"the tensor {info.name} is not aligned to {alignment} bytes")
        offset = start + info.offset
        if offset + info.size_bytes > len(cursor.data):
            raise CorruptSnapshot(
                f"{cursor.name}: the tensor {info.name} ends at byte {offset + info.size_bytes}, "
                f"the file at {len(cursor.data)}; it is cut short, download it again"
            )
        tensors[info.name] = TensorInfo(
            name=info.name,
            type=info.type,
            shape=info.shape,
            offset=offset,
            size_bytes=info.size_bytes,
        )
    end, last = start, "the header"
    for info in sorted(tensors.values(), key=lambda info: info.offset):
        if info.offset < end:
            raise cursor.corrupt(f"the tensors {last} and {info.name} overlap")
        end, last = info.offset + info.size_bytes, info.name
    return tensors


def _read_tensor(cursor: _Cursor) -> TensorInfo:
    """One row of the tensor table; its offset counts from the start of the data."""
    name = cursor.string("a tensor's name", limit=_MAX_NAME_BYTES)
    dimensions = cursor.u32(f"the number of dimensions of {name}")
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise cursor.corrupt(f"the tensor {name} has {dimensions} dimensions")
    shape = tuple(
        cursor.u64(f"a dimension of {name}", limit=_MAX_ELEMENTS) for _ in range(dimensions)
    )[::-1]
    elements = math.prod(shape)
    if not 0 < elements <= _MAX_ELEMENTS:
        raise cursor.corrupt(f"the tensor {name} has {elements} elements")
    type_code = cursor.u32(f"the type of {name}")
    try:
        kind = GGMLQuantizationType(type_code)
    except ValueError:
        raise UnsupportedModel(
            f"{cursor.name}: the tensor {name} has the unknown type {type_code}; the file is "
            "damaged or from a newer llama.cpp"
        ) from None
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if shape[-1] % block:
        raise cursor.corrupt(
            f"the rows of {name} ({shape[-1]}) are no multiple of {kind.name}'s {block}"
        )
    return TensorInfo(
        name=name,
        type=kind,
        shape=shape,
        offset=cursor.u64(f"the offset of {name}", limit=1 << 62),
        size_bytes=elements // block * block_bytes,
    )
