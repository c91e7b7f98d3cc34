"""Find a model source and tell cheaply whether it was sealed before. No torch, nothing parsed.

A source is a Hugging Face folder, a GGUF file, or `package://PACKAGE/FILE.gguf`, a file inside an
installed Python package (whose code is not run). Sources in S3 are found by s3_source.py.
"""

import hashlib
import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from glowplug.errors import SnapshotError, UnsupportedModel
from glowplug.spec import Dtype, Quantization
from snapshot.manifest import FORMAT

SEAL_VERSION = 2  # raise it when the same source would be sealed into other bytes

_PACKAGE_SCHEME = "package://"
_PACKAGE = re.compile(r"package://([A-Za-z_][A-Za-z0-9_]*)/(.+)")
_HUB_ID = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]*/[A-Za-z0-9][-A-Za-z0-9_.]*")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
_MAX_FILES = 4096


@dataclass(frozen=True, kw_only=True)
class Source:
    """A source that exists on this machine."""

    text: str  # as the user wrote it, but an absolute path; goes into the manifest
    kind: Literal["huggingface", "gguf"]
    path: Path  # the folder or the file
    identity: str | None = None  # changes with its contents; None: as its files' stats do

    def files(self) -> list[Path]:
        """Every file that the model could be read from."""
        if self.kind == "gguf":
            return [self.path]
        modules = self.path.glob("*/config.json")  # of sentence-transformers
        return sorted((*(path for path in self.path.iterdir() if path.is_file()), *modules))


def find_source(text: str) -> Source:
    """Locate what the user named.

    Raises:
        UnsupportedModel: a kind of source that is not known, or pickled weights.
        SnapshotError: it does not exist or cannot be read.
    """
    path = _package_file(text) if text.startswith(_PACKAGE_SCHEME) else _local_path(text)
    try:
        if path.is_dir():
            if not (path / "config.json").is_file():
                raise UnsupportedModel(
                    f"{text}: a folder without config.json; give the folder that holds the model's "
                    "config.json, or a .gguf file"
                )
            return Source(text=str(path), kind="huggingface", path=path)
        if path.is_file():
            return file_source(text, path)
        if path.exists():
            raise UnsupportedModel(f"{text}: neither a file nor a folder")
    except OSError as error:
        raise SnapshotError(f"{text}: cannot be read ({error.strerror})") from None
    raise _missing(text)


def fingerprint(
    source: Source,
    dtype: Dtype,
    quantization: Quantization = "none",
    draft: Source | None = None,
) -> str:
    """Names what sealing would read and write: changes when a file is replaced, costs a stat each.
    `draft` is the draft model's source, where there is one.

    Raises:
        SnapshotError: the source cannot be read.
        UnsupportedModel: a folder with too many files to be a model's.
    """
    try:
        paths = source.files() if source.identity is None else []
        if len(paths) > _MAX_FILES:
            raise UnsupportedModel(f"{source.text}: over {_MAX_FILES} files; give a model's folder")
        stats = [(str(path.resolve()), path.stat()) for path in paths]
    except OSError as error:
        raise SnapshotError(f"{source.text}: cannot be read ({error.strerror})") from None
    key = {
        "source": source.text,
        "dtype": dtype,
        "quantization": quantization,
        "version": (SEAL_VERSION, FORMAT),
        "files": [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats],
    }
    if source.identity is not None:
        key["identity"] = source.identity
    if draft is not None:
        key["draft"] = fingerprint(draft, dtype, quantization)
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()


def file_source(text: str, path: Path) -> Source:
    """The source that a file is. Raises UnsupportedModel."""
    suffix = path.suffix.lower()
    if suffix in PICKLE_SUFFIXES:
        raise UnsupportedModel(
            f"{text}: {suffix} files are Python pickles, which can run code when read; give a "
            "folder with .safetensors files or a .gguf file"
        )
    if suffix == ".safetensors":
        raise UnsupportedModel(
            f"{text}: give the folder that holds it with its config.json, not the file itself"
        )
    if suffix != ".gguf":
        raise UnsupportedModel(f"{text}: not a .gguf file; give a .gguf file or a folder")
    return Source(
        text=text if text.startswith(_PACKAGE_SCHEME) else str(path), kind="gguf", path=path
    )


def _local_path(text: str) -> Path:
    if _SCHEME.match(text):
        raise UnsupportedModel(
            f"{text}: this kind of source is not supported; give a folder, a .gguf file, "
            "package://PACKAGE/FILE.gguf or s3://BUCKET/PREFIX"
        )
    if not text or "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise SnapshotError("the model source is empty or no text; give a folder or a .gguf file")
    return Path(text).expanduser().absolute()


def _missing(text: str) -> SnapshotError:
    if _HUB_ID.fullmatch(text):
        return UnsupportedModel(
            f"{text}: no such folder. Models are not fetched from the Hugging Face hub: download "
            f"it (hf download {text} --local-dir FOLDER) and give the folder"
        )
    return SnapshotError(f"{text}: no such file or folder; check the path")


def _package_file(text: str) -> Path:
    match = _PACKAGE.fullmatch(text)
    if match is None:
        raise UnsupportedModel(f"{text}: write package://PACKAGE/FILE.gguf")
    package, inner = match.groups()
    try:
        spec = importlib.util.find_spec(package)  # of a top-level package: runs none of its code
    except (ImportError, ValueError):
        spec = None
    locations = (spec.submodule_search_locations or []) if spec else []
    if not locations:
        raise SnapshotError(f"{text}: the Python package {package!r} is not installed; install it")
    if inner.startswith("/") or ".." in inner.split("/"):  # links that an installer made are fine
        raise SnapshotError(f"{text}: the path leaves the package; name a file inside it")
    for location in locations:
        path = Path(location, inner)
        if path.is_file():
            return path
    raise SnapshotError(f"{text}: the package {package!r} holds no file {inner}")
