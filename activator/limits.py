"""Limits: how much an activator takes from its clients. A function's own limits are in its spec."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Settings of one activator."""

    max_body_bytes: int = 32 * 2**20
    """Of one request; a prompt of a million tokens is about 5 MiB, an image some MiB more."""

    body_timeout_s: float = 60.0
    """For the whole body to come in."""

    max_held_bytes: int = 1024 * 2**20
    """Bodies in memory at once, over all functions: being read, queued or running."""
