"""Open a Hugging Face folder as a Checkpoint. Called by seal.py in the sealing process only.

Weights come from model.safetensors or the shards of model.safetensors.index.json, mapped by the
safetensors library. Pickled weights are refused: reading one can run code.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from glowplug.errors import CorruptSnapshot, UnsupportedModel
from snapshot.checkpoint import Checkpoint, Place, match_parts
from snapshot.encoder_config import AnyConfig, EncoderConfig
from snapshot.hf_config import hf_config
from snapshot.hf_encoder import (
    ENCODER_FAMILIES,
    encoder_config,
    encoder_names,
    is_no_encoder_weight,
)
from snapshot.hf_gemma import text_fields
from snapshot.hf_names import hf_names, is_no_weight
from snapshot.hf_pooling import hf_pooling, hf_text_length
from snapshot.hf_tokenizer import hf_tokenizer
from snapshot.json_file import read_json_object
from snapshot.manifest import EmbeddingFormat
from snapshot.safetensors_file import open_safetensors
from snapshot.source import PICKLE_SUFFIXES

_MAX_CONFIG_BYTES = 1 << 20
_MAX_INDEX_BYTES = 64 << 20
_MAX_SHARDS = 1024
_DTYPES = ("F32", "F16", "BF16", "F64")
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def open_huggingface(folder: Path) -> Checkpoint:
    """Check a folder and map its weights; they stay mapped as long as the checkpoint lives.

    Raises:
        CorruptSnapshot: a file is missing, damaged, cut short, or of another model.
        UnsupportedModel: a model type, weight format or tokenizer that is not known.
    """
    path = folder / "config.json"
    fields = read_json_object(path, max_bytes=_MAX_CONFIG_BYTES)
    encodes = fields.get("model_type") in ENCODER_FAMILIES
    config = _encoder_config(fields, folder) if encodes else hf_config(fields, path)
    tensors = _open_shards(folder)
    places = _check_tensors(tensors, config, folder)
    fields = fields if encodes else text_fields(fields, path)
    text = hf_tokenizer(folder, fields, config.vocab_size, encodes=encodes)
    before, after = text.special_tokens
    return Checkpoint(
        name=str(folder),
        config=config,
        text=text,
        read=_reader(tensors, places),
        embedding=EmbeddingFormat(
            pooling=hf_pooling(folder) or ("mean" if encodes else "last"),
            before=before,
            after=after,
        ),
    )


def _encoder_config(fields: dict[str, Any], folder: Path) -> EncoderConfig:
    config = encoder_config(fields, folder / "config.json")
    longest = min(hf_text_length(folder) or config.max_positions, config.max_positions)
    return config.model_copy(update={"max_positions": longest})


def _open_shards(folder: Path) -> dict[str, tuple[Path, Any]]:
    """Every tensor's name with the shard that holds it, opened."""
    tensors: dict[str, tuple[Path, Any]] = {}
    for path in _shards(folder):
        shard = open_safetensors(path, fix="download it again")
        for name in shard.keys():  # noqa: SIM118
            if name in tensors:
                raise CorruptSnapshot(
                    f"{path}: the tensor {name} is in {tensors[name][0].name} too; remove the file "
                    "that does not belong to the model"
                )
            tensors[name] = (path, shard)
    return tensors


def _shards(folder: Path) -> list[Path]:
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    if (folder / _INDEX).is_file():
        return _indexed_shards(folder)
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES)
    if pickles:
        raise UnsupportedModel(
            f"{folder}: only pickled weights ({pickles[0]}), which can run code when read; convert "
            "them: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    if (folder / "adapter_model.safetensors").is_file():
        raise UnsupportedModel(f"{folder}: an adapter without its base model; merge them first")
    raise CorruptSnapshot(f"{folder}: no {_SINGLE} and no {_INDEX}; download the weights")


def _indexed_shards(folder: Path) -> list[Path]:
    path = folder / _INDEX
    weight_map = read_json_object(path, max_bytes=_MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(file, str) for file in weight_map.values()
    ):
        raise CorruptSnapshot(f"{path}: no weight_map of file names; the file is damaged")
    files = sorted(set(weight_map.values()))
    if not 0 < len(files) <= _MAX_SHARDS:
        raise CorruptSnapshot(f"{path}: names {len(files)} files, {_MAX_SHARDS} at most are read")
    for file in files:
        if file != Path(file).name or not file.endswith(".safetensors"):
            raise UnsupportedModel(
                f"{path}: names {file[:80]!r}; only .safetensors files beside it are read"
            )
        if not (folder / file).is_file():
            raise CorruptSnapshot(f"{folder / file}: missing, the index names it; download it")
    return [folder / file for file in files]


def _check_tensors(
    tensors: dict[str, tuple[Path, Any]], config: AnyConfig, folder: Path
) -> dict[str, Place]:
    """Where each part is."""
    slices = {name: shard.get_slice(name) for name, (_, shard) in tensors.items()}

    if isinstance(config, EncoderConfig):
        name_of, ignored = encoder_names(slices), is_no_encoder_weight
    else:
        name_of, ignored = hf_names(config, slices), partial(is_no_weight, config=config)
    places = match_parts(
        config,
        {name: tuple(stored.get_shape()) for name, stored in slices.items()},
        name_of=name_of,
        ignored=ignored,
        where=str(folder),
    )
    for name in {place.tensor for place in places.values()}:
        kind = slices[name].get_dtype()
        if kind not in _DTYPES:
            raise UnsupportedModel(
                f"{tensors[name][0]}: the tensor {name} has the type {kind}; only "
                f"{', '.join(_DTYPES)} are read"
            )
    return places


def _reader(
    tensors: dict[str, tuple[Path, Any]], places: dict[str, Place]
) -> Callable[[str, torch.Tensor], None]:
    def read(part: str, out: torch.Tensor) -> None:
        place = places[part]
        path, shard = tensors[place.tensor]
        try:
            if place.whole:
                # A view of the mapped file: one copy, converting.
                out.copy_(shard.get_tensor(place.tensor))
            else:
                rows = slice(place.row, place.row + place.rows)
                out.copy_(shard.get_slice(place.tensor)[rows])
        except (SafetensorError, RuntimeError) as error:
            raise CorruptSnapshot(f"{path}: {place.tensor} cannot be read ({error})") from None

    return read
