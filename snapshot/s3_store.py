"""S3Store: snapshots in a bucket, shared by nodes.

    s3://BUCKET/PREFIX/sha256-HEX/manifest.json      there once all other files are
    s3://BUCKET/PREFIX/sha256-HEX/FILE               those that the manifest lists
    s3://BUCKET/PREFIX/sha256-HEX/manifest.json.sig  the signature, where there is one

Blocking, and safe to call from several threads. Imports boto3, as s3_bucket.py does.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from snapshot.manifest import MANIFEST, MAX_MANIFEST_BYTES, FileEntry
from snapshot.s3_bucket import S3Bucket
from snapshot.s3_location import S3Location

_MAX_LISTED = 100_000


class S3Store:
    """One bucket's snapshots under one prefix."""

    def __init__(self, location: S3Location) -> None:
        self.location = location
        self._bucket = S3Bucket(location)

    def has(self, digest: str) -> bool:
        """Whether the snapshot is there, whole. Raises SnapshotError."""
        return self._bucket.head(self._key(digest, MANIFEST)) is not None

    def list(self) -> list[str]:
        """The digests of all snapshots. Raises SnapshotError."""
        found = self._bucket.folders(self.location.key(""), limit=_MAX_LISTED)
        return [digest for digest in found if digest.startswith("sha256-") and self.has(digest)]

    def read_small(self, digest: str, name: str, *, max_bytes: int = MAX_MANIFEST_BYTES) -> bytes:
        """A small file's bytes.

        Raises:
            NotFound: no such object.
            SnapshotError: it is over `max_bytes`, or cannot be read.
        """
        return self._bucket.read_small(self._key(digest, name), max_bytes=max_bytes)

    def read(self, digest: str, name: str, *, offset: int, size: int) -> Iterator[bytes]:
        """A range of a file, in blocks of up to 1 MiB, as they come.

        Raises:
            Interrupted: try again.
            NotFound: no such object.
            SnapshotError: it cannot be read.
        """
        return self._bucket.read(self._key(digest, name), offset=offset, size=size)

    def write_small(self, digest: str, name: str, data: bytes) -> None:
        """Put a small file. Raises SnapshotError."""
        self._bucket.write_small(self._key(digest, name), data)

    def write(
        self, digest: str, path: Path, entry: FileEntry, *, sent: Callable[[int], None]
    ) -> None:
        """Upload a file in parallel parts, unless it is there already. `sent` gets byte counts,
        from any thread. Raises SnapshotError."""
        key = self._key(digest, path.name)
        there = self._bucket.head(key)
        if there is not None and (there.size, there.sha256) == (entry.size, entry.sha256):
            sent(entry.size)
            return
        self._bucket.upload(key, path, sha256=entry.sha256, sent=sent)

    def _key(self, digest: str, name: str) -> str:
        return self.location.key(f"{digest}/{name}")
