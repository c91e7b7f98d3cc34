"""Changes of the installed code: what counts as one, and when it is told."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.pod.code_watch import code_folders, fingerprint, library_folders, watch_code


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("code/package", "code/__pycache__", "libraries/torch-1.0.dist-info"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("code/a.py", "code/package/b.py", "code/package/_c.so"):
        (tmp_path / name).write_text("1")
    return tmp_path


def look(tree: Path) -> str:
    return fingerprint([tree / "code"], [tree / "libraries", tree / "none"])


def touch(path: Path) -> None:
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: touch(tree / "code" / "a.py"),
        lambda tree: (tree / "code" / "package" / "_c.so").write_text("12"),
        lambda tree: (tree / "code" / "package" / "b.py").unlink(),
        lambda tree: (tree / "code" / "package" / "new.py").touch(),
        lambda tree: (tree / "code" / "a.py").rename(tree / "code" / "z.py"),
        lambda tree: (tree / "libraries" / "numpy-2.0.dist-info").mkdir(),
        lambda tree: (tree / "libraries" / "torch-1.0.dist-info").rename(
            tree / "libraries" / "torch-2.0.dist-info"
        ),
    ],
)
def test_a_change_of_code_is_one(tree: Path, change: Callable[[Path], object]) -> None:
    before = look(tree)
    change(tree)
    assert look(tree) != before


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: (tree / "code" / "__pycache__" / "a.pyc").touch(),
        lambda tree: (tree / "code" / "notes.md").touch(),
        lambda tree: (tree / "libraries" / "__pycache__").mkdir(),
    ],
)
def test_what_running_leaves_behind_is_none(tree: Path, change: Callable[[Path], object]) -> None:
    before = look(tree)
    change(tree)
    assert look(tree) == before


def test_our_own_code_and_libraries_are_found() -> None:
    assert all((folder / "__init__.py").exists() for folder in code_folders())
    assert any(list(folder.glob("torch-*.dist-info")) for folder in library_folders())


def test_a_change_is_told_once_it_has_come_to_rest() -> None:
    looks = iter("aaabcddddaabb")  # one a second; half an upgrade is `b`, then `c`
    told: list[str] = []
    last = ""

    def look() -> str:
        nonlocal last
        last = next(looks, "")
        if not last:
            raise EOFError
        return last

    async def main() -> None:
        with pytest.raises(EOFError):
            await watch_code(lambda: told.append(last), look=look, every_s=0.001)

    asyncio.run(main())
    assert told == ["d", "a", "b"]
