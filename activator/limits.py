"""Limits: how much an activator takes from its clients. A function's own limits are in its spec."""

from dataclasses import dataclass

from glowplug.contracts import MAX_BODY_BYTES


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Settings of one activator."""

    max_body_bytes: int = MAX_BODY_BYTES
    """Of one request."""

    body_timeout_s: float = 60.0
    """For the whole body to come in."""

    max_replicas: int = 1000
    """Of one function, that may be asked for; what there is to run them on, the server knows."""

    max_held_bytes: int = 1024 * 2**20
    """Bodies in memory at once, over all functions: being read, queued or running."""
