"""S3 addresses."""

import pytest

from glowplug.errors import SnapshotError
from snapshot.s3_location import parse_location


@pytest.mark.parametrize(
    ("text", "bucket", "key"),
    [
        ("s3://models", "models", "x"),
        ("s3://models/", "models", "x"),
        ("s3://models/a/b", "models", "a/b/x"),
        ("s3://my.bucket-1/a/", "my.bucket-1", "a/x"),
    ],
)
def test_addresses(text: str, bucket: str, key: str) -> None:
    location = parse_location(text)
    assert (location.bucket, location.key("x")) == (bucket, key)
    assert parse_location(str(location)) == location


@pytest.mark.parametrize(
    "text",
    [
        *("", "s3://", "models", "http://models/x", "s3:///x", "s3://UPPER/x", "s3://a"),
        *("s3://-ab/x", "s3://models/\0", "s3://models/\ud800", "s3://models/" + "x" * 1000),
        "s3://a b c/x",
    ],
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(SnapshotError, match="write s3://BUCKET/PREFIX"):
        parse_location(text)


def test_endpoints() -> None:
    location = parse_location("s3://models/x", "http://127.0.0.1:9000")
    assert location.endpoint_url == "http://127.0.0.1:9000"
    for wrong in ("127.0.0.1:9000", "ftp://host", "", "http://"):
        with pytest.raises(SnapshotError, match="write https://HOST"):
            parse_location("s3://models/x", wrong)
