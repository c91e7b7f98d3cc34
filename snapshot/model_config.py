"""ModelConfig: what a decoder looks like, whatever file it came from.

The runtime builds a model from this alone; it never reads a Hugging Face or GGUF file.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class RopeScaling(BaseModel):
    """How rotary frequencies are stretched; the names are transformers' `rope_type`s.

    `factor` applies to linear, llama3 and yarn; the low/high pair to llama3; the betas,
    `attention_factor`, `mscale*` and `truncate` to yarn (Peng et al. 2023, arXiv 2309.00071).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: float = Field(1.0, gt=0)
    original_max_positions: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


class ModelConfig(BaseModel):
    """A Llama-family decoder: pre-norm, rotary, grouped-query attention, gated SiLU MLP."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    architecture: Literal["llama"] = "llama"
    family: str  # what the source calls itself: llama, mistral, qwen2, qwen3
    vocab_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_layers: int = Field(gt=0)
    num_heads: int = Field(gt=0)
    num_kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    rms_norm_eps: float = Field(gt=0)
    rope_theta: float = Field(gt=0)
    rope_scaling: RopeScaling = RopeScaling()
    max_positions: int = Field(gt=0)
    tie_embeddings: bool
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # RMS norm of each query and key head before rotation (Qwen3)
    sliding_window: int | None = None  # keys seen, the query's own included; None: all
    sliding_layers: tuple[bool, ...] | None = None  # per layer; None: all, if there is a window
