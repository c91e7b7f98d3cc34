"""ModelConfig: what a decoder looks like, whatever file it came from.

The runtime builds a model from this alone; it never reads a Hugging Face or GGUF file.
"""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from glowplug.errors import CorruptSnapshot


class RopeScaling(BaseModel):
    """How rotary frequencies are stretched; the names are transformers' `rope_type`s.

    `factor` applies to linear, llama3 and yarn; the low/high pair to llama3; the betas,
    `attention_factor`, `mscale*` and `truncate` to yarn (Peng et al. 2023, arXiv 2309.00071).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: float = Field(1.0, gt=0)
    original_max_positions: int | None = Field(None, gt=0)  # llama3 and yarn have it
    low_freq_factor: float = Field(1.0, gt=0)
    high_freq_factor: float = Field(4.0, gt=0)
    beta_fast: float = Field(32.0, gt=0)
    beta_slow: float = Field(1.0, gt=0)
    attention_factor: float | None = Field(None, gt=0)
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind in ("llama3", "yarn") and self.original_max_positions is None:
            raise ValueError(f"{self.kind} without original_max_positions")
        if self.kind == "llama3" and self.low_freq_factor >= self.high_freq_factor:
            raise ValueError("low_freq_factor is not below high_freq_factor")
        return self


class ModelConfig(BaseModel):
    """A Llama-family decoder: pre-norm, rotary, grouped-query attention, gated SiLU MLP."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    architecture: Literal["llama"] = "llama"
    family: str  # what the source calls itself: llama, mistral, qwen2, qwen3
    vocab_size: int = Field(gt=0, le=1 << 24)
    hidden_size: int = Field(gt=0, le=1 << 20)
    intermediate_size: int = Field(gt=0, le=1 << 22)
    num_layers: int = Field(gt=0, le=1 << 10)
    num_heads: int = Field(gt=0, le=1 << 12)
    num_kv_heads: int = Field(gt=0, le=1 << 12)
    head_dim: int = Field(gt=0, le=1 << 12, multiple_of=2)
    rms_norm_eps: float = Field(gt=0)
    rope_theta: float = Field(gt=0)
    rope_scaling: RopeScaling = RopeScaling()
    max_positions: int = Field(gt=0, le=1 << 30)
    tie_embeddings: bool
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # RMS norm of each query and key head before rotation (Qwen3)
    sliding_window: int | None = Field(None, gt=0)  # keys seen, the query's own included; None: all
    sliding_layers: tuple[bool, ...] | None = None  # per layer; None: all, if there is a window

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.num_heads} attention heads cannot share {self.num_kv_heads} key-value heads"
            )
        if self.sliding_layers is not None and len(self.sliding_layers) != self.num_layers:
            raise ValueError(
                f"{len(self.sliding_layers)} sliding_layers for {self.num_layers} layers"
            )
        return self


def checked_config(name: str, fields: dict[str, Any]) -> ModelConfig:
    """A ModelConfig from what a source file says; `name` is that file.

    Raises:
        CorruptSnapshot: a size is missing, impossible or over the limit.
    """
    try:
        return ModelConfig.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise CorruptSnapshot(
            f"{name}: {field + ': ' if field else ''}{message}; the file is damaged or not a model"
        ) from None
