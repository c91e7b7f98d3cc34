"""A model source in S3: `s3://BUCKET/FOLDER` like a Hugging Face folder, or `s3://BUCKET/FILE.gguf`.

What is listed is what sealing reads, and no more: pickles, other formats' weights and whatever else
lies there are not fetched. The listing with its ETags, which change with the contents, names the
source: a changed object is another source, and is sealed again. Blocking; imports boto3.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from glowplug.errors import CorruptSnapshot, NotFound, SnapshotError, UnsupportedModel
from snapshot.s3_bucket import S3Bucket, S3Object
from snapshot.s3_location import S3Location, parse_location
from snapshot.source import PICKLE_SUFFIXES, Source, file_source

_MAX_LISTED = 10_000
_MAX_SHARDS = 1024
_MAX_INDEX_BYTES = 64 << 20
_MAX_SMALL_BYTES = 256 << 20  # of whatever is no weights
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_SMALL = re.compile(r"[^/]+\.json|chat_template\.jinja|(?!\.\.?/)[^/]+/config\.json")
_FILE_NAME = re.compile(r"[^/\x00-\x1f\x7f]{1,255}")


@dataclass(frozen=True, kw_only=True)
class S3File:
    """One file of a source."""

    name: str  # below the folder
    key: str
    size: int
    etag: str


@dataclass(frozen=True, kw_only=True)
class S3Source:
    """What sealing reads of a source, as it is listed."""

    location: S3Location
    kind: Literal["huggingface", "gguf"]
    files: tuple[S3File, ...]

    @property
    def text(self) -> str:
        """The address, as it goes into the manifest."""
        return str(self.location)

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.size for file in self.files)

    @property
    def identity(self) -> str:
        """Changes with the contents of any of the files, and with the service."""
        listing = sorted((file.name, file.size, file.etag) for file in self.files)
        text = json.dumps([self.location.endpoint_url, listing])
        return hashlib.sha256(text.encode()).hexdigest()

    def at(self, folder: Path) -> Source:
        """The source as it is once its files are in this folder."""
        path = folder / self.files[0].name if self.kind == "gguf" else folder
        return Source(text=self.text, kind=self.kind, path=path, identity=self.identity)


def list_source(text: str, endpoint_url: str | None) -> S3Source:
    """List a source.

    Raises:
        SnapshotError: there is no such bucket or object, or it may not be read.
        UnsupportedModel: no model, pickled weights, or too much to be one.
    """
    location = parse_location(text, endpoint_url)
    bucket = S3Bucket(location)
    suffix = PurePosixPath(location.prefix).suffix.lower()
    if suffix == ".gguf":
        found = bucket.head(location.prefix)
        if found is None:
            raise SnapshotError(f"{location}: not there; check the address")
        name = location.prefix.rpartition("/")[2]
        if not _FILE_NAME.fullmatch(name):
            raise UnsupportedModel(f"{location}: not a name for a file")
        file = S3File(name=name, key=found.key, size=found.size, etag=found.etag)
        return S3Source(location=location, kind="gguf", files=(file,))
    objects = bucket.objects(location.key(""), limit=_MAX_LISTED)
    if not objects:
        if location.prefix and bucket.head(location.prefix) is not None:
            file_source(str(location), Path(location.prefix))  # says what is wrong with it
        raise SnapshotError(f"{location}: nothing is there; check the address")
    return S3Source(location=location, kind="huggingface", files=_files(location, bucket, objects))


def _files(location: S3Location, bucket: S3Bucket, objects: list[S3Object]) -> tuple[S3File, ...]:
    """Those that sealing reads."""
    prefix = location.key("")
    there = {each.key.removeprefix(prefix): each for each in objects}
    if "config.json" not in there:
        raise UnsupportedModel(
            f"{location}: no config.json there; give the folder that holds the model's "
            "config.json, or a .gguf file"
        )
    small = [name for name in there if _SMALL.fullmatch(name) and name != _INDEX]
    for name in small:
        if there[name].size > _MAX_SMALL_BYTES:
            raise UnsupportedModel(
                f"{location}/{name}: {there[name].size} bytes, {_MAX_SMALL_BYTES} at most are read"
            )
    wanted = sorted({*small, *_weights(location, bucket, there)})
    return tuple(
        S3File(name=name, key=there[name].key, size=there[name].size, etag=there[name].etag)
        for name in wanted
    )


def _weights(location: S3Location, bucket: S3Bucket, there: dict[str, S3Object]) -> list[str]:
    """The names of the weights' files, as hf_source.py chooses them."""
    if _SINGLE in there:
        return [_SINGLE]
    if _INDEX in there:
        return [_INDEX, *_shards(location, bucket, there)]
    pickles = sorted(name for name in there if name.endswith(PICKLE_SUFFIXES))
    if pickles:
        raise UnsupportedModel(
            f"{location}: only pickled weights ({pickles[0][:80]}), which can run code when read; "
            "convert them: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    raise CorruptSnapshot(f"{location}: no {_SINGLE} and no {_INDEX}; upload the weights")


def _shards(location: S3Location, bucket: S3Bucket, there: dict[str, S3Object]) -> list[str]:
    where = f"{location}/{_INDEX}"
    try:
        data = bucket.read_small(there[_INDEX].key, max_bytes=_MAX_INDEX_BYTES)
        index: Any = json.loads(data)
        shards = sorted({str(shard) for shard in index["weight_map"].values()})
    except NotFound:
        raise SnapshotError(f"{where}: it was deleted just now; check the address") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CorruptSnapshot(
            f"{where}: no weight_map of file names; the file is damaged"
        ) from None
    if not 0 < len(shards) <= _MAX_SHARDS:
        raise CorruptSnapshot(f"{where}: names {len(shards)} files, {_MAX_SHARDS} at most are read")
    for shard in shards:
        if not _FILE_NAME.fullmatch(shard) or not shard.endswith(".safetensors"):
            raise UnsupportedModel(
                f"{where}: names {shard[:80]!r}; only .safetensors files beside it are read"
            )
        if shard not in there:
            raise CorruptSnapshot(f"{location}/{shard}: missing, the index names it; upload it")
    return shards
