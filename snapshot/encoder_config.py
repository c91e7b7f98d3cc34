"""EncoderConfig: what a text encoder of the BERT family looks like."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from snapshot.model_config import ModelConfig


class EncoderConfig(BaseModel):
    """BERT (Devlin et al. 2018, arXiv 1810.04805) and RoBERTa: post-norm, absolute positions,
    attention in both directions, token type 0 throughout."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    architecture: Literal["bert"] = "bert"
    family: str  # what the source calls itself: bert, roberta, xlm-roberta
    vocab_size: int = Field(gt=0, le=1 << 24)
    hidden_size: int = Field(gt=0, le=1 << 16)
    intermediate_size: int = Field(gt=0, le=1 << 18)
    num_layers: int = Field(gt=0, le=1 << 10)
    num_heads: int = Field(gt=0, le=1 << 10)
    position_rows: int = Field(gt=0, le=1 << 24)  # of the position table
    position_offset: int = Field(ge=0)  # the row of a text's first token
    max_positions: int = Field(gt=0)  # tokens of a text
    token_types: int = Field(gt=0, le=1 << 10)
    norm_eps: float = Field(gt=0)
    activation: Literal["gelu", "gelu_tanh"]

    @property
    def head_dim(self) -> int:
        """Numbers in a head's query, key or value."""
        return self.hidden_size // self.num_heads

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is no multiple of {self.num_heads}")
        if self.position_offset + self.max_positions > self.position_rows:
            raise ValueError(
                f"{self.max_positions} positions from {self.position_offset} on do not fit "
                f"{self.position_rows} rows"
            )
        return self


AnyConfig = ModelConfig | EncoderConfig
