"""NodeCache: the snapshots on this machine's disk. No torch; safe to use from many processes.

    ROOT/sha256-HEX/            a snapshot; complete, as it is renamed into place
    ROOT/sources/FINGERPRINT    the digest that a source was sealed into
    ROOT/locks/NAME             file locks: who seals or removes NAME
    ROOT/tmp/NAME/              half-made or half-removed; stale when its lock is free

Whoever holds the lock NAME owns tmp/NAME, so a leftover of a killed process is known as such.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from glowplug.errors import CorruptSnapshot, NotFound, SnapshotError
from glowplug.spec import Dtype, Quantization
from snapshot.locks import locked, try_locked
from snapshot.manifest import MANIFEST, Manifest, read_manifest

_DIGEST = re.compile(r"sha256-[0-9a-f]{64}")
_READ_BYTES = 1 << 22


@dataclass(frozen=True, kw_only=True)
class CachedSnapshot:
    """One line of `glowplug snapshots`."""

    digest: str
    source: str
    dtype: Dtype
    quantization: Quantization
    architecture: str  # the family: llama, mistral, qwen2, qwen3
    size_bytes: int
    created_s: float  # Unix time


class NodeCache:
    """Implements glowplug.contracts.SnapshotStore. Makes its folders on first write."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, digest: str) -> Path:
        """The snapshot's folder.

        Raises:
            NotFound: no such snapshot on this node.
        """
        folder = self.root / digest
        if not _DIGEST.fullmatch(digest) or not (folder / MANIFEST).is_file():
            raise _not_found(digest)
        return folder

    def list(self) -> Sequence[CachedSnapshot]:
        """All snapshots, newest first; damaged ones are left out."""
        found = []
        for folder in _children(self.root):
            if not _DIGEST.fullmatch(folder.name):
                continue
            try:
                manifest = read_manifest(folder)
                created_s = (folder / MANIFEST).stat().st_mtime
            except (CorruptSnapshot, OSError):  # damaged, or removed meanwhile
                continue
            found.append(
                CachedSnapshot(
                    digest=folder.name,
                    source=manifest.source,
                    dtype=manifest.dtype,
                    quantization=manifest.quantization,
                    architecture=manifest.config.family,
                    size_bytes=sum(entry.size for entry in manifest.files.values()),
                    created_s=created_s,
                )
            )
        return sorted(found, key=lambda snapshot: -snapshot.created_s)

    def verify(self, digest: str) -> Manifest:
        """Read every byte and compare it with the manifest.

        Raises:
            NotFound: no such snapshot.
            CorruptSnapshot: a file was changed.
        """
        folder = self.path(digest)
        manifest = read_manifest(folder)
        for name, entry in manifest.files.items():
            sha256 = hashlib.sha256()
            try:
                with (folder / name).open("rb") as file:
                    while chunk := file.read(_READ_BYTES):
                        sha256.update(chunk)
            except OSError as error:
                raise CorruptSnapshot(
                    f"{folder / name}: cannot be read ({error.strerror})"
                ) from None
            if sha256.hexdigest() != entry.sha256:
                raise CorruptSnapshot(
                    f"{folder / name}: its bytes changed since it was sealed; remove the snapshot "
                    f"{digest} and seal it again"
                )
        return manifest

    def remove(self, digest: str) -> None:
        """Delete a snapshot. Replicas that have it mapped keep it until they end.

        Raises:
            NotFound: no such snapshot.
        """
        folder = self.root / digest
        if not _DIGEST.fullmatch(digest) or not folder.is_dir():
            raise _not_found(digest)
        self.remove_folder(folder)  # damaged ones too
        for entry in _children(self.root / "sources"):
            if _read_text(entry) == digest:
                entry.unlink(missing_ok=True)

    def remove_folder(self, folder: Path) -> None:
        """Delete a folder of the cache: first its name, at once, then what is in it."""
        with self.workplace(f"remove-{folder.name}") as trash:
            try:
                folder.rename(trash)
            except FileNotFoundError:  # another process was faster
                return

    def sealed(self, fingerprint: str) -> str | None:
        """The digest that this source was sealed into, if that snapshot is still here and whole."""
        digest = _read_text(self.root / "sources" / fingerprint)
        if digest is None:
            return None
        try:
            read_manifest(self.path(digest))
        except (NotFound, CorruptSnapshot):
            return None
        return digest

    def record_sealed(self, fingerprint: str, digest: str) -> None:
        """Remember, durably, what a source was sealed into."""
        sources = self.root / "sources"
        sources.mkdir(parents=True, exist_ok=True)
        with self.workplace(f"source-{fingerprint}") as entry:
            with entry.open("x") as file:
                file.write(digest)
                file.flush()
                os.fsync(file.fileno())
            entry.rename(sources / fingerprint)
            sync_folder(sources)

    @contextmanager
    def workplace(self, name: str) -> Iterator[Path]:
        """A path on the cache's file system, not existing yet, for this process alone.

        Waits while another process has the same. Whatever is left there at the end is deleted.
        """
        path = self.root / "tmp" / name
        with locked(self.root / "locks" / name):
            path.parent.mkdir(parents=True, exist_ok=True)
            _delete(path)
            try:
                yield path
            finally:
                _delete(path)

    def clean(self) -> None:
        """Delete what processes that are gone left half-made."""
        for path in _children(self.root / "tmp"):
            with try_locked(self.root / "locks" / path.name) as free:
                if free:
                    _delete(path)


def _not_found(digest: str) -> NotFound:
    return NotFound(f"no snapshot {digest[:80]!r} on this node; seal its model")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SnapshotError(f"{folder}: cannot be read ({error.strerror})") from None


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return None


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
