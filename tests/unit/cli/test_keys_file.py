"""The keys file: what a line means, and which line is wrong."""

from pathlib import Path

import pytest

from glowplug.errors import GlowplugError
from glowplug.keys_file import MAX_BYTES, read_keys

A, B = "sk-0123456789abcdef", "sk-fedcba9876543210"


def write(folder: Path, text: str) -> Path:
    path = folder / "keys.txt"
    path.write_text(text)
    return path


def test_keys_comments_and_empty_lines(tmp_path: Path) -> None:
    path = write(tmp_path, f"# who\n\n{A}  team-a  # since May\n{B}\toperations admin\n")
    assert read_keys(path) == {A: ("team-a", False), B: ("operations", True)}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"{A}\n", "line 1: write KEY TENANT"),
        (f"{A} a\n{B} b root\n", "line 2: write KEY TENANT"),
        (f"{A} a admin now\n", "line 1: write KEY TENANT"),
        ("short a\n", "16 ASCII characters"),
        ("schlüssel-0123456789 a\n", "ASCII"),
        (f"{A} a\n{A} b\n", "line 2: this key is there twice"),
        ("# nobody\n", "no key in it"),
        ("#" * (MAX_BYTES + 1), "more than 4 MiB"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(GlowplugError, match=problem):
        read_keys(write(tmp_path, text))


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(GlowplugError, match="No such file"):
        read_keys(tmp_path / "none")
