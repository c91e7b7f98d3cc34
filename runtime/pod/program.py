"""What the pod needs of the program that its children run.

The pod's processes know nothing of models; `runtime.pod.replica:ModelProgram` is the program that
serves them. The fork server makes one and its children inherit it, with whatever it holds.
"""

import asyncio
import importlib
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from glowplug.contracts import Assignment
from glowplug.stages import Stopwatch
from snapshot.verification import Verification


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What all children of a pod share."""

    cache: Path  # the node cache
    threads: int  # for a replica's computations
    verify: Verification = "never"  # how much of a snapshot is checked before it is served
    visible_gpus: str | None = None  # CUDA_VISIBLE_DEVICES


class Ready(Protocol):
    """Says that requests are answered, of up to `max_context` tokens each."""

    def __call__(self, *, max_context: int | None = None) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Start:
    """All that a standby is given to become a replica."""

    assignment: Assignment
    listener: socket.socket  # listening already; connections may be waiting
    stopwatch: Stopwatch  # has the stages so far
    ready: Ready  # to call once, when requests are answered
    sleep: asyncio.Event  # set whenever the replica is to sleep, if it is idle; clear it then
    slept: Callable[[bool], None]  # to call, on the loop, when it has fallen asleep or woken up
    measured: Callable[[str], None]  # takes its metrics as Prometheus' text, after changes
    drain: asyncio.Future[float]  # resolves to drain_s: take no new request, finish, return


class Program(Protocol):
    """Made in the fork server with the pod's settings, without starting a thread."""

    accelerator: str  # the class of what replicas can use here: `cpu`, or of which GPU

    def expect(self, snapshot: str) -> None:
        """In the fork server, or in a standby: this snapshot (a digest) is likely to be assigned;
        keep what makes its start shorter. Starts no thread. A failure only costs time later."""
        ...

    def warm(self, *, hurry: bool) -> None:
        """In a new standby: own random state, threads, and all warming that needs no model; in a
        `hurry` only what cannot be left out, as a request waits."""
        ...

    async def serve(self, start: Start) -> None:
        """Be the replica; return when drained.

        Raises:
            GlowplugError: the start failed; its message goes to the user.
        """
        ...


def load_program(name: str, settings: Settings) -> Program:
    """Import `module:class` and make it."""
    module, _, attribute = name.partition(":")
    make: Callable[[Settings], Program] = getattr(importlib.import_module(module), attribute)
    return make(settings)
