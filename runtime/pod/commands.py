"""What the fleet tells a pod to do, carried out by its parts until the stream ends.

On the supervisor's event loop. What makes no sense is logged and passed over: the stream's other
end is ours, but may be of another version.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from glowplug.pod_wire import (
    MAX_STANDBYS,
    Assign,
    Message,
    Ping,
    Pong,
    Prefetch,
    Release,
    Renew,
    SetStandbys,
    Sleep,
    decode,
)
from runtime.pod.forks import Forks
from runtime.pod.output import log
from runtime.pod.prefetch import ReadAhead
from runtime.pod.replicas import Replicas
from runtime.pod.standbys import Standbys
from snapshot.verification import Verification

_ROOM_BYTES = 512 * 2**20  # that must be free for one standby more than are kept


@dataclass(frozen=True, kw_only=True)
class Commands:
    """The parts of a pod, as commands reach them."""

    replicas: Replicas
    standbys: Standbys
    forks: Forks
    read_ahead: ReadAhead
    send: Callable[[Message], None]

    async def obey(self, reader: asyncio.StreamReader) -> None:
        """Carry out what comes until the stream ends."""
        while line := await _next_line(reader):
            try:
                self._carry_out(decode(line))
            except ValueError as error:
                log.error("ignored: %s", error)

    def _carry_out(self, command: Message) -> None:
        """Raises ValueError for what cannot be done."""
        match command:
            case Assign():
                self.replicas.assign(command.assignment)
            case Sleep():
                self.replicas.sleep(command.replica)
            case Release():
                self.replicas.release(command.replica, drain_s=command.drain_s)
            case Prefetch():
                self.read_ahead.ask(command.snapshot)
                self.forks.expect(command.snapshot)
                self.standbys.expect(command.snapshot)
            case SetStandbys():
                if not 0 <= command.keep <= MAX_STANDBYS:
                    raise ValueError(f"{command.keep} standbys: 0 to {MAX_STANDBYS} are kept")
                log.info("%d standbys are kept from now on", command.keep)
                self.standbys.set_keep(command.keep)
            case Renew():
                self._renew(command)
            case Ping():
                self.send(Pong())
            case _:
                raise ValueError(f"{type(command).__name__} is not for a pod")

    def _renew(self, command: Renew) -> None:
        threads, verify = command.threads, command.verify
        if threads is not None and not 1 <= threads <= cores():
            raise ValueError(f"threads {threads}: this machine has {cores()} cores")
        if verify not in (None, *get_args(Verification)):
            raise ValueError(f"verify {verify!r}: write always, sampled or never")
        if threads is not None:
            self.standbys.at_once = at_once(threads)
        self.forks.renew(threads=threads, verify=verify)


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


def at_once(threads: int) -> int:
    """How many standbys may warm up together: each uses all of a replica's threads."""
    return max(1, cores() // threads)


def has_room() -> bool:
    """Whether there is memory for one more standby than are kept."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024 >= _ROOM_BYTES
    return True


async def _next_line(reader: asyncio.StreamReader) -> bytes:
    """Empty at the end of the stream, which a line over the limit is too."""
    try:
        return await reader.readline()
    except (OSError, ValueError) as error:
        log.error("control stream: %s", error)
        return b""
