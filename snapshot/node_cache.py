"""NodeCache: the snapshots on this machine's disk. No torch; safe to use from many processes.

    ROOT/sha256-HEX/            a snapshot; complete, as it is renamed into place
    ROOT/sources/FINGERPRINT    the digest that a source was sealed into
    ROOT/use/DIGEST             shared lock of those who use the snapshot; its mtime: the last use
    ROOT/pinned/DIGEST          there: the snapshot is not evicted
    ROOT/partial/NAME/          half a fetch or sealing; the next one goes on with it
    ROOT/quarantine/DIGEST/     a snapshot that was found damaged, until the room is needed
    ROOT/limit                  how many bytes the cache may have; not there: no limit
    ROOT/locks/NAME             file locks: who seals, fetches or removes NAME
    ROOT/tmp/NAME/              half-made or half-removed; stale when its lock is free

Whoever holds the lock NAME owns tmp/NAME, so a leftover of a killed process is known as such.
What is evicted when is in eviction.py.
"""

import logging
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from glowplug.errors import Conflict, CorruptSnapshot, NotFound, SnapshotError
from glowplug.spec import Dtype, Quantization
from snapshot.durable import sync_folder, write_synced
from snapshot.locks import holders, locked, shared, try_locked
from snapshot.manifest import MANIFEST, Manifest, read_manifest
from snapshot.verification import verify_files

DIGEST = re.compile(r"sha256-[0-9a-f]{64}")

_log = logging.getLogger("glowplug.snapshot")


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
    last_used_s: float  # Unix time
    pinned: bool
    users: tuple[int, ...]  # the processes that use it now


class NodeCache:
    """Implements glowplug.contracts.SnapshotStore. Makes its folders on first write."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, digest: str) -> Path:
        """The snapshot's folder.

        Raises:
            NotFound: no such snapshot on this node.
        """
        if not self.has(digest):
            raise _not_found(digest)
        return self.root / digest

    def has(self, digest: str) -> bool:
        """Whether the snapshot is on this node."""
        return DIGEST.fullmatch(digest) is not None and (self.root / digest / MANIFEST).is_file()

    def holds(self, digest: str) -> bool:
        """Whether the snapshot is on this node and not cut short or mislabelled; one that is goes
        to quarantine."""
        try:
            read_manifest(self.path(digest))
        except NotFound:
            return False
        except CorruptSnapshot as error:
            self.quarantine(digest, error.message)
            return False
        return True

    def size_bytes(self, digest: str) -> int:
        """Of the snapshot's files.

        Raises:
            NotFound: no such snapshot on this node.
            CorruptSnapshot: its manifest was changed.
        """
        return read_manifest(self.path(digest)).size_bytes

    def list(self) -> Sequence[CachedSnapshot]:
        """All snapshots, newest first; damaged ones are left out."""
        found = []
        for folder in _children(self.root):
            if not DIGEST.fullmatch(folder.name):
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
                    size_bytes=manifest.size_bytes,
                    created_s=created_s,
                    last_used_s=self.last_used_s(folder.name),
                    pinned=self.is_pinned(folder.name),
                    users=tuple(holders(self.use_lock(folder.name))),
                )
            )
        return sorted(found, key=lambda snapshot: -snapshot.created_s)

    def verify(self, digest: str) -> Manifest:
        """Read every byte and compare it with the manifest.

        Raises:
            NotFound: no such snapshot.
            CorruptSnapshot: a file was changed.
        """
        with self.used(digest) as folder:
            manifest = read_manifest(folder)
            verify_files(folder, manifest)
        return manifest

    @contextmanager
    def used(self, digest: str) -> Iterator[Path]:
        """The snapshot's folder, which is neither evicted nor removed while the block runs. A
        process that dies in it lets go of it too.

        Raises:
            NotFound: no such snapshot on this node.
        """
        self.path(digest)
        with shared(self.use_lock(digest)) as descriptor:
            os.utime(descriptor)  # the last use, for eviction
            yield self.path(digest)  # it may have been removed before the lock was ours

    def touch(self, digest: str) -> None:
        """Count this moment as the snapshot's last use."""
        with shared(self.use_lock(digest)) as descriptor:
            os.utime(descriptor)

    def last_used_s(self, digest: str) -> float:
        """Unix time; of its sealing where it was never used. 0.0 when it is gone."""
        for path in (self.use_lock(digest), self.root / digest):
            try:
                return path.stat().st_mtime
            except OSError:
                continue
        return 0.0

    def pin(self, digest: str) -> None:
        """Never evict this snapshot. Raises NotFound."""
        self.path(digest)
        self.mark_pinned(digest, True)

    def unpin(self, digest: str) -> None:
        """Let it be evicted again. Raises NotFound."""
        self.path(digest)
        self.mark_pinned(digest, False)

    def mark_pinned(self, digest: str, pinned: bool) -> None:
        """Of a snapshot or an adapter, whether or not it is here."""
        mark = self.root / "pinned" / digest
        if pinned:
            mark.parent.mkdir(exist_ok=True)
            mark.touch()
        else:
            mark.unlink(missing_ok=True)

    def is_pinned(self, digest: str) -> bool:
        """Whether it is never evicted."""
        return (self.root / "pinned" / digest).exists()

    def remove(self, digest: str) -> None:
        """Delete a snapshot, and what its sources were sealed into.

        Raises:
            NotFound: no such snapshot.
            Conflict: it is in use.
        """
        folder = self.root / digest
        if not DIGEST.fullmatch(digest) or not folder.is_dir():
            raise _not_found(digest)
        if not self.evict(digest):  # damaged ones too
            pids = ", ".join(map(str, holders(self.use_lock(digest)))) or "unknown"
            raise Conflict(
                f"the snapshot {digest} is in use (by process {pids}); delete or change the "
                "functions that run from it, or wait until they are at zero"
            )
        self.forget(digest, self.root / "sources")

    def forget(self, digest: str, sources: Path) -> None:
        """Delete its pin, and what is recorded in this folder as sealed into it."""
        self.mark_pinned(digest, False)
        for entry in _children(sources):
            if _read_text(entry) == digest:
                entry.unlink(missing_ok=True)

    def evict(self, digest: str) -> bool:
        """Delete a snapshot unless it is in use; whether it is gone. What its sources were sealed
        into stays known, so that it can be fetched again."""
        with self.workplace(f"remove-{digest}") as trash, try_locked(self.use_lock(digest)) as free:
            if not free:
                return False
            with suppress(FileNotFoundError):  # another process was faster
                (self.root / digest).rename(trash)
        return True

    def quarantine(self, digest: str, reason: str) -> None:
        """Take a damaged snapshot out of the way at once. Replicas that have it mapped keep it."""
        self.set_aside(self.root / digest, reason, what=f"snapshot {digest}")

    def set_aside(self, path: Path, reason: str, *, what: str) -> None:
        """Move a damaged folder or file into quarantine/, with the reason."""
        folder = self.root / "quarantine" / path.stem
        with self.workplace(f"quarantine-{path.stem}"):
            if not path.exists():  # another process was faster
                return
            folder.parent.mkdir(exist_ok=True)
            _delete(folder)  # an older one
            try:
                if path.is_dir():
                    path.rename(folder)
                else:
                    folder.mkdir()
                    path.rename(folder / path.name)
                (folder / "reason.txt").write_text(reason + "\n")
            except FileNotFoundError:  # another process was faster
                return
            except OSError as error:  # a full disk: out of the way is what counts
                _log.warning("%s: %s", folder, error.strerror)
        _log.error("%s is in quarantine: %s", what, reason)

    def put(self, folder: Path, digest: str) -> None:
        """Move a complete, synced snapshot into place; one that is there and whole stays.

        Raises:
            OSError: it cannot be moved.
        """
        target = self.root / digest
        if target.exists():
            try:
                read_manifest(target)
            except CorruptSnapshot as error:
                self.quarantine(digest, error.message)
            else:
                self.touch(digest)
                return
        self.touch(digest)
        try:
            folder.rename(target)
        except OSError:
            if not target.exists():  # else another process was faster
                raise
        sync_folder(self.root)

    @property
    def limit_bytes(self) -> int | None:
        """How large the cache may be; None: as large as the disk."""
        text = _read_text(self.root / "limit")
        return int(text) if text and text.isdecimal() else None

    def set_limit(self, limit_bytes: int | None) -> None:
        """For this cache, whoever writes into it, until it is set again."""
        path = self.root / "limit"
        if limit_bytes is None:
            path.unlink(missing_ok=True)
            return
        self.root.mkdir(parents=True, exist_ok=True)
        with self.workplace("limit") as entry:
            entry.write_text(str(limit_bytes))
            entry.rename(path)

    def remove_folder(self, folder: Path) -> None:
        """Delete a folder of the cache: first its name, at once, then what is in it."""
        with self.workplace(f"remove-{folder.name}") as trash:
            try:
                folder.rename(trash)
            except FileNotFoundError:  # another process was faster
                return

    def recorded(self, fingerprint: str) -> str | None:
        """The digest that this source was sealed into, whether or not that snapshot is here."""
        digest = _read_text(self.root / "sources" / fingerprint)
        return digest if digest is not None and DIGEST.fullmatch(digest) else None

    def sealed(self, fingerprint: str) -> str | None:
        """The digest that this source was sealed into, if that snapshot is still here and whole."""
        digest = self.recorded(fingerprint)
        if digest is None:
            return None
        try:
            read_manifest(self.path(digest))
        except (NotFound, CorruptSnapshot):
            return None
        return digest

    def record_sealed(self, fingerprint: str, digest: str) -> None:
        """Remember, durably, what a source was sealed into."""
        self.record(self.root / "sources" / fingerprint, digest)

    def record(self, path: Path, text: str) -> None:
        """Write a small file of the cache, whole and durably, whatever was there."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with self.workplace(f"record-{path.parent.parent.name}-{path.name}") as entry:
            write_synced(entry, text.encode("ascii"))
            entry.rename(path)
            sync_folder(path.parent)

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

    @contextmanager
    def resumable(self, name: str) -> Iterator[Path]:
        """partial/NAME, for this process alone, with what a killed one has left there.

        Waits while another process has the same. Whatever is there at the end is deleted.
        """
        path = self.root / "partial" / name
        with locked(self.fetch_lock(name)):
            path.parent.mkdir(parents=True, exist_ok=True)
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

    def fetch_lock(self, name: str) -> Path:
        """Held by who fetches or seals into partial/NAME."""
        return self.root / "locks" / f"fetch-{name}"

    def use_lock(self, digest: str) -> Path:
        """Shared by those who use the snapshot, or the adapter, with this digest."""
        return self.root / "use" / digest


def _not_found(digest: str) -> NotFound:
    return NotFound(f"no snapshot {digest[:80]!r} on this node; seal its model")


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
