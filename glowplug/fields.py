"""Field types that specs share: durations, sizes and names, as users write them."""

import math
import re
from typing import Annotated

from pydantic import BeforeValidator, Field

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_DURATION_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_BYTES_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|)")


def parse_duration(value: object) -> object:
    """Seconds from "1h30m", "45s" or a number; anything else is left for pydantic to refuse.

    Raises:
        ValueError: a string that is not a duration, or a number that is not finite.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a duration; write for example 30s, 5m or 1h30m")
    if not isinstance(value, str):
        return value
    text = value.strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{value!r} is not a duration; write for example 30s, 5m or 1h30m")
    return sum(float(number) * _DURATION_UNITS_S[unit] for number, unit in parts)


def parse_bytes(value: object) -> object:
    """Bytes from "64MiB" or a number; anything else is left for pydantic to refuse.

    Raises:
        ValueError: a string that is not a size.
    """
    if not isinstance(value, str):
        return value
    match = _BYTES.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{value!r} is not a size; write for example 64MiB")
    return int(float(match[1]) * _BYTES_UNITS[match[2]])


Seconds = Annotated[float, BeforeValidator(parse_duration), Field(allow_inf_nan=False)]
Bytes = Annotated[int, BeforeValidator(parse_bytes)]
