"""Which headers pass and which do not, in both directions."""

from activator.headers import encoded, to_client, to_replica
from glowplug.contracts import Priority


def test_to_the_replica() -> None:
    passed = to_replica(
        [
            (b"Host", b"example.com"),
            (b"Content-Type", b"application/json"),
            (b"Authorization", b"Bearer secret"),
            (b"Cookie", b"a=b"),
            (b"Connection", b"close, X-Private"),
            (b"X-Private", b"1"),
            (b"Transfer-Encoding", b"chunked"),
            (b"Expect", b"100-continue"),
            (b"Accept-Encoding", b"gzip"),
            (b"X-Request-Id", b"theirs"),
            (b"X-Glowplug-Tenant", b"someone else"),
            (b"X-Glowplug-Priority", b"high"),
            (b"X-Title", "Grüße".encode("latin-1")),
        ],
        request_id="ours",
        tenant="team ü",
        priority=Priority.LOW,
    )
    assert passed == [
        ("content-type", "application/json"),
        ("x-title", "Grüße"),
        ("accept-encoding", "identity"),
        ("x-request-id", "ours"),
        ("x-glowplug-tenant", "team%20%C3%BC"),
        ("x-glowplug-priority", "low"),
    ]


def test_to_the_client() -> None:
    passed = to_client(
        [
            (b"Content-Type", b"text/event-stream"),
            (b"Date", b"today"),
            (b"Server", b"uvicorn"),
            (b"Connection", b"keep-alive"),
            (b"Transfer-Encoding", b"chunked"),
            (b"Server-Timing", b"prefill;dur=1"),
            (b"X-Function", b"forged"),
            (b"X-Ratelimit-Limit", b"10"),
        ]
    )
    assert passed == [(b"content-type", b"text/event-stream"), (b"x-ratelimit-limit", b"10")]


def test_values_are_made_plain_ascii() -> None:
    assert encoded(("x-function", "smollm2")) == [(b"x-function", b"smollm2")]
    assert encoded(("x-function", "größe\n")) == [(b"x-function", b"gr%C3%B6%C3%9Fe%0A")]
