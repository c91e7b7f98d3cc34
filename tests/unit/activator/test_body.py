"""Reading bodies within limits, whatever their headers say, and finding the model."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers

from activator.body import BodyMemory, declared_bytes, model_of, read_body
from activator.clocks import ClientGone
from glowplug.errors import InvalidRequest, Overloaded, PayloadTooLarge


def read(chunks: list[bytes], *, declared: int = 0, limit: int = 100, memory: int = 1000) -> bytes:
    sent = 0

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent >= len(chunks):
            return {"type": "http.disconnect"}
        sent += 1
        return {
            "type": "http.request",
            "body": chunks[sent - 1],
            "more_body": sent < len(chunks) or chunks[-1] == b"",
        }

    async def main() -> bytes:
        store = BodyMemory(memory)
        try:
            with store.share() as share:
                body = await read_body(
                    receive, declared_bytes=declared, max_bytes=limit, share=share
                )
                assert store.held_bytes == len(body)
                return body
        finally:
            assert store.held_bytes == 0

    return asyncio.run(main())


@settings(max_examples=50, derandomize=True, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=5))
def test_the_limit_holds_for_every_way_to_cut_a_body(chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    if len(whole) <= 100:
        assert read(chunks) == whole
    else:
        with pytest.raises(PayloadTooLarge, match="100 bytes"):
            read(chunks)


def test_a_body_that_says_it_is_too_large_is_not_read() -> None:
    with pytest.raises(PayloadTooLarge):
        read([b"x"], declared=101)


def test_a_client_that_hangs_up_while_sending() -> None:
    with pytest.raises(ClientGone):
        read([b"half", b""])


def test_all_bodies_together_are_bounded() -> None:
    with pytest.raises(Overloaded) as caught:
        read([b"x" * 60, b"x" * 30], memory=80)
    assert caught.value.retry_after_s == 1


def test_declared_bytes() -> None:
    assert declared_bytes(Headers({})) == 0
    assert declared_bytes(Headers({"content-length": "17"})) == 17
    assert declared_bytes(Headers({"content-length": "9" * 5000})) > 2**60
    assert declared_bytes(Headers({"content-length": "-5"})) == 0


def test_the_model_that_a_body_names() -> None:
    assert model_of(b'{"stream": true, "model": "smollm2", "messages": [{"x": []}]}') == "smollm2"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"model": "a"', "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "model"),
        (b"{}", "model"),
        (b'{"model": 7}', "model"),
        (b'{"model": null}', "model"),
    ],
)
def test_a_body_that_names_none(body: bytes, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        model_of(body)
    assert caught.value.code in ("invalid_json", "model_required")
