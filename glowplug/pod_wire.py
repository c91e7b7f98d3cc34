"""How a fleet talks to a pod's supervisor: one JSON object a line over a stream socket.

Fleet → pod: `Assign`, `Sleep`, `Release`, `Prefetch`, `SetStandbys`, `Renew`, `Ping`. Pod → fleet:
`Hello` once, then a `ReplicaChanged` for every change of a replica (its whole state each time), a
`ReplicaMeasured` with its metrics now and then, a `StandbysChanged` when the number of ready
standbys changes (once with 0, as soon as the accelerator is known), and a `Pong` for each `Ping`.
The pod ends, with all it started, when the stream ends.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from glowplug import wire
from glowplug.contracts import Assignment, Replica, ReplicaState, StartKind

MAX_LINE_BYTES = 1 << 20
MAX_STANDBYS = 64


@dataclass(frozen=True, kw_only=True)
class Assign:
    """Turn a standby into this replica. Answered by ReplicaChanged events with its id."""

    assignment: Assignment


@dataclass(frozen=True, kw_only=True)
class Sleep:
    """Have the replica give its KV memory back, if it is idle."""

    replica: str


@dataclass(frozen=True, kw_only=True)
class Release:
    """Drain the replica for at most `drain_s`, then end it."""

    replica: str
    drain_s: float


@dataclass(frozen=True, kw_only=True)
class Prefetch:
    """Read a snapshot ahead."""

    snapshot: str


@dataclass(frozen=True, kw_only=True)
class SetStandbys:
    """Keep this many standbys ready from now on; MAX_STANDBYS at most."""

    keep: int


@dataclass(frozen=True, kw_only=True)
class Renew:
    """Replace the fork server and all standbys by ones of the installed code and with these
    settings (None: as before). Replicas go on as they are."""

    threads: int | None = None
    verify: str | None = None


@dataclass(frozen=True, kw_only=True)
class Ping:
    """Do you still turn?"""


@dataclass(frozen=True, kw_only=True)
class Pong:
    """Yes."""


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The pod is up."""

    pid: int


@dataclass(frozen=True, kw_only=True)
class ReplicaChanged:
    """A replica's whole state after a change."""

    replica: Replica


@dataclass(frozen=True, kw_only=True)
class ReplicaMeasured:
    """A replica's metrics in Prometheus' text format; none come after its end."""

    replica: str
    text: str


@dataclass(frozen=True, kw_only=True)
class StandbysChanged:
    """How many standbys are ready to be assigned, and of which class of accelerator."""

    ready: int
    accelerator: str


Message = (
    Assign
    | Sleep
    | Release
    | Prefetch
    | SetStandbys
    | Renew
    | Ping
    | Pong
    | Hello
    | ReplicaChanged
    | ReplicaMeasured
    | StandbysChanged
)


def _assign(*, assignment: dict[str, Any]) -> Assign:
    return Assign(assignment=Assignment(**assignment))


def _replica_changed(*, replica: dict[str, Any]) -> ReplicaChanged:
    state, kind = ReplicaState(replica["state"]), StartKind(replica["start_kind"])
    return ReplicaChanged(replica=Replica(**{**replica, "state": state, "start_kind": kind}))


_MAKERS: dict[str, Callable[..., Message]] = {
    **{kind.__name__: kind for kind in get_args(Message)},
    Assign.__name__: _assign,
    ReplicaChanged.__name__: _replica_changed,
}


def encode(message: Message) -> bytes:
    """One line, newline included."""
    return wire.encode(message) + b"\n"


def decode(line: bytes) -> Message:
    """The message of one line.

    Raises:
        ValueError: not a message of this protocol.
    """
    message: Message = wire.decode(line, _MAKERS, what="a pod message")
    return message
