"""Source strings: what they find, what they refuse, and when a source counts as changed."""

import os
import sys
from pathlib import Path

import pytest

from glowplug.errors import SnapshotError, UnsupportedModel
from snapshot.source import find_source, fingerprint


def test_folder_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model.GGUF").touch()
    found = find_source(str(tmp_path / "model"))
    assert (found.kind, found.path) == ("huggingface", tmp_path / "model")
    found = find_source(str(tmp_path / "model.GGUF"))
    assert (found.kind, found.path) == ("gguf", tmp_path / "model.GGUF")
    monkeypatch.chdir(tmp_path)
    assert find_source("model").text == str(tmp_path / "model")  # absolute, for the manifest
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_source("~/model").path == tmp_path / "model"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package whose code must not run."""
    root = tmp_path / "site" / "glow_models"
    root.mkdir(parents=True)
    (root / "__init__.py").write_text("raise SystemExit('its code ran')")
    (root / "tiny.gguf").touch()
    (root / "sub").mkdir()
    (root / "sub" / "tiny.gguf").touch()
    (tmp_path / "site" / "outside.gguf").touch()
    (root / "link.gguf").symlink_to(tmp_path / "site" / "outside.gguf")  # as some installers do
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return root


def test_package(package: Path) -> None:
    for inner in ("tiny.gguf", "sub/tiny.gguf", "link.gguf"):
        source = f"package://glow_models/{inner}"
        found = find_source(source)
        assert (found.kind, found.path, found.text) == ("gguf", package / inner, source)
    assert "glow_models" not in sys.modules


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("package://glow_models/../outside.gguf", "leaves the package"),
        ("package://glow_models//etc/passwd", "leaves the package"),
        ("package://glow_models/sub/../../outside.gguf", "leaves the package"),
        ("package://glow_models/none.gguf", "holds no file none.gguf"),
        ("package://glow_models/sub", "holds no file sub"),
        ("package://not_installed_at_all/x.gguf", "'not_installed_at_all' is not installed"),
        ("package://json.decoder/x.gguf", "write package://PACKAGE/FILE.gguf"),
        ("package://glow_models", "write package://PACKAGE/FILE.gguf"),
        ("package://sys/x.gguf", "'sys' is not installed"),
    ],
)
def test_wrong_packages(package: Path, source: str, message: str) -> None:
    with pytest.raises(SnapshotError, match=message):
        find_source(source)


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("meta-llama/Llama-3.2-1B", UnsupportedModel, "not fetched from the Hugging Face hub"),
        ("s3://bucket/model", UnsupportedModel, "kind of source is not supported"),
        ("https://example.com/model.gguf", UnsupportedModel, "kind of source is not supported"),
        ("/no/such/model", SnapshotError, "no such file or folder"),
        ("", SnapshotError, "empty"),
        ("a\0b", SnapshotError, "no text"),
        ("a\udcffb", SnapshotError, "no text"),  # a file name that is not UTF-8
        ("x" * 5000, SnapshotError, "cannot be read"),
        ("/dev/null", UnsupportedModel, "neither a file nor a folder"),
    ],
)
def test_wrong_sources(source: str, error: type[SnapshotError], message: str) -> None:
    with pytest.raises(SnapshotError, match=message) as caught:
        find_source(source)
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.bin", "Python pickles"),
        ("model.pt", "Python pickles"),
        ("model.pth", "Python pickles"),
        ("model.pkl", "Python pickles"),
        ("model.ckpt", "Python pickles"),
        ("model.safetensors", "give the folder"),
        ("model.txt", "not a .gguf file"),
    ],
)
def test_wrong_files(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(UnsupportedModel, match=message):
        find_source(str(tmp_path / name))


def test_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"without config.json"):
        find_source(str(tmp_path))


def test_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"one")
    found = find_source(str(path))
    first = fingerprint(found, "bfloat16")
    assert first == fingerprint(find_source(str(path)), "bfloat16")
    assert first != fingerprint(found, "float32")
    stat = path.stat()
    path.write_bytes(b"two!")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert first != fingerprint(found, "bfloat16")  # another size
    path.write_bytes(b"one")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert first != fingerprint(found, "bfloat16")  # another time
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert first == fingerprint(found, "bfloat16")
    path.unlink()
    with pytest.raises(SnapshotError, match="cannot be read"):
        fingerprint(found, "bfloat16")


def test_fingerprint_of_a_folder_sees_every_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    found = find_source(str(tmp_path))
    first = fingerprint(found, "bfloat16")
    (tmp_path / "chat_template.jinja").write_text("x")
    assert fingerprint(found, "bfloat16") != first
