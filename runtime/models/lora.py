"""Load a sealed LoRA adapter for a model. What it then does: runtime/kernels/adapted.py."""

from pathlib import Path

from glowplug.errors import CorruptSnapshot, UnsupportedModel
from runtime.kernels.adapted import LoraAdapter
from runtime.models.llama import Llama
from runtime.models.registry import Model
from snapshot.adapter_layout import adapted_parts
from snapshot.adapter_restore import restore_adapter


def load_adapter(path: Path, model: Model) -> LoraAdapter:
    """Map a sealed adapter and bind it. Any thread; reads the whole file.

    Raises:
        CorruptSnapshot: the file is missing, damaged, or of another model.
        UnsupportedModel: a model that takes no adapters.
    """
    restored = restore_adapter(path)
    known = adapted_parts(model.config)
    pairs = {}
    for name, (a, b) in restored.pairs.items():
        shapes = list(known.get(name, {}).values())
        fits = shapes and (b.shape[0], a.shape[1]) == (sum(n for n, _ in shapes), shapes[0][1])
        if not fits or a.dtype != model.dtype:
            raise CorruptSnapshot(f"{path}: of another model ({name}); deploy the function again")
        pairs[id(_weight(model, name))] = (a, b)
    return LoraAdapter(digest=path.stem, size_bytes=restored.size_bytes, pairs=pairs)


def _weight(model: Model, name: str) -> object:
    """The model's own object for a tensor of layout.py: `layers.3.qkv`."""
    if not isinstance(model, Llama):
        raise UnsupportedModel(f"adapters of {model.config.architecture} models are not supported")
    _, number, block = name.split(".")
    layer = model.mlps if block in ("gate_up", "down") else model.layers
    return getattr(layer[int(number)], block)
