"""How the processes inside a pod talk: one JSON object a packet over SOCK_SEQPACKET socket pairs.

    supervisor ⇄ fork server   Imported, Fork, Expect
    supervisor ⇄ child         Forked, StandbyReady, Check, Alive, Expect, Take, Serving, Measured,
                               Sleep, Slept, Drain, Failed

A child writes to the supervisor directly from its first moment; the fork server is not between
them. Descriptors travel beside the packet that names them (SCM_RIGHTS). The end of a child's socket
means that the supervisor is gone: the child ends at once. All times are `time.monotonic()`, which
is the same clock in every process of a machine.
"""

import hashlib
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, get_args

from glowplug import wire
from glowplug.contracts import Assignment

MAX_PACKET_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Imported:
    """Fork server → supervisor: everything is imported, forks can be asked for. `vocabulary` is its
    VOCABULARY, `accelerator` what this machine offers (runtime/pod/accelerator.py)."""

    imports_ms: float
    vocabulary: str
    accelerator: str


@dataclass(frozen=True, kw_only=True)
class Fork:
    """Supervisor → fork server, with the child's control socket and its output pipe. `hurry`:
    somebody waits for the child, so it does not warm up first."""

    hurry: bool = False


@dataclass(frozen=True, kw_only=True)
class Forked:
    """Child → supervisor: it exists, with the supervisor as its parent."""

    pid: int
    fork_ms: float


@dataclass(frozen=True, kw_only=True)
class StandbyReady:
    """Child → supervisor: it is warm and waits for a snapshot."""

    warm_ms: float


@dataclass(frozen=True, kw_only=True)
class Check:
    """Supervisor → standby: do you still answer?"""


@dataclass(frozen=True, kw_only=True)
class Alive:
    """Standby → supervisor, for each Check; where it is taken meanwhile, before anything else that
    the replica says."""


@dataclass(frozen=True, kw_only=True)
class Expect:
    """Supervisor → fork server or standby: this snapshot is likely to be assigned."""

    snapshot: str


@dataclass(frozen=True, kw_only=True)
class Take:
    """Supervisor → standby, with the listening socket: become this replica."""

    assignment: Assignment
    sent_s: float


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Replica → supervisor: it answers requests. `stages_ms`: where its start's time went."""

    stages_ms: dict[str, float] = field(default_factory=dict)
    max_context: int | None = None
    sent_s: float


@dataclass(frozen=True, kw_only=True)
class Sleep:
    """Supervisor → replica: give the KV memory back, if you are idle."""


@dataclass(frozen=True, kw_only=True)
class Slept:
    """Replica → supervisor: it fell asleep, or woke up."""

    asleep: bool


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Replica → supervisor: its metrics in Prometheus' text format, all of them each time; sent
    after changes, and a last time before a drained replica ends."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Drain:
    """Supervisor → replica: no new requests; finish within `drain_s`, then end."""

    drain_s: float


@dataclass(frozen=True, kw_only=True)
class Failed:
    """Child (or the fork server in its place) → supervisor, before it ends: why, for the user."""

    message: str
    snapshot_lost: bool = False  # the snapshot is not on this node, or damaged


Message = (
    Imported
    | Fork
    | Forked
    | StandbyReady
    | Check
    | Alive
    | Expect
    | Take
    | Serving
    | Measured
    | Sleep
    | Slept
    | Drain
    | Failed
)


def _vocabulary() -> str:
    kinds = (*get_args(Message), Assignment)
    words = sorted((kind.__name__, *(each.name for each in fields(kind))) for kind in kinds)
    return hashlib.sha256(repr(words).encode()).hexdigest()[:16]


# The same in processes that understand each other: code is replaced while a supervisor runs.
VOCABULARY = _vocabulary()


def _take(*, assignment: dict[str, Any], sent_s: float) -> Take:
    return Take(assignment=Assignment(**assignment), sent_s=sent_s)


_MAKERS: dict[str, Callable[..., Message]] = {
    **{kind.__name__: kind for kind in get_args(Message)},
    Take.__name__: _take,
}


def encode(message: Message) -> bytes:
    """One packet."""
    return wire.encode(message)


def decode(packet: bytes) -> Message:
    """The message of one packet.

    Raises:
        ValueError: not a message of this protocol.
    """
    message: Message = wire.decode(packet, _MAKERS, what="a pod packet")
    return message


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends: packets keep their borders and the descriptors sent with them."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: Message, descriptors: tuple[int, ...] = ()) -> None:
    """Send one packet; raises OSError when the other end is gone."""
    socket.send_fds(sock, [encode(message)], list(descriptors))


def receive(sock: socket.socket, *, descriptors: int = 0) -> tuple[Message, list[int]] | None:
    """Block for one packet and at most `descriptors` descriptors; None at the end of the stream."""
    packet, received, _, _ = socket.recv_fds(sock, MAX_PACKET_BYTES, descriptors)
    return (decode(packet), received) if packet else None
