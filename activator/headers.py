"""Which headers pass through the activator, and which it sets itself."""

from collections.abc import Iterable
from urllib.parse import quote

from activator.ticket import Target, Ticket
from activator.timing import Laps
from glowplug.contracts import PRIORITY_HEADER, TENANT_HEADER, Priority, StartKind
from glowplug.stages import from_server_timing, to_server_timing

RawHeaders = list[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
# To the replica: what is between the client and us, what aiohttp sets, and what would let the
# replica compress the answer (an error could not be put into a compressed stream any more).
NOT_SENT_ON = HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"expect",
    b"authorization",
    b"cookie",
    b"accept-encoding",
    b"x-request-id",
    PRIORITY_HEADER.encode(),
    TENANT_HEADER.encode(),
}
# To the client: what uvicorn or the activator sets.
NOT_SENT_BACK = HOP_BY_HOP | {
    b"date",
    b"server",
    b"server-timing",
    b"x-accel-buffering",
    b"x-cold-start",
    b"x-function",
    b"x-queue-ms",
    b"x-request-id",
    b"x-revision",
    b"x-start-kind",
    b"x-start-ms",
}


def to_replica(
    headers: Iterable[tuple[bytes, bytes]], *, request_id: str, tenant: str, priority: Priority
) -> list[tuple[str, str]]:
    """The client's headers as the replica gets them."""
    return [
        *(
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in _passing(headers, NOT_SENT_ON)
        ),
        ("accept-encoding", "identity"),
        ("x-request-id", request_id),
        (TENANT_HEADER, quote(tenant)),
        (PRIORITY_HEADER, priority.name.lower()),
    ]


def to_client(headers: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
    """The replica's headers as the client gets them, without those the activator sets."""
    return _passing(headers, NOT_SENT_BACK)


def of_start(ticket: Ticket, target: Target, *, laps: Laps) -> RawHeaders:
    """How the request came to its replica."""
    cold = waited_for_start(ticket.entered_s, target)
    return encoded(
        ("x-function", target.replica.function),
        ("x-revision", target.replica.revision),
        ("x-cold-start", "true" if cold else "false"),
        ("x-start-kind", start_kind(ticket, target).value),
        ("x-start-ms", f"{laps.sum_ms('decision', 'assign', 'start'):.1f}"),
        ("x-queue-ms", f"{laps.sum_ms('queue'):.1f}"),
    )


def start_kind(ticket: Ticket, target: Target) -> StartKind:
    """How the request found its replica."""
    if waited_for_start(ticket.entered_s, target):
        return target.replica.start_kind
    return StartKind.SLEEPING if ticket.found_asleep else StartKind.WARM


def waited_for_start(entered_s: float, target: Target) -> bool:
    """Whether the replica became ready only after the request had come."""
    return target.ready_s is None or target.ready_s > entered_s


def server_timing(laps: Laps, target: Target, *, cold: bool, theirs: str) -> str:
    """All stages up to the response headers, for the `Server-Timing` header and the log."""
    laps.split_upstream(from_server_timing(theirs))
    stages = dict(laps.stages)
    if cold:
        stages |= {f"start-{name}": ms for name, ms in target.replica.stages_ms.items()}
    return to_server_timing(stages)


def encoded(*headers: tuple[str, str]) -> RawHeaders:
    """Headers as ASGI wants them; a value that is not plain ASCII is percent-encoded."""
    return [
        (name.encode(), value.encode() if value.isascii() else quote(value).encode())
        for name, value in headers
    ]


def _passing(headers: Iterable[tuple[bytes, bytes]], dropped: frozenset[bytes]) -> RawHeaders:
    lowered = [(name.lower(), value) for name, value in headers]
    named = {
        token.strip().lower()
        for name, value in lowered
        if name == b"connection"
        for token in value.split(b",")
    }
    return [(name, value) for name, value in lowered if name not in dropped and name not in named]
