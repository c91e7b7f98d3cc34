"""What a PEFT adapter's `adapter_config.json` says: checked, and reduced to what the weights need.

The arithmetic is that of PEFT's LoRA: y += B(A(x)) · scale, with scale = alpha / r, or alpha / √r
for rank-stabilised LoRA (Kalajdzievski 2023, arXiv 2312.03732). Whatever would change it otherwise
is refused by the name of its field, also a field that this version has never heard of.
"""

import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from glowplug.errors import CorruptSnapshot, UnsupportedModel
from snapshot.json_file import read_json_object

CONFIG = "adapter_config.json"
MAX_RANK = 256
_MAX_CONFIG_BYTES = 1 << 20
_MAX_PATTERNS = 4096
_MAX_PATTERN_CHARS = 256
_MAX_QUANTIFIERS = 3  # of one pattern: a match of a short name then takes milliseconds at most

_Value = TypeVar("_Value", int, float)

# PEFT's names of the modules that can have an adapter, by the part of layout.py's tensors.
MODULES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_KNOWN_TARGETS = {module.rpartition(".")[2] for module in MODULES.values()}

# Fields that say nothing about the result of a finished adapter.
_WITHOUT_EFFECT = {
    "auto_mapping",
    "base_model_name_or_path",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",  # which modules have one, the weights say
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",  # of use_qalora, which is refused
    "revision",
    "runtime_config",
    "task_type",
    "eva_config",  # how it was initialised; the base model is as it was
    "lora_ga_config",
}
# These begin by changing the base model's weights, which we do not have.
_BASE_CHANGING_INITS = ("pissa", "olora", "corda", "loftq", "lora_ga")
_READ = {
    "peft_type",
    "r",
    "lora_alpha",
    "use_rslora",
    "rank_pattern",
    "alpha_pattern",
    "target_modules",
    "bias",
    "init_lora_weights",
}
_REASONS = {
    "use_dora": "DoRA adapters are not supported; merge it into the model",
    "modules_to_save": "it replaces whole modules of the model; merge it into the model",
    "trainable_token_indices": "it changes the embedding; merge it into the model",
    "fan_in_fan_out": "its weights are transposed",
    "lora_bias": "biases beside the adapter are not supported",
}


class _Fields(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)  # other fields are looked at below

    r: int = Field(8, ge=1, le=MAX_RANK)
    lora_alpha: float = Field(8.0, ge=-1e6, le=1e6)
    use_rslora: bool = False
    rank_pattern: dict[str, int] | None = Field(None, max_length=_MAX_PATTERNS)
    alpha_pattern: dict[str, float] | None = Field(None, max_length=_MAX_PATTERNS)
    target_modules: list[str] | str | None = Field(None)


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """Ranks and scales by module; modules are named as in the base model: `model.layers.0.…`."""

    rank: int
    alpha: float
    rank_stabilised: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    targets: frozenset[str] | None  # last parts of the names, where every layer has all of them

    def rank_of(self, module: str) -> int:
        """The rank that the config gives a module."""
        return _by_pattern(self.rank_pattern, module, self.rank)

    def scale_of(self, module: str) -> float:
        """The factor on B·A."""
        rank = self.rank_of(module)
        alpha = _by_pattern(self.alpha_pattern, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.rank_stabilised else rank)


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Read and check `adapter_config.json`.

    Raises:
        CorruptSnapshot: the file is missing, damaged, or a value is out of range.
        UnsupportedModel: another kind of adapter, or a field that asks for what is not supported.
    """
    path = folder / CONFIG
    fields = read_json_object(path, max_bytes=_MAX_CONFIG_BYTES)
    if fields.get("peft_type") != "LORA":
        raise UnsupportedModel(
            f"{path}: peft_type {str(fields.get('peft_type'))[:80]!r} is not supported; only LORA "
            "adapters are"
        )
    _refuse_unsupported(fields, path)
    try:
        known = _Fields.model_validate(
            {k: v for k, v in fields.items() if k in _Fields.model_fields}
        )
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])[:100]
        raise CorruptSnapshot(f"{path}: {field}: {first['msg']}; correct it") from None
    for name in ("rank_pattern", "alpha_pattern"):
        for pattern in getattr(known, name) or ():
            _check_pattern(pattern, f"{path}: {name}")
    return AdapterConfig(
        rank=known.r,
        alpha=known.lora_alpha,
        rank_stabilised=known.use_rslora,
        rank_pattern=known.rank_pattern or {},
        alpha_pattern=known.alpha_pattern or {},
        targets=_targets(known.target_modules, fields, path),
    )


def _refuse_unsupported(fields: dict[str, Any], path: Path) -> None:
    if fields.get("bias", "none") != "none":
        raise UnsupportedModel(
            f"{path}: bias: {str(fields['bias'])[:80]!r} also changes the model's biases; only "
            '"none" is supported: merge the adapter into the model'
        )
    init = fields.get("init_lora_weights")
    if isinstance(init, str) and init.lower().startswith(_BASE_CHANGING_INITS):
        raise UnsupportedModel(
            f"{path}: init_lora_weights: {init[:80]!r} changes the base model too; save the "
            "adapter with path_initial_model_for_weight_conversion, which makes it a plain one"
        )
    for name, value in fields.items():
        if name not in _WITHOUT_EFFECT | _READ and value not in (None, False, 0, "", [], {}):
            reason = _REASONS.get(name, "this field is not supported")
            raise UnsupportedModel(f"{path}: {name[:80]}: {reason}")


def _targets(
    targets: list[str] | str | None, fields: dict[str, Any], path: Path
) -> frozenset[str] | None:
    """The last parts of the target modules' names, if every layer must have them."""
    if not isinstance(targets, list):
        return None  # a pattern, or all linear modules: the weights say which
    for target in targets:
        if target.rpartition(".")[2] not in _KNOWN_TARGETS:
            raise UnsupportedModel(
                f"{path}: target_modules: {target[:80]!r} cannot have an adapter here; these can: "
                f"{', '.join(sorted(_KNOWN_TARGETS))}"
            )
    selective = any(fields.get(name) for name in ("layers_to_transform", "exclude_modules"))
    if selective or fields.get("layers_to_transform") == 0:
        return None
    return frozenset(target for target in targets if "." not in target)


def _check_pattern(pattern: str, where: str) -> None:
    """Patterns are regular expressions from a stranger: none that could take for ever."""
    quantifiers = len(re.findall(r"[*+?{]", pattern))
    grouped = re.search(r"\)[*+{]", pattern)
    if len(pattern) > _MAX_PATTERN_CHARS or quantifiers > _MAX_QUANTIFIERS or grouped:
        raise UnsupportedModel(
            f"{where}: the pattern {pattern[:80]!r} is too complicated; name the modules"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(_whole(pattern))
    except (re.error, OverflowError, RecursionError, Warning):
        raise CorruptSnapshot(f"{where}: {pattern[:80]!r} is no regular expression") from None


def _whole(pattern: str) -> str:
    """What PEFT makes of a pattern (get_pattern_key)."""
    return rf"(.*\.)?({pattern})$"


def _by_pattern(patterns: Mapping[str, _Value], module: str, default: _Value) -> _Value:
    """The value of the first pattern that matches the end of a module's name, as PEFT looks it
    up."""
    for pattern, value in patterns.items():
        if re.match(_whole(pattern), module):
            return value
    return default
