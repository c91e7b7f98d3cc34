"""The class of accelerator, read from what a driver says of its GPUs."""

from pathlib import Path

import pytest

from glowplug.accelerators import refusal, suits
from glowplug.errors import InvalidSpec
from glowplug.spec import parse_spec
from runtime.pod.accelerator import accelerator


def machine(folder: Path, *models: str, devices: int | None = None) -> dict[str, Path]:
    """A driver's folder and the device files of a machine with these GPUs."""
    driver, files = folder / "gpus", folder / "dev"
    for path in (driver, files):
        path.mkdir(parents=True)
    for n, model in enumerate(models):
        (driver / f"0000:0{n}:00.0").mkdir()
        text = f"Model: \t\t {model}\nIRQ:   \t\t 16\nGPU UUID: \t GPU-0\n"
        (driver / f"0000:0{n}:00.0" / "information").write_text(text)
    (files / "nvidiactl").touch()
    for n in range(len(models) if devices is None else devices):
        (files / f"nvidia{n}").touch()
    return {"driver": driver, "devices": files}


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        (["NVIDIA H200"], "nvidia-h200"),
        (["NVIDIA A100-SXM4-80GB", "NVIDIA T400"], "nvidia-a100-sxm4-80gb"),
        (["Tesla T4"], "tesla-t4"),
        (["NVIDIA RTX 6000 (Ada)"], "nvidia-rtx-6000-ada"),
        ([], "cpu"),
    ],
)
def test_a_gpu_is_named_as_its_driver_does(
    tmp_path: Path, models: list[str], expected: str
) -> None:
    found = accelerator(can_use_cuda=True, visible=None, **machine(tmp_path, *models))
    assert found == expected
    assert parse_spec({"name": "f", "model": "m", "accelerator": found}).accelerator == found


def test_a_gpu_without_a_name_is_cuda(tmp_path: Path) -> None:
    assert accelerator(can_use_cuda=True, visible="0", **machine(tmp_path, devices=1)) == "cuda"


def test_a_gpu_that_cannot_be_used_is_none(tmp_path: Path) -> None:
    gpu = machine(tmp_path, "NVIDIA H200")
    assert accelerator(can_use_cuda=False, visible=None, **gpu) == "cpu"
    for hidden in ("", " ", "-1"):
        assert accelerator(can_use_cuda=True, visible=hidden, **gpu) == "cpu"


@pytest.mark.parametrize(
    ("offered", "wanted", "expected"),
    [
        ("cpu", "auto", True),
        ("cpu", "cpu", True),
        ("cpu", "cuda", False),
        ("cpu", "nvidia-h200", False),
        ("nvidia-h200", "auto", True),
        ("nvidia-h200", "cuda", True),
        ("nvidia-h200", "nvidia-h200", True),
        ("nvidia-h200", "nvidia-h100", False),
        ("nvidia-h200", "cpu", False),
        ("cuda", "cuda", True),
    ],
)
def test_what_suits(offered: str, wanted: str, expected: bool) -> None:
    assert suits(offered, wanted) is expected
    assert (refusal(wanted, [offered]) is None) is expected


def test_nothing_is_refused_before_a_class_is_known() -> None:
    assert refusal("nvidia-h200", []) is None
    assert refusal("nvidia-h200", ["cpu", "nvidia-h200"]) is None


@pytest.mark.parametrize("wrong", ["", "NVIDIA H200", "a" * 64, "-x"])
def test_what_is_no_class_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidSpec, match="write auto, cpu, cuda or a GPU's name") as caught:
        parse_spec({"name": "f", "model": "m", "accelerator": wrong})
    assert caught.value.param == "accelerator"
