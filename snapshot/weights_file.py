"""Where each tensor lies in `weights.safetensors`. No torch: restore plans while torch is busy.

The file follows from config, dtype and quantization alone, byte for byte, header included, so a
reader need not trust a header: it compares it with the one it expects.

Every tensor begins at a multiple of 4 KiB of the file, so that it can be mapped, read with O_DIRECT
and handed to a kernel as it lies. safetensors allows no hole between tensors, but it allows spaces
at the end of the header and any number of tensors: the header is padded with spaces to 4 KiB, and
each gap is an explicit uint8 tensor `__pad__.N` of zeros, the last of which pads the file itself.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from glowplug.spec import Dtype, Quantization
from snapshot.encoder_config import AnyConfig
from snapshot.layout import Bits, packed_bytes, tensor_shapes, weight_bits

PAGE_BYTES = 4096
DTYPE_BYTES: dict[Dtype, int] = {"bfloat16": 2, "float32": 4}
_DTYPE_NAMES: dict[Dtype, str] = {"bfloat16": "BF16", "float32": "F32"}


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor's place in the file."""

    shape: tuple[int, ...]
    offset: int  # from the start of the file, a multiple of PAGE_BYTES
    size_bytes: int
    padding_bytes: int  # zeros after it, up to the next page
    bits: Bits | None  # of a quantised weight; its bytes are then of layout.packed_bytes


@dataclass(frozen=True, kw_only=True)
class WeightsPlan:
    """The whole file: `header`, then the slots in order."""

    header: bytes
    slots: dict[str, Slot]
    size_bytes: int


def plan_weights(
    config: AnyConfig, dtype: Dtype, quantization: Quantization = "none"
) -> WeightsPlan:
    """Lay the sealed tensors of a model out in a file."""
    return plan_tensors(tensor_shapes(config), dtype, quantization)


def plan_tensors(
    shapes: Mapping[str, tuple[int, ...]],
    dtype: Dtype,
    quantization: Quantization = "none",
    *,
    metadata: Mapping[str, str] | None = None,
) -> WeightsPlan:
    """Lay these tensors out in a file; `metadata` goes into its header."""
    item_bytes = DTYPE_BYTES[dtype]
    entries: dict[str, object] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    slots: dict[str, Slot] = {}
    position = 0
    for name, shape in shapes.items():
        bits = weight_bits(name, shape, quantization)
        if bits is None:
            size = math.prod(shape) * item_bytes
        else:
            size = packed_bytes(math.prod(shape[:-1]), shape[-1], bits)
        padding = -size % PAGE_BYTES
        end = position + size
        entries[name] = {
            "dtype": "U8" if bits else _DTYPE_NAMES[dtype],
            "shape": (size,) if bits else shape,
            "data_offsets": (position, end),
        }
        if padding:
            entries[f"__pad__.{len(slots)}"] = {
                "dtype": "U8",
                "shape": (padding,),
                "data_offsets": (end, end + padding),
            }
        slots[name] = Slot(shape, position, size, padding, bits)
        position = end + padding
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % PAGE_BYTES)
    header = len(text).to_bytes(8, "little") + text
    return WeightsPlan(
        header=header,
        slots={
            name: replace(slot, offset=len(header) + slot.offset) for name, slot in slots.items()
        },
        size_bytes=len(header) + position,
    )
