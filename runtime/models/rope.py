"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864) and its context extensions.

The formulas and their order of rounding follow transformers' `modeling_rope_utils`, because models
are trained and tested against them.
"""

import math

import torch
from torch import Tensor

from snapshot.model_config import ModelConfig, RopeScaling


def cos_sin_table(config: ModelConfig, positions: int) -> Tensor:
    """float32 [positions, 2, head_dim / 2]: cosines, then sines, an angle for each pair."""
    inverse_frequency, attention_factor = _frequencies(config)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), inverse_frequency)
    table = torch.stack((angles.cos(), angles.sin()), dim=1)
    return table * attention_factor


def _frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    """Inverse frequencies [head_dim / 2] in float32 and the factor on cos and sin."""
    scaling, dim = config.rope_scaling, config.head_dim
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    match scaling.kind:
        case "default":
            return frequencies, 1.0
        case "linear":
            return frequencies / scaling.factor, 1.0
        case "llama3":
            return _llama3(frequencies, scaling, config.max_positions), 1.0
        case "yarn":
            return _yarn(frequencies, scaling, config)


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
    dim = config.head_dim

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
