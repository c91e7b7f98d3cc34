"""The rotary fields of a Hugging Face config.json, old and new, read as transformers 5 reads them.

transformers: modeling_rope_utils.py, RotaryEmbeddingConfigMixin. New files have `rope_parameters`;
old ones `rope_scaling` (with `type` or `rope_type`) and `rope_theta` beside it.
"""

from pathlib import Path
from typing import Any

from glowplug.errors import CorruptSnapshot, UnsupportedModel

_DEFAULT_THETA = 10_000.0
_FIELDS: dict[str, tuple[str, ...]] = {  # of each kind; others are passed over, as there
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("factor", "attention_factor", "short_factor", "long_factor"),
    "yarn": (
        "factor",
        "beta_fast",
        "beta_slow",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ),
}
_REQUIRED = {
    "linear": _FIELDS["linear"],
    "llama3": _FIELDS["llama3"],
    "longrope": ("short_factor", "long_factor"),
}


def hf_rope(
    fields: dict[str, Any], path: Path, *, partial: bool = False
) -> tuple[Any, dict[str, Any]]:
    """Base and the fields of RopeScaling, not validated yet; an old field wins over a new one.

    `fields` has `max_position_embeddings`. With `partial` there may be a `partial_rotary_factor`,
    for the caller to read.

    Raises:
        UnsupportedModel: another kind, a partial rotation, or kinds that differ by layer.
        CorruptSnapshot: a field is missing or impossible.
    """
    parameters = rope_parameters(fields, path)
    for source in () if partial else (parameters, fields):
        if source.get("partial_rotary_factor") not in (None, 1):
            raise UnsupportedModel(f"{path}: partial_rotary_factor is not supported")
    kind = str(parameters.get("rope_type", parameters.get("type", "default")))
    if kind not in _FIELDS:
        raise UnsupportedModel(
            f"{path}: the rope scaling {kind[:60]!r} is not supported; these are: "
            f"{', '.join(_FIELDS)}"
        )
    scaling = {name: parameters[name] for name in _FIELDS[kind] if parameters.get(name) is not None}
    if missing := [name for name in _REQUIRED.get(kind, ()) if name not in scaling]:
        raise CorruptSnapshot(f"{path}: {missing[0]} is missing beside the rope type {kind}")
    if kind in ("llama3", "yarn", "longrope"):
        scaling["original_max_positions"] = _original_positions(fields, parameters)
    if kind in ("yarn", "longrope") and "factor" not in scaling:
        scaling["factor"] = _ratio(fields, scaling, path)
    if kind == "yarn":
        for name in ("beta_fast", "beta_slow"):
            if scaling.get(name) == 0:  # as absent, there
                del scaling[name]
    for length in ("short", "long") if kind == "longrope" else ():
        scaling[f"{length}_factors"] = scaling.pop(f"{length}_factor")
    theta = parameters.get("rope_theta", fields.get("rope_theta", _DEFAULT_THETA))
    return theta, {"kind": kind, **scaling}


def rope_parameters(fields: dict[str, Any], path: Path) -> dict[str, Any]:
    """The object that has them, under its old or its new name, or an empty one."""
    parameters = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    if not isinstance(parameters, dict):
        raise CorruptSnapshot(f"{path}: rope_parameters is not an object")
    if any(isinstance(value, dict) for value in parameters.values()):
        raise UnsupportedModel(f"{path}: rope_parameters per layer type are not supported")
    return parameters


def _original_positions(fields: dict[str, Any], parameters: dict[str, Any]) -> Any:
    for source in (fields, parameters):  # the first that has it wins
        original = source.get("original_max_position_embeddings")
        if original is not None:
            return original
    return fields["max_position_embeddings"]


def _ratio(fields: dict[str, Any], scaling: dict[str, Any], path: Path) -> float:
    try:
        return float(fields["max_position_embeddings"] / scaling["original_max_positions"])
    except (TypeError, ZeroDivisionError, OverflowError):
        raise CorruptSnapshot(
            f"{path}: max_position_embeddings or original_max_position_embeddings is wrong"
        ) from None
