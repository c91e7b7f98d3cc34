"""What leaves the node cache when it is full, and when it is full.

First what serves nobody: quarantined snapshots and fetches that were given up. Then, in a cache
with a limit, snapshots and adapters, the longest unused first. One that is pinned or in use never
leaves. Without a limit none is evicted: what cannot be written is refused.

Called in the processes that write into the cache, before and after. No torch.
"""

import os
import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from glowplug.errors import SnapshotError
from snapshot.adapter_store import AdapterStore
from snapshot.locks import try_locked
from snapshot.node_cache import DIGEST, NodeCache

_RESERVE_BYTES = 1 << 30  # of the disk, left to others; a twentieth of it where that is less


@dataclass(frozen=True, kw_only=True)
class Resident:
    """A snapshot or an adapter in the cache, to the policy."""

    digest: str
    size_bytes: int
    last_used_s: float
    pinned: bool = False
    is_adapter: bool = False


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What was deleted."""

    snapshots: Sequence[str]
    adapters: Sequence[str]
    freed_bytes: int


def eviction_order(residents: Iterable[Resident], *, keep: Collection[str] = ()) -> list[Resident]:
    """Those that may leave, in the order in which they do."""
    movable = [each for each in residents if not each.pinned and each.digest not in keep]
    return sorted(movable, key=lambda each: (each.last_used_s, each.digest))


def make_room(cache: NodeCache, needed_bytes: int, *, keep: Collection[str] = ()) -> Collected:
    """Delete until `needed_bytes` more fit the cache's limit and its disk.

    `keep` names what must stay. What is being written already (in tmp/) counts by what is there.

    Raises:
        SnapshotError: they do not fit; nothing more can be deleted.
    """
    collected = _collect(cache, needed_bytes, limit_bytes=cache.limit_bytes, keep=keep)
    short_bytes = _excess_bytes(cache, needed_bytes, cache.limit_bytes)
    if short_bytes > 0:
        raise SnapshotError(_why(cache, needed_bytes))
    return collected


def trim(cache: NodeCache, *, keep: Collection[str] = ()) -> Collected:
    """Delete what is over the limit, as far as possible."""
    return _collect(cache, 0, limit_bytes=cache.limit_bytes, keep=keep)


def collect_garbage(cache: NodeCache, *, limit_bytes: int | None = None) -> Collected:
    """Delete all that serves nobody, then snapshots over a limit (default: the cache's own)."""
    before = used_bytes(cache.root)
    cache.clean()
    for path in _useless(cache, keep=()):
        _delete_useless(cache, path)
    limit = cache.limit_bytes if limit_bytes is None else limit_bytes
    evicted = _collect(cache, 0, limit_bytes=limit, keep=())
    freed = max(0, before - used_bytes(cache.root))
    return replace(evicted, freed_bytes=freed)


def residents(cache: NodeCache) -> list[Resident]:
    """Every snapshot and adapter of the cache, damaged ones too."""
    snapshots = [
        Resident(
            digest=folder.name,
            size_bytes=used_bytes(folder),
            last_used_s=cache.last_used_s(folder.name),
            pinned=cache.is_pinned(folder.name),
        )
        for folder in _folders(cache.root)
        if DIGEST.fullmatch(folder.name)
    ]
    store = AdapterStore(cache)
    adapters = [
        Resident(
            digest=digest,
            size_bytes=_disk_bytes(store.folder / f"{digest}.safetensors"),
            last_used_s=store.last_used_s(digest),
            pinned=cache.is_pinned(digest),
            is_adapter=True,
        )
        for digest in store.digests()
    ]
    return snapshots + adapters


def used_bytes(folder: Path) -> int:
    """What a folder takes on its disk; what disappears meanwhile does not count."""
    return sum(
        _disk_bytes(Path(parent, name))
        for parent, _, names in os.walk(folder)  # passes over folders that it cannot read
        for name in names
    )


def _disk_bytes(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0


def _collect(
    cache: NodeCache, needed_bytes: int, *, limit_bytes: int | None, keep: Collection[str]
) -> Collected:
    excess = _excess_bytes(cache, needed_bytes, limit_bytes)
    freed = 0
    evicted: list[Resident] = []
    for path in _useless(cache, keep=keep):
        if freed >= excess:
            break
        size = used_bytes(path)
        if _delete_useless(cache, path):
            freed += size
    if limit_bytes is not None and freed < excess:
        for resident in eviction_order(residents(cache), keep=keep):
            if freed >= excess:
                break
            holder = AdapterStore(cache) if resident.is_adapter else cache
            if holder.evict(resident.digest):
                freed += resident.size_bytes
                evicted.append(resident)
    return Collected(
        snapshots=[each.digest for each in evicted if not each.is_adapter],
        adapters=[each.digest for each in evicted if each.is_adapter],
        freed_bytes=freed,
    )


def _excess_bytes(cache: NodeCache, needed_bytes: int, limit_bytes: int | None) -> int:
    """How much must go before `needed_bytes` fit; zero or less: they do."""
    over_limit = 0
    if limit_bytes is not None:
        over_limit = used_bytes(cache.root) + needed_bytes - limit_bytes
    if needed_bytes == 0:
        return over_limit
    disk = shutil.disk_usage(_existing(cache.root))
    reserve = min(_RESERVE_BYTES, disk.total // 20)
    return max(over_limit, needed_bytes + reserve - disk.free)


def _why(cache: NodeCache, needed_bytes: int) -> str:
    limit = cache.limit_bytes
    if limit is not None and used_bytes(cache.root) + needed_bytes > limit:
        return (
            f"{cache.root}: {_mib(needed_bytes)} more do not fit the cache's limit of "
            f"{_mib(limit)}: the other {_mib(used_bytes(cache.root))} are pinned or in use; raise "
            "--cache-limit or unpin some"
        )
    free = shutil.disk_usage(_existing(cache.root)).free
    return (
        f"{cache.root}: {_mib(free)} are free on its disk, of which a part is kept free; "
        f"{_mib(needed_bytes)} more do not fit; make room or remove snapshots"
    )


def _useless(cache: NodeCache, *, keep: Collection[str]) -> list[Path]:
    parts = _folders(cache.root / "partial")
    return [*_folders(cache.root / "quarantine"), *(p for p in parts if p.name not in keep)]


def _delete_useless(cache: NodeCache, path: Path) -> bool:
    """False for a fetch that runs."""
    if path.parent.name == "quarantine":
        cache.remove_folder(path)
        return True
    with try_locked(cache.fetch_lock(path.name)) as free:
        if free:
            cache.remove_folder(path)
        return free


def _folders(root: Path) -> list[Path]:
    try:
        return sorted(path for path in root.iterdir() if path.is_dir())
    except OSError:
        return []


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _mib(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"
