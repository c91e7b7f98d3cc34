"""AdapterStore: the sealed adapters in a node cache. No torch; safe to use from many processes.

    ROOT/adapters/sha256-HEX.safetensors    an adapter, see adapter_layout.py; HEX is its SHA-256
    ROOT/adapters/sources/FINGERPRINT       the digest that an adapter's folder was sealed into

The same adapter under two names, of two functions or from two folders is one file. Locks, pins and
quarantine are the node cache's own, by digest: what it does with snapshots, this does with
adapters.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from glowplug.errors import Conflict, CorruptSnapshot, NotFound, SnapshotError
from glowplug.spec import Dtype
from snapshot.adapter_config import CONFIG
from snapshot.adapter_layout import ADAPTER_FORMAT, MAX_HEADER_BYTES, AdapterManifest, manifest_of
from snapshot.locks import holders, shared, try_locked
from snapshot.manifest import Manifest, read_manifest
from snapshot.node_cache import NodeCache

ADAPTER_SEAL_VERSION = 1  # raise it when the same folder would be sealed into other bytes
_DIGEST = re.compile(r"sha256-[0-9a-f]{64}")
_FILES = (CONFIG, "adapter_model.safetensors")


@dataclass(frozen=True, kw_only=True)
class CachedAdapter:
    """One line of `glowplug snapshots`."""

    digest: str
    dtype: Dtype
    matrices: int  # of the model that it changes
    size_bytes: int
    created_s: float  # Unix time
    last_used_s: float  # Unix time
    pinned: bool
    users: tuple[int, ...]  # the processes that use it now


class AdapterStore:
    """Finds adapters by digest, and digests by source."""

    def __init__(self, cache: NodeCache) -> None:
        self.cache = cache
        self.folder = cache.root / "adapters"

    def path(self, digest: str) -> Path:
        """The adapter's file.

        Raises:
            NotFound: no such adapter on this node.
        """
        if not self.has(digest):
            raise NotFound(f"no adapter {digest[:80]!r} on this node; deploy its function again")
        return self._file(digest)

    def has(self, digest: str) -> bool:
        """Whether the adapter is on this node."""
        return _DIGEST.fullmatch(digest) is not None and self._file(digest).is_file()

    def digests(self) -> Sequence[str]:
        """Of all adapters, damaged ones too."""
        return sorted(
            path.stem
            for path in self.folder.glob("sha256-*.safetensors")
            if _DIGEST.fullmatch(path.stem)
        )

    def list(self) -> "list[CachedAdapter]":
        """All adapters, newest first; damaged ones are left out."""
        found = []
        for digest in self.digests():
            try:
                manifest = _manifest(self._file(digest))
                stat = self._file(digest).stat()
            except (CorruptSnapshot, OSError):  # damaged, or removed meanwhile
                continue
            found.append(
                CachedAdapter(
                    digest=digest,
                    dtype=manifest.dtype,
                    matrices=len(manifest.blocks),
                    size_bytes=stat.st_size,
                    created_s=stat.st_mtime,
                    last_used_s=self.last_used_s(digest),
                    pinned=self.cache.is_pinned(digest),
                    users=tuple(holders(self.cache.use_lock(digest))),
                )
            )
        return sorted(found, key=lambda adapter: -adapter.created_s)

    @contextmanager
    def used(self, digest: str) -> Iterator[Path]:
        """The adapter's file, which is neither evicted nor removed while the block runs. A process
        that dies in it lets go of it too. Raises NotFound."""
        self.path(digest)
        with shared(self.cache.use_lock(digest)) as descriptor:
            os.utime(descriptor)  # the last use, for eviction
            yield self.path(digest)  # it may have been removed before the lock was ours

    def last_used_s(self, digest: str) -> float:
        """Unix time; of its sealing where it was never used. 0.0 when it is gone."""
        for path in (self.cache.use_lock(digest), self._file(digest)):
            with suppress(OSError):
                return path.stat().st_mtime
        return 0.0

    def verify(self, digest: str) -> None:
        """Read every byte and compare it with the digest.

        Raises:
            NotFound: no such adapter.
            CorruptSnapshot: the file was changed.
        """
        with self.used(digest) as path, path.open("rb") as file:
            if "sha256-" + hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise CorruptSnapshot(f"{path}: its bytes changed since it was sealed")

    def quarantine(self, digest: str, reason: str) -> None:
        """Take a damaged adapter out of the way. Replicas that have it mapped keep it."""
        self.cache.set_aside(self._file(digest), reason, what=f"adapter {digest}")

    def pin(self, digest: str) -> None:
        """Never evict this adapter. Raises NotFound."""
        self.path(digest)
        self.cache.mark_pinned(digest, True)

    def unpin(self, digest: str) -> None:
        """Let it be evicted again. Raises NotFound."""
        self.path(digest)
        self.cache.mark_pinned(digest, False)

    def remove(self, digest: str) -> None:
        """Delete an adapter, and what its sources were sealed into.

        Raises:
            NotFound: no such adapter.
            Conflict: it is in use.
        """
        self.path(digest)
        if not self.evict(digest):
            pids = ", ".join(map(str, holders(self.cache.use_lock(digest)))) or "unknown"
            raise Conflict(
                f"the adapter {digest} is in use (by process {pids}); delete or change the "
                "functions that have it, or wait until they are at zero"
            )
        self.cache.forget(digest, self.folder / "sources")

    def evict(self, digest: str) -> bool:
        """Delete an adapter unless it is in use; whether it is gone."""
        with try_locked(self.cache.use_lock(digest)) as free:
            if free:
                self._file(digest).unlink(missing_ok=True)
            return free

    def _file(self, digest: str) -> Path:
        return self.folder / f"{digest}.safetensors"

    def size_bytes(self, digest: str) -> int:
        """The file's size. Raises NotFound."""
        return self.path(digest).stat().st_size

    def sealed(self, fingerprint: str) -> str | None:
        """The digest that this source was sealed into, if that adapter is still here."""
        try:
            digest = (self.folder / "sources" / fingerprint).read_text(encoding="ascii")
            self.path(digest)
        except (OSError, UnicodeDecodeError, NotFound):
            return None
        return digest

    def record(self, fingerprint: str, digest: str) -> None:
        """Remember, durably, what a source was sealed into."""
        self.cache.record(self.folder / "sources" / fingerprint, digest)

    def base(self, snapshot: str) -> Manifest:
        """What an adapter of this model is checked against. Raises NotFound, CorruptSnapshot."""
        return read_manifest(self.cache.path(snapshot))


def _manifest(path: Path) -> AdapterManifest:
    """What the file's header says. Raises CorruptSnapshot, OSError."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > MAX_HEADER_BYTES:
            raise CorruptSnapshot(f"{path}: not a sealed adapter")
        return manifest_of(file.read(size), str(path))


def adapter_fingerprint(source: str, base: Manifest) -> str:
    """Names what sealing would read and write: changes when a file is replaced, costs two stats.

    Raises:
        SnapshotError: it is no folder with an adapter.
    """
    folder = Path(source).expanduser().absolute()
    if not folder.is_dir():
        raise SnapshotError(
            f"{source}: no such folder; give the folder that PEFT's save_pretrained wrote"
        )
    if not (folder / CONFIG).is_file():
        raise SnapshotError(
            f"{source}: a folder without {CONFIG}; give the one that PEFT's save_pretrained wrote"
        )
    key = {
        "source": str(folder),
        "version": (ADAPTER_SEAL_VERSION, ADAPTER_FORMAT),
        "dtype": base.dtype,
        "config": base.config.model_dump(mode="json"),
        "files": [_state(folder / name) for name in _FILES],
    }
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()


def _state(path: Path) -> tuple[str, int, int] | None:
    try:
        stat = path.stat()
        return str(path.resolve()), stat.st_size, stat.st_mtime_ns
    except OSError:
        return None  # sealing says what is wrong
