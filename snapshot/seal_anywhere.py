"""Seal a model whose source, or whose draft model's, may be in S3. Runs in the sealing process.

What is in S3 is fetched into partial/source-HEX of the cache, sealed from there, and deleted, as it
is where it turns out to be no model. A sealing that is killed, or whose fetch fails, leaves it, and
the next one goes on with it; where the room is needed, it is deleted like a snapshot's fetch that
was given up.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from glowplug.errors import CorruptSnapshot, NotFound, SnapshotError, UnsupportedModel
from glowplug.spec import Dtype, Quantization
from snapshot.draft import about_draft
from snapshot.locks import locked
from snapshot.node_cache import NodeCache
from snapshot.s3_location import is_s3
from snapshot.seal import seal
from snapshot.source import Source, find_source, fingerprint

_FETCHING = 0.5  # of the progress


def seal_anywhere(
    source: str,
    *,
    dtype: Dtype,
    quantization: Quantization = "none",
    draft: str | None = None,
    endpoint_url: str | None,
    cache: NodeCache,
    progress: Callable[[float], None],
) -> str:
    """As seal(). `endpoint_url` is that of an S3-compatible service.

    Raises:
        SnapshotError: with the reason and what to do, for the user.
    """
    if not any(is_s3(text) for text in (source, draft) if text is not None):
        return seal(
            source,
            dtype=dtype,
            quantization=quantization,
            draft=draft,
            cache=cache,
            progress=progress,
        )
    from snapshot.s3_download import FILES, download  # with boto3
    from snapshot.s3_source import list_source

    remote = {}
    found = _local(source)
    if found is None:
        remote[source] = list_source(source, endpoint_url)
    found_draft = None
    if draft is not None:
        with about_draft():
            found_draft = _local(draft)
            if found_draft is None:
                remote[draft] = list_source(draft, endpoint_url)
    folders = {text: _folder(cache, each.text, endpoint_url) for text, each in remote.items()}
    found = found or remote[source].at(folders[source] / FILES)
    if draft is not None:
        found_draft = found_draft or remote[draft].at(folders[draft] / FILES)
    key = fingerprint(found, dtype, quantization, found_draft)
    with ExitStack() as stack:
        for name in sorted({folder.name for folder in folders.values()}):
            stack.enter_context(locked(cache.fetch_lock(name)))
        digest = cache.sealed(key)  # by another process, while this one waited
        if digest is not None:
            progress(1.0)
            return digest
        total, done = max(1, sum(each.size_bytes for each in remote.values())), 0
        for text, each in remote.items():
            part = _part(progress, _FETCHING * done / total, _FETCHING * each.size_bytes / total)
            try:
                download(each, folders[text], cache=cache, progress=part)
            except NotFound as error:
                raise SnapshotError(f"{error.message}: it was deleted meanwhile") from None
            done += each.size_bytes
        try:
            with _named(folders):
                digest = seal(
                    found,
                    dtype=dtype,
                    quantization=quantization,
                    draft=found_draft,
                    cache=cache,
                    progress=_part(progress, _FETCHING, 1 - _FETCHING),
                )
        except (UnsupportedModel, CorruptSnapshot):
            _remove(cache, folders)
            raise
        _remove(cache, folders)
    return digest


def _remove(cache: NodeCache, folders: dict[str, Path]) -> None:
    for folder in folders.values():
        cache.remove_folder(folder)


def _local(text: str) -> Source | None:
    return None if is_s3(text) else find_source(text)


def _folder(cache: NodeCache, text: str, endpoint_url: str | None) -> Path:
    name = hashlib.sha256(f"{text}\n{endpoint_url or ''}".encode()).hexdigest()
    return cache.root / "partial" / f"source-{name}"


@contextmanager
def _named(folders: dict[str, Path]) -> Iterator[None]:
    """What is wrong with a file is said of its address, not of where it was fetched to."""
    from snapshot.s3_download import FILES

    try:
        yield
    except SnapshotError as error:
        message = error.message
        for text, folder in folders.items():
            message = message.replace(f"{folder / FILES}", text.rstrip("/"))
        raise type(error)(message) from None


def _part(progress: Callable[[float], None], start: float, size: float) -> Callable[[float], None]:
    return lambda fraction: progress(start + fraction * size)
