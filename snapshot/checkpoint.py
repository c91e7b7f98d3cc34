"""Checkpoint: an opened model source, whatever its format. Sources make it, seal.py consumes it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import ValidationError

from glowplug.errors import CorruptSnapshot, UnsupportedModel
from snapshot.encoder_config import AnyConfig
from snapshot.layout import Bits, part_shapes
from snapshot.manifest import ChatFormat, EmbeddingFormat, GenerationDefaults
from snapshot.quantization import Codes


@dataclass(frozen=True, kw_only=True)
class TextFormat:
    """How a model's text becomes tokens and ends; see manifest.Manifest for the fields.

    `tokenizer_json` adds no special token by itself and neither truncates nor pads.
    """

    tokenizer_json: bytes
    add_bos: bool
    bos_token_id: int | None
    generation: GenerationDefaults
    chat: ChatFormat
    special_tokens: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # before and after a text


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Checked before it is made: every part that the config asks for is there, in its shape.

    `read(part, out)` fills `out` with a part's values (names and shapes: layout.part_shapes),
    rounded to `out`'s dtype to nearest even, and holds no more than a chunk of it beside `out`. It
    raises SnapshotError when the file cannot be read.

    `read_codes(part, bits)` gives a part's codes where the source holds it in so many bits and in
    groups as ours; else None.
    """

    name: str  # the file or folder, for messages
    config: AnyConfig
    text: TextFormat
    read: Callable[[str, torch.Tensor], None]
    read_codes: Callable[[str, Bits], Codes | None] = lambda _part, _bits: None
    embedding: EmbeddingFormat | None = None


def generation_defaults(name: str, fields: dict[str, Any]) -> GenerationDefaults:
    """GenerationDefaults from what the file `name` says.

    Raises:
        CorruptSnapshot: a value is out of range.
    """
    try:
        return GenerationDefaults.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise CorruptSnapshot(f"{name}: {first['loc'][0]}: {first['msg']}; correct it") from None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a source has a part: a tensor, or rows of one that holds several parts."""

    tensor: str
    row: int  # the first of the part's
    rows: int
    whole: bool  # the tensor is this part and nothing else


def match_parts(
    config: AnyConfig,
    stored: Mapping[str, tuple[int, ...]],
    *,
    name_of: Callable[[str], str],
    ignored: Callable[[str], bool],
    where: str,
) -> dict[str, Place]:
    """Each part's place in the source: all there, in the right shape, and nothing else.

    `stored` has the source's tensors with their shapes; `ignored` tells those that are no weights.
    Parts of the same name are one tensor there, stacked in the layout's order.

    Raises:
        CorruptSnapshot: a tensor is missing or has another shape.
        UnsupportedModel: the source has more than the config describes.
    """
    shapes = {
        part: shape for parts in part_shapes(config).values() for part, shape in parts.items()
    }
    stacks: dict[str, dict[str, int]] = {}  # of each tensor, its parts and their first rows
    rows: dict[str, int] = {}
    for part, shape in shapes.items():
        name = name_of(part)
        row = rows.get(name, 0)
        stacks.setdefault(name, {})[part] = row
        rows[name] = row + shape[0]
    for name, parts in stacks.items():
        wanted = (rows[name], *shapes[next(iter(parts))][1:])
        if name not in stored:
            raise CorruptSnapshot(
                f"{where}: the tensor {name} is missing; the weights are incomplete or of "
                "another model"
            )
        if stored[name] != wanted:
            raise CorruptSnapshot(
                f"{where}: the tensor {name} has the shape {list(stored[name])}, the model's "
                f"config asks for {list(wanted)}; it is damaged or of another model"
            )
    for name in stored:
        if name not in stacks and not ignored(name):
            raise UnsupportedModel(
                f"{where}: the tensor {name} is no part of the {config.family} model that its "
                "config describes"
            )
    return {
        part: Place(name, row, shapes[part][0], whole=len(parts) == 1)
        for name, parts in stacks.items()
        for part, row in parts.items()
    }
