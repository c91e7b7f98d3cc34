"""Classes of accelerators: what a function asks for and what a machine offers.

A machine offers one class: `cpu`, or its GPU's name as `nvidia-h200` (`cuda` where the name is not
known). A function takes `auto`, any class by name, or `cuda`, any GPU.
"""

from collections.abc import Collection

AUTO = "auto"
CPU = "cpu"
CUDA = "cuda"
CLASS_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


def suits(offered: str, wanted: str) -> bool:
    """Whether a machine of the class `offered` can run what wants `wanted`."""
    return wanted in (AUTO, offered) or (wanted == CUDA and offered != CPU)


def refusal(wanted: str, offered: Collection[str]) -> str | None:
    """Why none of these classes will do; None where one does, or none is known yet."""
    if not offered or any(suits(each, wanted) for each in offered):
        return None
    there = " and ".join(sorted(offered))
    return f"accelerator: {wanted} is not here, only {there}; deploy it with auto or {there}"
