"""What an `s3://BUCKET/PREFIX` address means. No boto3: a starting server parses one."""

import re
from dataclasses import dataclass

from glowplug.errors import SnapshotError

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_KEY = re.compile(r"[^\x00-\x1f\x7f]{0,900}")  # S3 allows 1,024 bytes for a whole key
_ENDPOINT = re.compile(r"https?://[^/\s]+/?")


@dataclass(frozen=True, kw_only=True)
class S3Location:
    """A bucket and what the keys in it begin with."""

    bucket: str
    prefix: str  # without slashes at its ends; may be empty
    endpoint_url: str | None = None  # of an S3-compatible service; None: as boto3 is configured

    def key(self, name: str) -> str:
        """The key of what is called `name` under the prefix."""
        return f"{self.prefix}/{name}" if self.prefix else name

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


def is_s3(text: str) -> bool:
    """Whether a model's source is meant to be in S3."""
    return text.startswith("s3://")


def parse_location(text: str, endpoint_url: str | None = None) -> S3Location:
    """The location that an address names.

    Raises:
        SnapshotError: it is none, with how one is written.
    """
    bucket, _, prefix = text.removeprefix("s3://").partition("/")
    if (
        not text.startswith("s3://")
        or not _BUCKET.fullmatch(bucket)
        or not _KEY.fullmatch(prefix)
        or any("\ud800" <= character <= "\udfff" for character in prefix)
    ):
        raise SnapshotError(f"{text[:200]}: no S3 address; write s3://BUCKET/PREFIX")
    if endpoint_url is not None and not _ENDPOINT.fullmatch(endpoint_url):
        raise SnapshotError(f"{endpoint_url[:200]}: no endpoint; write https://HOST or http://HOST")
    return S3Location(bucket=bucket, prefix=prefix.strip("/"), endpoint_url=endpoint_url)
