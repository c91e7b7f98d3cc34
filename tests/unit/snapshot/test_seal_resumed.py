"""A sealing that is killed: the next one keeps what was made and is right, to the same digest."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import snapshot.hashing
import snapshot.seal_journal
import snapshot.weights
from snapshot.hashing import FileHasher
from snapshot.manifest import WEIGHTS
from snapshot.node_cache import NodeCache
from snapshot.seal import seal
from snapshot.seal_journal import resumed

PIECE = 4096
NUMBERS = itertools.count()


def ignore(_: float) -> None:
    pass


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot.hashing, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(snapshot.seal_journal, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(snapshot.seal_journal, "_READ_BYTES", 1024)


@settings(
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    written=st.integers(0, 5 * PIECE),
    lost=st.integers(0, 2 * PIECE),
    flip=st.none() | st.integers(0, 5 * PIECE),
    cut=st.integers(0, 70),
    junk=st.binary(max_size=30),
)
@pytest.mark.usefixtures("small_pieces")
def test_only_right_pieces_are_kept(
    tmp_path: Path, written: int, lost: int, flip: int | None, cut: int, junk: bytes
) -> None:
    """Whatever a crash has made of the file and of its journal."""
    folder = tmp_path / str(next(NUMBERS))
    folder.mkdir()
    path, journal = folder / "file", folder / "file.pieces"
    data = bytes(n % 251 for n in range(6 * PIECE))
    with resumed(path, journal) as part:
        assert part.kept_bytes == 0
        for start in range(0, written, 1000):
            block = data[start : min(written, start + 1000)]
            part.hasher.update(block)
            part.file.write(block)
            part.note()
    content = bytearray(path.read_bytes()[: max(0, written - lost)])
    if flip is not None and flip < len(content):
        content[flip] ^= 1
    path.write_bytes(content)
    lines = journal.read_bytes()
    journal.write_bytes(lines[: max(0, len(lines) - cut)] + junk)

    with resumed(path, journal) as part:
        assert part.kept_bytes <= min(written, len(content))
        assert part.kept_bytes % PIECE == 0
        assert path.read_bytes() == data[: part.kept_bytes]
        if lost == cut == 0 and flip is None and not junk:
            assert part.kept_bytes == written // PIECE * PIECE
        rest = data[part.kept_bytes :]
        part.hasher.update(rest)
        part.file.write(rest)
        entry = part.hasher.entry()
    whole = FileHasher()
    whole.update(data)
    assert entry == whole.entry()
    assert path.read_bytes() == data


KILLED = """
import os, signal, sys
from pathlib import Path
import snapshot.hashing, snapshot.seal_journal, snapshot.block_writer
snapshot.hashing.PIECE_BYTES = snapshot.seal_journal.PIECE_BYTES = 4096
snapshot.block_writer._BLOCK_BYTES = 2048
from snapshot.node_cache import NodeCache
from snapshot.seal import seal
def progress(done):
    if done >= float(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
seal(sys.argv[1], dtype="bfloat16", quantization=sys.argv[4], cache=NodeCache(Path(sys.argv[2])),
     draft=sys.argv[5] if len(sys.argv) > 5 else None, progress=progress)
"""


def killed(cache: NodeCache, source: Path, *rest: object) -> Path:
    """Seal and SIGKILL the process when so much is done; what it leaves."""
    arguments = [str(source), str(cache.root), *map(str, rest)]
    status = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False).returncode
    assert status == -9
    assert cache.list() == []
    [left] = (cache.root / "partial").iterdir()
    return left


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tensors that are made, by name."""
    names: list[str] = []
    real = snapshot.weights._numbers

    def numbers(checkpoint: Any, name: str, *rest: Any) -> Any:
        names.append(name)
        return real(checkpoint, name, *rest)

    monkeypatch.setattr(snapshot.weights, "_numbers", numbers)
    return names


@pytest.mark.parametrize("fraction", [0.5, 0.999, 1.0])
@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.usefixtures("small_pieces")
def test_killed_in_the_middle(
    write_gguf: Callable[..., Any],
    cache: NodeCache,
    tmp_path: Path,
    converted: list[str],
    fraction: float,
    quantization: Any,
) -> None:
    path = write_gguf(hidden=64, intermediate=128).path
    options: dict[str, Any] = {"dtype": "bfloat16", "quantization": quantization}
    other = NodeCache(tmp_path / "other")
    expected = seal(str(path), **options, cache=other, progress=ignore)
    all_of_them = len(converted)
    converted.clear()

    left = killed(cache, path, fraction, quantization)
    cache.clean()
    size = (left / "snapshot" / WEIGHTS).stat().st_size
    assert size > 0
    seen: list[float] = []
    assert seal(str(path), **options, cache=cache, progress=seen.append) == expected
    assert len(converted) < all_of_them
    assert seen[0] >= fraction - 0.2
    cache.verify(expected)
    assert not left.exists()


@pytest.mark.usefixtures("small_pieces")
def test_killed_in_the_draft_model(
    write_gguf: Callable[..., Any], cache: NodeCache, tmp_path: Path, converted: list[str]
) -> None:
    path = write_gguf("large.gguf", hidden=64, intermediate=128).path
    draft = write_gguf("draft.gguf").path
    options: dict[str, Any] = {"dtype": "bfloat16", "draft": str(draft)}
    expected = seal(str(path), **options, cache=NodeCache(tmp_path / "other"), progress=ignore)
    converted.clear()
    killed(cache, path, 0.95, "none", draft)
    assert seal(str(path), **options, cache=cache, progress=ignore) == expected
    cache.verify(expected)
    assert converted.count("embed") <= 1  # of the draft model, if at all


@pytest.mark.usefixtures("small_pieces")
def test_what_another_torch_has_made_is_made_again(
    write_gguf: Callable[..., Any], cache: NodeCache, converted: list[str]
) -> None:
    path = write_gguf(hidden=64, intermediate=128).path
    left = killed(cache, path, 0.9, "none")
    (left / "torch").write_text("1.0")
    (left / "snapshot" / "stray").write_text("of another version")
    digest = seal(str(path), dtype="bfloat16", cache=cache, progress=ignore)
    assert "embed" in converted
    assert not (cache.path(digest) / "stray").exists()


@pytest.mark.usefixtures("small_pieces")
def test_a_changed_source_is_another_one(
    write_gguf: Callable[..., Any], cache: NodeCache, converted: list[str]
) -> None:
    path = write_gguf(hidden=64, intermediate=128).path
    left = killed(cache, path, 0.9, "none")
    os.utime(path, ns=(1, 1))
    cache.verify(seal(str(path), dtype="bfloat16", cache=cache, progress=ignore))
    assert "embed" in converted
    assert left.exists()  # until the room is needed
