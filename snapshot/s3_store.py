"""S3Store: snapshots in a bucket, shared by nodes. Any S3-compatible service will do.

    s3://BUCKET/PREFIX/sha256-HEX/manifest.json      there once all other files are
    s3://BUCKET/PREFIX/sha256-HEX/FILE               those that the manifest lists
    s3://BUCKET/PREFIX/sha256-HEX/manifest.json.sig  the signature, where there is one

Blocking, and safe to call from several threads. Credentials and region come from where boto3 looks
for them (environment, ~/.aws, instance roles). Importing this module imports boto3: processes that
must start quickly import it where they use it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from glowplug.errors import NotFound, SnapshotError
from snapshot.manifest import MANIFEST, MAX_MANIFEST_BYTES, FileEntry
from snapshot.s3_location import S3Location

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

CONNECTIONS = 16
_PART_BYTES = 16 * 2**20
_BLOCK_BYTES = 1 << 20
_CONNECT_TIMEOUT_S = 10
_READ_TIMEOUT_S = 30
_ATTEMPTS = 5  # by botocore, of a request that is not answered or answered with a 5xx
_MISSING = ("404", "NoSuchKey", "NotFound")
_MAX_LISTED = 100_000


class Interrupted(SnapshotError):
    """The connection broke, or the store answered with an error that may pass: try again."""


class S3Store:
    """One bucket's snapshots under one prefix."""

    def __init__(self, location: S3Location) -> None:
        self.location = location
        self._client: S3Client = boto3.session.Session().client(
            "s3",
            endpoint_url=location.endpoint_url,
            config=Config(
                connect_timeout=_CONNECT_TIMEOUT_S,
                read_timeout=_READ_TIMEOUT_S,
                max_pool_connections=CONNECTIONS,
                retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
                s3={"addressing_style": "path" if location.endpoint_url else "auto"},
            ),
        )

    def has(self, digest: str) -> bool:
        """Whether the snapshot is there, whole. Raises SnapshotError."""
        return self._head(f"{digest}/{MANIFEST}") is not None

    def list(self) -> list[str]:
        """The digests of all snapshots. Raises SnapshotError."""
        prefix = self.location.key("")
        found = []
        with self._errors(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.location.bucket, Prefix=prefix, Delimiter="/"
            )
            for page in pages:
                found += [
                    each.get("Prefix", "").removeprefix(prefix).rstrip("/")
                    for each in page.get("CommonPrefixes", [])
                ]
                if len(found) > _MAX_LISTED:
                    raise SnapshotError(f"{self.location}: over {_MAX_LISTED} entries")
        return [digest for digest in found if digest.startswith("sha256-") and self.has(digest)]

    def read_small(self, digest: str, name: str, *, max_bytes: int = MAX_MANIFEST_BYTES) -> bytes:
        """A small object's bytes.

        Raises:
            NotFound: no such object.
            SnapshotError: it is over `max_bytes`, or cannot be read.
        """
        key = f"{digest}/{name}"
        with self._errors(key):
            answer = self._client.get_object(
                Bucket=self.location.bucket, Key=self.location.key(key)
            )
            data = answer["Body"].read(max_bytes + 1)
        if len(data) > max_bytes:
            raise SnapshotError(f"{self.location}/{key}: over {max_bytes} bytes")
        return data

    def read(self, digest: str, name: str, *, offset: int, size: int) -> Iterator[bytes]:
        """A range of an object, in blocks of up to 1 MiB, as they come.

        Raises:
            Interrupted: try again.
            NotFound: no such object.
            SnapshotError: it cannot be read.
        """
        if size == 0:
            return
        key = f"{digest}/{name}"
        with self._errors(key):
            answer = self._client.get_object(
                Bucket=self.location.bucket,
                Key=self.location.key(key),
                Range=f"bytes={offset}-{offset + size - 1}",
            )
            yield from answer["Body"].iter_chunks(_BLOCK_BYTES)

    def write_small(self, digest: str, name: str, data: bytes) -> None:
        """Put a small object. Raises SnapshotError."""
        key = f"{digest}/{name}"
        with self._errors(key):
            self._client.put_object(
                Bucket=self.location.bucket, Key=self.location.key(key), Body=data
            )

    def write(
        self,
        digest: str,
        path: Path,
        entry: FileEntry,
        *,
        sent: Callable[[int], None],
    ) -> None:
        """Upload a file in parallel parts, unless it is there already. `sent` gets byte counts,
        from any thread. Raises SnapshotError."""
        key = f"{digest}/{path.name}"
        there = self._head(key)
        if there == (entry.size, entry.sha256):
            sent(entry.size)
            return
        with self._errors(key):
            self._client.upload_file(
                str(path),
                self.location.bucket,
                self.location.key(key),
                ExtraArgs={"Metadata": {"sha256": entry.sha256}},
                Callback=sent,
                Config=TransferConfig(
                    multipart_threshold=_PART_BYTES,
                    multipart_chunksize=_PART_BYTES,
                    max_concurrency=CONNECTIONS // 2,
                ),
            )

    def _head(self, key: str) -> tuple[int, str | None] | None:
        """An object's size and the SHA-256 that it was uploaded with; None: it is not there."""
        try:
            with self._errors(key):
                answer = self._client.head_object(
                    Bucket=self.location.bucket, Key=self.location.key(key)
                )
        except NotFound:
            return None
        return answer["ContentLength"], answer.get("Metadata", {}).get("sha256")

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """botocore's errors in our words."""
        where = f"{self.location}/{key}"
        try:
            yield
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "unknown")
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if code in _MISSING:
                raise NotFound(f"{where}: not there") from None
            if code == "NoSuchBucket":
                raise SnapshotError(f"{where}: there is no such bucket") from None
            if status >= 500 or status == 429:
                raise Interrupted(f"{where}: the store answered {status} ({code})") from None
            raise SnapshotError(f"{where}: refused ({code}); check the credentials") from None
        except BotoCoreError as error:
            reason = str(error).rstrip(".")
            if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
                raise SnapshotError(f"{where}: {reason}; set AWS_ACCESS_KEY_ID, for one") from None
            raise Interrupted(f"{where}: {reason}") from None
        except boto3.exceptions.Boto3Error as error:  # an upload's, after its own retries
            raise Interrupted(f"{where}: {error}") from None
