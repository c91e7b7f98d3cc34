"""AdapterStore: the sealed adapters in a node cache. No torch; safe to use from many processes.

    ROOT/adapters/sha256-HEX.safetensors    an adapter, see adapter_layout.py; HEX is its SHA-256
    ROOT/adapters/sources/FINGERPRINT       the digest that an adapter's folder was sealed into

The same adapter under two names, of two functions or from two folders is one file.
"""

import hashlib
import json
import re
from pathlib import Path

from glowplug.errors import NotFound, SnapshotError
from snapshot.adapter_config import CONFIG
from snapshot.adapter_layout import ADAPTER_FORMAT
from snapshot.manifest import Manifest, read_manifest
from snapshot.node_cache import NodeCache

ADAPTER_SEAL_VERSION = 1  # raise it when the same folder would be sealed into other bytes
_DIGEST = re.compile(r"sha256-[0-9a-f]{64}")
_FILES = (CONFIG, "adapter_model.safetensors")


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
        path = self.folder / f"{digest}.safetensors"
        if not _DIGEST.fullmatch(digest) or not path.is_file():
            raise NotFound(f"no adapter {digest[:80]!r} on this node; deploy its function again")
        return path

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
