"""The supervisor's process: light, and clear about wrong arguments."""

import subprocess
import sys

import pytest


def _python(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_it_imports_no_torch() -> None:
    heavy = "torch numpy tokenizers safetensors uvicorn starlette"
    done = _python(
        "-c",
        "import runtime.pod.supervisor, sys; "
        f"print([name for name in '{heavy}'.split() if name in sys.modules])",
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: --control-fd, --cache"),
        (["--standbys", "-1"], "--standbys: '-1': write a whole number"),
        (["--threads", "0"], "--threads: '0': write a whole number, 1 or more"),
    ],
)
def test_wrong_arguments_get_one_line(arguments: list[str], message: str) -> None:
    done = _python("-m", "runtime.pod.supervisor", *arguments)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
