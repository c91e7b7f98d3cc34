"""How a fleet talks to a pod's supervisor: one JSON object a line over a stream socket.

Fleet → pod: `Assign`, `Sleep`, `Release`, `Prefetch`. Pod → fleet: `Hello` once, then a
`ReplicaChanged` for every change of a replica (its whole state each time), a `ReplicaMeasured` with
its metrics now and then, and a `StandbysChanged` when the number of ready standbys changes. The pod
ends, with all it started, when the stream ends.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, get_args

from glowplug.contracts import Assignment, Replica, ReplicaState, StartKind

MAX_LINE_BYTES = 1 << 20


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
    """How many standbys are ready to be assigned."""

    ready: int


Message = (
    Assign | Sleep | Release | Prefetch | Hello | ReplicaChanged | ReplicaMeasured | StandbysChanged
)
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> bytes:
    """One line, newline included."""
    return json.dumps({"kind": type(message).__name__, **asdict(message)}).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message of one line.

    Raises:
        ValueError: not a message of this protocol.
    """
    try:
        fields = json.loads(line)
        kind = _KINDS[fields.pop("kind")]
        if "assignment" in fields:
            fields["assignment"] = Assignment(**fields["assignment"])
        if kind is ReplicaChanged:
            replica = fields["replica"]
            replica["state"] = ReplicaState(replica["state"])
            replica["start_kind"] = StartKind(replica["start_kind"])
            fields["replica"] = Replica(**replica)
        message: Message = kind(**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a pod message: {line[:200]!r} ({error})") from None
    return message
