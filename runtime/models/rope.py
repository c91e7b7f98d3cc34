"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864) and its context extensions.

The formulas and their order of rounding follow transformers' `modeling_rope_utils`, because models
are trained and tested against them.
"""

import math

import torch
from torch import Tensor

from snapshot.model_config import ModelConfig, RopeScaling


def cos_sin_table(config: ModelConfig, positions: int) -> Tensor:
    """float32 [positions, 2, n / 2]: cosines, then sines, an angle for each pair of the n rotated.

    `positions` decides between longrope's factors. transformers decides for each step anew, and so
    mixes both kinds of keys in a sequence that grows; here a position's angle never changes.
    """
    inverse_frequency, attention_factor = _frequencies(config, positions)
    return _table(inverse_frequency, positions) * attention_factor


def rope_variant(config: ModelConfig, positions: int) -> str:
    """Names which of several tables `cos_sin_table` makes for so many positions."""
    if config.rope_scaling.kind != "longrope":
        return ""
    return " long" if _is_long(config.rope_scaling, config, positions) else " short"


def sliding_cos_sin_table(config: ModelConfig, positions: int) -> Tensor:
    """As `cos_sin_table`, for the layers with a sliding window: their own base, nothing scaled."""
    theta = config.sliding_rope_theta
    if theta is None:
        return cos_sin_table(config, positions)
    return _table(_unscaled(theta, config.rotary_dim or config.head_dim), positions)


def _table(inverse_frequency: Tensor, positions: int) -> Tensor:
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), inverse_frequency)
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def _unscaled(theta: float, dim: int) -> Tensor:
    return 1.0 / _powers(theta, dim)


def _powers(theta: float, dim: int) -> Tensor:
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    return theta**exponents


def _frequencies(config: ModelConfig, positions: int) -> tuple[Tensor, float]:
    """Inverse frequencies [rotary_dim / 2] in float32 and the factor on cos and sin."""
    scaling = config.rope_scaling
    frequencies = _unscaled(config.rope_theta, config.rotary_dim or config.head_dim)
    match scaling.kind:
        case "default":
            return frequencies, 1.0
        case "linear":
            return frequencies / scaling.factor, 1.0
        case "llama3":
            return _llama3(frequencies, scaling, config.max_positions), 1.0
        case "yarn":
            return _yarn(frequencies, scaling, config)
        case "longrope":
            return _longrope(scaling, config, positions)


def _llama3(frequencies: Tensor, scaling: RopeScaling, max_positions: int) -> Tensor:
    """Llama 3.1: long wavelengths are stretched, short ones kept, the rest blended."""
    original = scaling.original_max_positions or max_positions
    wavelength = 2 * math.pi / frequencies
    low_wavelength = original / scaling.low_freq_factor
    high_wavelength = original / scaling.high_freq_factor
    blend = (original / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    stretched = frequencies / scaling.factor
    blended = (1 - blend) * stretched + blend * frequencies
    kept_or_blended = torch.where(wavelength < high_wavelength, frequencies, blended)
    return torch.where(wavelength > low_wavelength, stretched, kept_or_blended)


def _yarn(frequencies: Tensor, scaling: RopeScaling, config: ModelConfig) -> tuple[Tensor, float]:
    """YaRN (Peng et al. 2023, arXiv 2309.00071): interpolate by parts, and scale attention."""
    original = scaling.original_max_positions or config.max_positions
    dim = config.rotary_dim or config.head_dim

    def pair_that_turns(rotations: float) -> float:
        return (dim * math.log(original / (rotations * 2 * math.pi))) / (
            2 * math.log(config.rope_theta)
        )

    low, high = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    high += 0.001 if low == high else 0.0
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    keep = 1 - ramp
    frequencies = frequencies / scaling.factor * (1 - keep) + frequencies * keep
    return frequencies, _yarn_attention_factor(scaling)


def _yarn_attention_factor(scaling: RopeScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor

    def mscale(weight: float) -> float:
        return 1.0 if scaling.factor <= 1 else 0.1 * weight * math.log(scaling.factor) + 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return mscale(scaling.mscale) / mscale(scaling.mscale_all_dim)
    return mscale(1.0)


def _longrope(scaling: RopeScaling, config: ModelConfig, positions: int) -> tuple[Tensor, float]:
    """LongRoPE (Ding et al. 2024, arXiv 2402.13753): each frequency has its own divisor."""
    original = scaling.original_max_positions or config.max_positions
    long = _is_long(scaling, config, positions)
    factors = scaling.long_factors if long else scaling.short_factors
    attention_factor = scaling.attention_factor
    if attention_factor is None:
        attention_factor = (
            1.0
            if scaling.factor <= 1
            else math.sqrt(1 + math.log(scaling.factor) / math.log(original))
        )
    powers = _powers(config.rope_theta, config.rotary_dim or config.head_dim)
    return 1.0 / (torch.tensor(factors) * powers), attention_factor


def _is_long(scaling: RopeScaling, config: ModelConfig, positions: int) -> bool:
    return positions > (scaling.original_max_positions or config.max_positions)
