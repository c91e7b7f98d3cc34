"""Open a PEFT folder as an adapter of a sealed model. Runs in the sealing process only.

adapter_config.json          see adapter_config.py
adapter_model.safetensors    …layers.N.self_attn.q_proj.lora_A.weight [r, in], lora_B [out, r]
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from glowplug.errors import CorruptSnapshot, UnsupportedModel
from snapshot.adapter_config import MAX_RANK, MODULES, AdapterConfig, read_adapter_config
from snapshot.adapter_layout import adapted_parts
from snapshot.model_config import ModelConfig
from snapshot.safetensors_file import open_safetensors

WEIGHTS = "adapter_model.safetensors"
_PICKLE = "adapter_model.bin"
_DTYPES = ("F32", "F16", "BF16", "F64")
_NAME = re.compile(
    r"base_model\.model\.(?:model\.)?layers\.(\d{1,4})\.(\w+\.\w+)\.lora_([AB])\.weight"
)
_PARTS = {module: part for part, module in MODULES.items()}


@dataclass(frozen=True, kw_only=True)
class Part:
    """The adapter of one matrix of the model: B [out, rank] · A [rank, in] · scale."""

    a: str  # the names of the tensors
    b: str
    rank: int
    scale: float


@dataclass(frozen=True, kw_only=True)
class AdapterCheckpoint:
    """An opened adapter that fits the model. `parts` by layout.py's names: `layers.0.q`."""

    name: str
    parts: dict[str, Part]
    _file: Any

    def read(self, tensor: str) -> torch.Tensor:
        """A tensor in float32. Raises CorruptSnapshot."""
        try:
            value: torch.Tensor = self._file.get_tensor(tensor).float()
        except (SafetensorError, RuntimeError) as error:
            raise CorruptSnapshot(f"{self.name}: {tensor} cannot be read ({error})") from None
        low, high = torch.aminmax(value)
        if not (torch.isfinite(low) and torch.isfinite(high)):
            raise CorruptSnapshot(
                f"{self.name}: the tensor {tensor} holds NaN or infinite values; the adapter's "
                "training diverged, or the file is damaged"
            )
        return value


@contextmanager
def open_adapter(folder: Path, config: ModelConfig) -> Iterator[AdapterCheckpoint]:
    """Check an adapter against its model and map its weights while the block runs.

    Raises:
        CorruptSnapshot: a file is missing or damaged, or the adapter is of another model.
        UnsupportedModel: pickled weights, or an adapter of a kind that is not supported.
    """
    settings = read_adapter_config(folder)
    path = folder / WEIGHTS
    if not path.is_file():
        if (folder / _PICKLE).is_file():
            raise UnsupportedModel(
                f"{folder / _PICKLE}: a Python pickle, which can run code when read; save the "
                "adapter with safe_serialization=True"
            )
        raise CorruptSnapshot(f"{path}: missing; give the folder that PEFT's save_pretrained wrote")
    with open_safetensors(path, fix="copy it again") as file:
        shapes = {}
        for name in file.keys():  # noqa: SIM118
            stored = file.get_slice(name)
            if stored.get_dtype() not in _DTYPES:
                raise UnsupportedModel(
                    f"{path}: the tensor {name[:200]} has the type {stored.get_dtype()}; only "
                    f"{', '.join(_DTYPES)} are read"
                )
            shapes[name] = tuple(stored.get_shape())
        parts = _match(shapes, config, settings, str(path))
        yield AdapterCheckpoint(name=str(path), parts=parts, _file=file)


def _match(
    shapes: dict[str, tuple[int, ...]], config: ModelConfig, settings: AdapterConfig, where: str
) -> dict[str, Part]:
    """The parts that have an adapter; raises for whatever does not fit the model."""
    matrices: dict[str, dict[str, str]] = {}  # part: {"A": tensor, "B": tensor}
    for name in shapes:
        part, which = _part_of(name, where)
        if which in matrices.setdefault(part, {}):
            raise CorruptSnapshot(f"{where}: two tensors for {part}.lora_{which}")
        matrices[part][which] = name
    known = {
        part: shape for parts in adapted_parts(config).values() for part, shape in parts.items()
    }
    found = {
        part: _checked(part, both, shapes, known=known, settings=settings, where=where)
        for part, both in matrices.items()
    }
    if not found:
        raise CorruptSnapshot(f"{where}: holds no adapter weights")
    for part in known:
        module = _module(part)
        if module.rpartition(".")[2] in (settings.targets or ()) and part not in found:
            raise CorruptSnapshot(
                f"{where}: {module} has no adapter though target_modules names it; the file is "
                "incomplete, or of a model with fewer layers"
            )
    return found


def _part_of(name: str, where: str) -> tuple[str, str]:
    """`…layers.0.self_attn.q_proj.lora_A.weight` -> (`layers.0.q`, `A`)."""
    match = _NAME.fullmatch(name)
    part = _PARTS.get(match[2]) if match else None
    if match is None or part is None:
        hint = "; DoRA is not supported" if "lora_magnitude_vector" in name else ""
        raise UnsupportedModel(
            f"{where}: the tensor {name[:200]} is no LoRA weight of a projection of a decoder "
            f"layer{hint}; only adapters of {', '.join(MODULES.values())} are supported"
        )
    return f"layers.{int(match[1])}.{part}", match[3]


def _checked(
    part: str,
    both: dict[str, str],
    shapes: dict[str, tuple[int, ...]],
    *,
    known: dict[str, tuple[int, int]],
    settings: AdapterConfig,
    where: str,
) -> Part:
    module = _module(part)
    if part not in known:
        raise CorruptSnapshot(f"{where}: {module} is not in the model; it is of another model")
    if both.keys() != {"A", "B"}:
        raise CorruptSnapshot(f"{where}: {module} has only lora_{next(iter(both))}; it is damaged")
    outputs, inputs = known[part]
    a, b = shapes[both["A"]], shapes[both["B"]]
    rank = settings.rank_of(module)
    if rank > MAX_RANK or rank < 1:
        raise UnsupportedModel(f"{where}: {module} has rank {rank}; 1 to {MAX_RANK} are supported")
    if a != (rank, inputs) or b != (outputs, rank):
        raise CorruptSnapshot(
            f"{where}: {module} has lora_A {list(a)} and lora_B {list(b)}; with rank {rank} the "
            f"model asks for {[rank, inputs]} and {[outputs, rank]}: it is of another model"
        )
    return Part(a=both["A"], b=both["B"], rank=rank, scale=settings.scale_of(module))


def _module(part: str) -> str:
    """`layers.0.q` -> `model.layers.0.self_attn.q_proj`."""
    prefix, _, last = part.rpartition(".")
    return f"model.{prefix}.{MODULES[last]}"
