"""The class of accelerator that this machine offers: `cpu`, or the name of its GPU.

Asked in the fork server, which must make no CUDA call and start no thread, so it is read from what
NVIDIA's driver says in /proc. One machine has one class: that of its first GPU.
"""

import re
from pathlib import Path

from glowplug.accelerators import CPU, CUDA

_DRIVER = Path("/proc/driver/nvidia/gpus")
_DEVICES = Path("/dev")
_MODEL = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)


def accelerator(
    *, can_use_cuda: bool, visible: str | None, driver: Path = _DRIVER, devices: Path = _DEVICES
) -> str:
    """`nvidia-h200`, `cuda` or `cpu`. `can_use_cuda`: this torch is built for it; `visible`:
    CUDA_VISIBLE_DEVICES, which hides all GPUs where it is empty or -1."""
    if not can_use_cuda or (visible is not None and visible.strip() in ("", "-1")):
        return CPU
    for information in sorted(driver.glob("*/information")):
        try:
            model = _MODEL.search(information.read_text(errors="replace"))
        except OSError:
            continue
        if model is not None and (name := _class_of(model[1])):
            return name
    return CUDA if any(devices.glob("nvidia[0-9]*")) else CPU


def _class_of(model: str) -> str:
    """`NVIDIA H200` → `nvidia-h200`: what a FunctionSpec's `accelerator` can be."""
    return re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:63].rstrip("-")
