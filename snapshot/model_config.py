"""ModelConfig: what a decoder looks like, whatever file it came from.

The runtime builds a model from this alone; it never reads a Hugging Face or GGUF file.
"""

from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    ValidationError,
    model_validator,
)

from glowplug.errors import CorruptSnapshot


class RopeScaling(BaseModel):
    """How rotary frequencies are stretched; the names are transformers' `rope_type`s.

    `factor` applies to linear, llama3, yarn and longrope; the low/high pair to llama3; the betas,
    `mscale*` and `truncate` to yarn (Peng et al. 2023, arXiv 2309.00071); the short and long
    factors, one for each frequency, to longrope (Ding et al. 2024, arXiv 2402.13753);
    `attention_factor` to both.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    kind: Literal["default", "linear", "llama3", "yarn", "longrope"] = "default"
    factor: float = Field(1.0, gt=0)
    original_max_positions: int | None = Field(None, gt=0)  # not default and linear
    low_freq_factor: float = Field(1.0, gt=0)
    high_freq_factor: float = Field(4.0, gt=0)
    beta_fast: float = Field(32.0, gt=0)
    beta_slow: float = Field(1.0, gt=0)
    attention_factor: float | None = Field(None, gt=0)
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factors: tuple[PositiveFloat, ...] = ()
    long_factors: tuple[PositiveFloat, ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind in ("llama3", "yarn", "longrope") and self.original_max_positions is None:
            raise ValueError(f"{self.kind} without original_max_positions")
        if self.kind == "llama3" and self.low_freq_factor >= self.high_freq_factor:
            raise ValueError("low_freq_factor is not below high_freq_factor")
        if self.kind == "longrope" and self.original_max_positions == 1:
            raise ValueError("original_max_positions is 1")
        return self


class Experts(BaseModel):
    """The mixture of experts that some or all layers have in place of one MLP.

    A router scores all `count` experts for each token; the `per_token` best ones run, weighted by
    the softmax of the scores, which are scaled to sum to 1 where `normalize`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: int = Field(gt=0, le=1 << 12)
    per_token: int = Field(gt=0)
    intermediate_size: int = Field(gt=0, le=1 << 22)
    normalize: bool
    shared_intermediate_size: int | None = Field(None, gt=0, le=1 << 22)  # runs for every token
    layers: tuple[bool, ...] | None = None  # which have them; None: all

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.per_token > self.count:
            raise ValueError(f"{self.per_token} experts per token of {self.count}")
        return self


class ModelConfig(BaseModel):
    """A decoder: pre-norm, rotary, grouped-query attention, gated MLP.

    `architecture` names the runtime's class for it (runtime/models/registry.py): "llama";
    "mixture", the same with experts in place of MLPs; "gemma", with norms after attention and MLP
    too.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    architecture: Literal["llama", "mixture", "gemma"] = "llama"
    family: str  # what the source calls itself: llama, mistral, qwen2, ...
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
    rotary_dim: int | None = Field(None, gt=0, multiple_of=2)  # rotated of a head; None: all
    max_positions: int = Field(gt=0, le=1 << 30)
    tie_embeddings: bool
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # RMS norm of each query and key head before rotation (Qwen3)
    sliding_window: int | None = Field(None, gt=0)  # keys seen, the query's own included; None: all
    sliding_layers: tuple[bool, ...] | None = None  # per layer; None: all, if there is a window
    sliding_rope_theta: float | None = Field(None, gt=0)  # where it differs there, unscaled
    attention_scale: float | None = Field(None, gt=0)  # of a score; None: head_dim^-1/2
    attention_cap: float | None = Field(None, gt=0)  # scores become cap * tanh(score / cap)
    logit_cap: float | None = Field(None, gt=0)  # likewise
    experts: Experts | None = None

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
        if self.rotary_dim is not None and self.rotary_dim > self.head_dim:
            raise ValueError(f"rotary_dim {self.rotary_dim} of heads of {self.head_dim}")
        if self.rope_scaling.kind == "longrope":
            pairs = (self.rotary_dim or self.head_dim) // 2
            for factors in (self.rope_scaling.short_factors, self.rope_scaling.long_factors):
                if len(factors) != pairs:
                    raise ValueError(f"{len(factors)} longrope factors for {pairs} frequencies")
        if (self.experts is not None) != (self.architecture == "mixture"):
            raise ValueError(f"{self.architecture} with{'' if self.experts else 'out'} experts")
        layers = self.experts.layers if self.experts else None
        if layers is not None and len(layers) != self.num_layers:
            raise ValueError(f"{len(layers)} layers with or without experts of {self.num_layers}")
        return self

    def is_sliding(self, layer: int) -> bool:
        """Whether this layer sees only the last `sliding_window` keys."""
        if self.sliding_window is None:
            return False
        return self.sliding_layers is None or self.sliding_layers[layer]

    def has_experts(self, layer: int) -> bool:
        """Whether this layer has experts in place of one MLP."""
        if self.experts is None:
            return False
        return self.experts.layers is None or self.experts.layers[layer]


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
