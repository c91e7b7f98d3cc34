"""The sealed form of a LoRA adapter: one safetensors file, whose SHA-256 is the adapter's name.

For every tensor of layout.py that it changes, R being the sum of the ranks of the parts that are
fused into it, rounded up to 16:

    layers.N.qkv.a    [R, in]    the parts' A, one under the other
    layers.N.qkv.b    [out, R]   each part's B times its scale, in its own rows and columns; else 0

so that y += (x aᵀ) bᵀ is one low-rank product for each fused projection. The same for `o`,
`gate_up` and `down`. The numbers have the model's dtype, also where its weights are quantised. The
file follows from the manifest in its header, byte for byte, so a reader need not trust the rest of
the header; tensors begin at 4 KiB like a snapshot's. No torch here.
"""

import json
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from glowplug.errors import CorruptSnapshot
from glowplug.spec import Dtype
from snapshot.layout import part_shapes
from snapshot.model_config import ModelConfig
from snapshot.weights_file import WeightsPlan, plan_tensors

ADAPTER_FORMAT = 1
RANK_STEP = 16  # the kernels work on 16 outputs at a time
MAX_HEADER_BYTES = 16 * 2**20
_BLOCKS = ("qkv", "o", "gate_up", "down")
_MANIFEST = "glowplug.adapter"


class BlockShape(BaseModel):
    """One adapted tensor: its own shape [out, in], and R."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rank: int = Field(gt=0, multiple_of=RANK_STEP)
    inputs: int = Field(gt=0, le=1 << 24)
    outputs: int = Field(gt=0, le=1 << 24)


class AdapterManifest(BaseModel):
    """All that the file's layout follows from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int = ADAPTER_FORMAT
    dtype: Dtype
    blocks: dict[str, BlockShape]  # by the tensor's name in layout.py


def adapted_parts(config: ModelConfig) -> dict[str, dict[str, tuple[int, int]]]:
    """For every tensor that can have an adapter its parts, top to bottom, with [out, in]."""
    return {
        name: {part: (shape[0], shape[1]) for part, shape in parts.items()}
        for name, parts in part_shapes(config).items()
        if name.rpartition(".")[2] in _BLOCKS
    }


def plan_adapter(manifest: AdapterManifest) -> WeightsPlan:
    """Where everything lies in the file."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, block in manifest.blocks.items():
        shapes[f"{name}.a"] = (block.rank, block.inputs)
        shapes[f"{name}.b"] = (block.outputs, block.rank)
    return plan_tensors(shapes, manifest.dtype, metadata={_MANIFEST: manifest.model_dump_json()})


def manifest_of(header: bytes, where: str) -> AdapterManifest:
    """The manifest in a file's header (its bytes without the length before them).

    Raises:
        CorruptSnapshot: there is none, or of another format.
    """
    try:
        metadata: Mapping[str, str] = json.loads(header)["__metadata__"]
        manifest = AdapterManifest.model_validate_json(metadata[_MANIFEST])
    except (ValueError, KeyError, TypeError, RecursionError, ValidationError):
        raise CorruptSnapshot(f"{where}: not a sealed adapter; deploy it again") from None
    if manifest.format != ADAPTER_FORMAT:
        raise CorruptSnapshot(
            f"{where}: format {manifest.format}, this version reads {ADAPTER_FORMAT}; deploy it "
            "again"
        )
    return manifest
