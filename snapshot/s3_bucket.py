"""S3Bucket: a bucket's objects, read, listed and written. Any S3-compatible service will do.

Blocking, and safe to call from several threads. Credentials and region come from where boto3 looks
for them (environment, ~/.aws, instance roles). Importing this module imports boto3: processes that
must start quickly import it where they use it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from glowplug.errors import NotFound, SnapshotError
from snapshot.s3_location import S3Location

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import GetObjectRequestTypeDef

CONNECTIONS = 16
_PART_BYTES = 16 * 2**20
_BLOCK_BYTES = 1 << 20
_CONNECT_TIMEOUT_S = 10
_READ_TIMEOUT_S = 30
_ATTEMPTS = 5  # by botocore, of a request that is not answered or answered with a 5xx
_MISSING = ("404", "NoSuchKey", "NotFound")


class Interrupted(SnapshotError):
    """The connection broke, or the store answered with an error that may pass: try again."""


@dataclass(frozen=True, kw_only=True)
class S3Object:
    """What a bucket says of an object."""

    key: str  # the whole one
    size: int
    etag: str  # changes with the contents
    sha256: str | None = None  # that it was uploaded with; not known from a listing


class S3Bucket:
    """The bucket of a location. Keys are whole, whatever the location's prefix."""

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

    def objects(self, prefix: str, *, limit: int) -> list[S3Object]:
        """All objects whose keys begin with the prefix. Raises SnapshotError, also for over
        `limit` of them."""
        found: list[S3Object] = []
        with self._errors(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.location.bucket, Prefix=prefix
            )
            for page in pages:
                found += [
                    S3Object(key=each["Key"], size=each["Size"], etag=each["ETag"])
                    for each in page.get("Contents", [])
                ]
                if len(found) > limit:
                    raise SnapshotError(f"{self._where(prefix)}: over {limit} objects")
        return found

    def folders(self, prefix: str, *, limit: int) -> list[str]:
        """What stands between the prefix and the next slash, of all keys. Raises SnapshotError,
        also for over `limit` of them."""
        found: list[str] = []
        with self._errors(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.location.bucket, Prefix=prefix, Delimiter="/"
            )
            for page in pages:
                found += [
                    each.get("Prefix", "").removeprefix(prefix).rstrip("/")
                    for each in page.get("CommonPrefixes", [])
                ]
                if len(found) > limit:
                    raise SnapshotError(f"{self._where(prefix)}: over {limit} entries")
        return found

    def head(self, key: str) -> S3Object | None:
        """What there is to say of an object; None: it is not there. Raises SnapshotError."""
        try:
            with self._errors(key):
                answer = self._client.head_object(Bucket=self.location.bucket, Key=key)
        except NotFound:
            return None
        return S3Object(
            key=key,
            size=answer["ContentLength"],
            etag=answer["ETag"],
            sha256=answer.get("Metadata", {}).get("sha256"),
        )

    def read_small(self, key: str, *, max_bytes: int) -> bytes:
        """A small object's bytes.

        Raises:
            NotFound: no such object.
            SnapshotError: it is over `max_bytes`, or cannot be read.
        """
        with self._errors(key):
            answer = self._client.get_object(Bucket=self.location.bucket, Key=key)
            data = answer["Body"].read(max_bytes + 1)
        if len(data) > max_bytes:
            raise SnapshotError(f"{self._where(key)}: over {max_bytes} bytes")
        return data

    def read(self, key: str, *, offset: int, size: int, etag: str | None = None) -> Iterator[bytes]:
        """A range of an object, in blocks of up to 1 MiB, as they come.

        Raises:
            Interrupted: try again.
            NotFound: no such object.
            SnapshotError: it cannot be read, or its ETag is not `etag`, where that is given.
        """
        if size == 0:
            return
        request: GetObjectRequestTypeDef = {
            "Bucket": self.location.bucket,
            "Key": key,
            "Range": f"bytes={offset}-{offset + size - 1}",
        }
        if etag is not None:
            request["IfMatch"] = etag
        with self._errors(key):
            yield from self._client.get_object(**request)["Body"].iter_chunks(_BLOCK_BYTES)

    def write_small(self, key: str, data: bytes) -> None:
        """Put a small object. Raises SnapshotError."""
        with self._errors(key):
            self._client.put_object(Bucket=self.location.bucket, Key=key, Body=data)

    def upload(self, key: str, path: Path, *, sha256: str, sent: Callable[[int], None]) -> None:
        """Put a file in parallel parts. `sent` gets byte counts, from any thread. Raises
        SnapshotError."""
        with self._errors(key):
            self._client.upload_file(
                str(path),
                self.location.bucket,
                key,
                ExtraArgs={"Metadata": {"sha256": sha256}},
                Callback=sent,
                Config=TransferConfig(
                    multipart_threshold=_PART_BYTES,
                    multipart_chunksize=_PART_BYTES,
                    max_concurrency=CONNECTIONS // 2,
                ),
            )

    def _where(self, key: str) -> str:
        return f"s3://{self.location.bucket}/{key}"

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """botocore's errors in our words."""
        where = self._where(key)
        try:
            yield
        except ClientError as error:
            raise _answered(where, error) from None
        except BotoCoreError as error:
            reason = str(error).rstrip(".")
            if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
                raise SnapshotError(f"{where}: {reason}; set AWS_ACCESS_KEY_ID, for one") from None
            raise Interrupted(f"{where}: {reason}") from None
        except boto3.exceptions.Boto3Error as error:  # an upload's, after its own retries
            raise Interrupted(f"{where}: {error}") from None


def _answered(where: str, error: ClientError) -> SnapshotError | NotFound:
    code = error.response.get("Error", {}).get("Code", "unknown")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _MISSING:
        return NotFound(f"{where}: not there")
    if code == "NoSuchBucket":
        return SnapshotError(f"{where}: there is no such bucket")
    if status == 412:
        return SnapshotError(f"{where}: it changed while it was fetched; deploy again")
    if status >= 500 or status == 429:
        return Interrupted(f"{where}: the store answered {status} ({code})")
    return SnapshotError(f"{where}: refused ({code}); check the credentials")
