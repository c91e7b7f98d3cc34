"""What a config.json says layer by layer: where a sliding window is, where experts are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from glowplug.errors import CorruptSnapshot, UnsupportedModel

_MAX_LAYERS = 1 << 10


def layer_types(fields: dict[str, Any], path: Path) -> tuple[bool, ...] | None:
    """Which layers are of sliding attention, where the file lists them."""
    kinds = fields.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or any(
        kind not in ("sliding_attention", "full_attention") for kind in kinds
    ):
        raise UnsupportedModel(f"{path}: layer_types other than sliding_ and full_attention")
    return tuple(kind == "sliding_attention" for kind in kinds)


def layers_where(
    fields: dict[str, Any],
    path: Path,
    name: str,
    rule: Callable[[int, int], bool],
) -> tuple[bool, ...]:
    """For each layer, `rule` of its number and of the whole number in the field `name`."""
    value, layers = fields.get(name), fields.get("num_hidden_layers")
    if not isinstance(value, int) or not isinstance(layers, int) or layers > _MAX_LAYERS:
        raise CorruptSnapshot(f"{path}: {name} or num_hidden_layers is wrong")
    return tuple(rule(layer, value) for layer in range(layers))


def sliding_fields(window: Any, layers: tuple[bool, ...]) -> dict[str, Any]:
    """ModelConfig's fields for a window, not validated yet, in these layers."""
    return {"sliding_window": window, "sliding_layers": layers} if any(layers) else {}
