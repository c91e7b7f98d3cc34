"""Llama 3's rotary scaling, recovered from the divisors that a GGUF file holds.

A GGUF file has no parameters for it, only the tensor rope_freqs.weight: what each frequency is
divided by (llama.cpp's convert_hf_to_gguf.py). With the wavelengths w and the parameters factor F,
low, high and original context C, the divisor is 1 below w = C / high, F above w = C / low, and
1 / ((1 - s) / F + s) with s = (C / w - low) / (high - low) between. Only C / low and C / high
matter, so low can be set to 1; s is linear in 1 / w, which gives the other two.
"""

import math

import numpy as np

from snapshot.model_config import RopeScaling

_TOLERANCE = 1e-4  # relative; the tensor is float32, and so was its computation
_USUAL = (4.0, 8192)  # high_freq_factor and original context of every Llama 3.1, 3.2 and 3.3


def llama3_divisors(scaling: RopeScaling, *, theta: float, head_dim: int) -> list[float]:
    """What each of the head_dim / 2 frequencies is divided by."""
    context = float(scaling.original_max_positions or 1)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    divisors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (i / head_dim)
        if wavelength < context / high:
            divisors.append(1.0)
        elif wavelength > context / low:
            divisors.append(scaling.factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / scaling.factor + smooth))
    return divisors


def fit_llama3_rope(
    divisors: tuple[float, ...], *, theta: float, head_dim: int
) -> RopeScaling | None:
    """The scaling whose divisors these are, or None where there is none."""
    if len(divisors) != head_dim // 2 or not all(1.0 <= d < 1e6 for d in divisors):
        return None
    factor = float(round(max(divisors), 3))
    for high, context in (_USUAL, _fit(divisors, factor=factor, theta=theta, head_dim=head_dim)):
        scaling = RopeScaling(
            kind="llama3",
            factor=factor,
            low_freq_factor=1.0,
            high_freq_factor=high,
            original_max_positions=context,
        )
        expected = llama3_divisors(scaling, theta=theta, head_dim=head_dim)
        if np.allclose(divisors, expected, rtol=_TOLERANCE, atol=0.0):
            return scaling
    return None


def _fit(
    divisors: tuple[float, ...], *, factor: float, theta: float, head_dim: int
) -> tuple[float, int]:
    """high_freq_factor and original context by least squares over the smooth part."""
    smooth, inverse_wavelength = [], []
    for i, divisor in enumerate(divisors):
        if 1.0 < divisor < factor:
            smooth.append((1 / divisor - 1 / factor) / (1 - 1 / factor))
            inverse_wavelength.append(theta ** (-2 * i / head_dim) / (2 * math.pi))
    if len(smooth) < 2:
        return _USUAL
    slope, intercept = np.polyfit(inverse_wavelength, smooth, 1)
    if slope <= 0 or intercept >= 0:
        return _USUAL
    # intercept = -low / (high - low) and slope = C / (high - low), with low = 1
    return round(1 - 1 / intercept, 3), max(1, round(-slope / intercept))
