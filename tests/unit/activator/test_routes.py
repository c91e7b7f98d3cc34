"""Which requests may go on to a replica."""

import pytest
from starlette.exceptions import HTTPException

from activator.routes import check_route


@pytest.mark.parametrize(
    "path", ["chat/completions", "completions", "embeddings", "tokenize", "detokenize"]
)
def test_goes_on(path: str) -> None:
    check_route("POST", path)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "chat/completions", 405),
        ("HEAD", "chat/completions", 405),
        ("OPTIONS", "chat/completions", 405),
        ("GET", "tokenize", 405),
        ("GET", "detokenize", 405),
        ("GET", "embeddings", 405),
        ("POST", "images/generations", 404),
        ("GET", "anything", 404),
        ("DELETE", "files/f-1", 404),
        ("POST", "models", 405),
        ("DELETE", "models/smollm2", 405),
        ("PATCH", "functions/smollm2", 405),
        ("POST", "", 404),
        ("POST", "a//b", 404),
        ("POST", "../metrics", 404),
        ("POST", "a/../../metrics", 404),
        ("POST", "a b", 404),
        ("POST", "a?b", 404),
        ("POST", "a\r\nb", 404),
        ("POST", "ü", 404),
    ],
)
def test_does_not(method: str, path: str, status: int) -> None:
    with pytest.raises(HTTPException) as caught:
        check_route(method, path)
    assert caught.value.status_code == status
    assert status != 405 or caught.value.headers
