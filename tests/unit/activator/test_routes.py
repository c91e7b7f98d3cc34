"""Which requests may go on to a replica."""

import pytest
from starlette.exceptions import HTTPException

from activator.routes import check_route


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "chat/completions"),
        ("POST", "completions"),
        ("POST", "embeddings"),
        ("GET", "batches/b_1"),
        ("DELETE", "files/f-1"),
    ],
)
def test_goes_on(method: str, path: str) -> None:
    check_route(method, path, by_model=False)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "chat/completions", 405),
        ("HEAD", "chat/completions", 405),
        ("OPTIONS", "chat/completions", 405),
        ("HEAD", "embeddings", 405),
        ("OPTIONS", "embeddings", 405),
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
    for by_model in (False, True):
        with pytest.raises(HTTPException) as caught:
            check_route(method, path, by_model=by_model)
        assert caught.value.status_code == status
        assert status != 405 or caught.value.headers


def test_by_model_takes_posts_only() -> None:
    check_route("POST", "embeddings", by_model=True)
    with pytest.raises(HTTPException):
        check_route("GET", "embeddings", by_model=True)
