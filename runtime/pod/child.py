"""Child: a process of the pod as the supervisor sees it, from the fork to the reaped exit.

On the supervisor's event loop.
"""

import asyncio
import os
import signal
import socket

from runtime.pod import child_wire
from runtime.pod.output import Output
from runtime.pod.process import describe_exit

_KILL_LIMIT_S = 5.0  # a process in the middle of a disk read dies late


class StartFailed(Exception):
    """A process could not be started; the message says why, in words for the user."""


class Child:
    """One living (or just ended) process with its control socket.

    `exited` resolves to its wait status.
    """

    def __init__(
        self, *, pid: int, exited: asyncio.Future[int], control: socket.socket, output: Output
    ) -> None:
        self.pid = pid
        self.exited = exited
        self.output = output
        self._control = control

    def send(self, message: child_wire.Message, descriptors: tuple[int, ...] = ()) -> None:
        """Raises OSError when the process is gone."""
        child_wire.send(self._control, message, descriptors)

    async def receive(self) -> child_wire.Message | None:
        """The next message; None when the process ended or closed its socket."""
        return await receive(self._control)

    def kill(self, signal_: signal.Signals = signal.SIGKILL) -> None:
        """Signal the process; nothing happens when it is gone."""
        if not self.exited.done():  # not reaped yet, so the pid is still its own
            os.kill(self.pid, signal_)

    async def ended(self, *, within_s: float) -> str:
        """Wait for the end (killed when it takes over `within_s`) and say how it ended:
        `killed by signal 9`, `exit code 1: last line of its output`."""
        await asyncio.wait({self.exited}, timeout=within_s)
        if not self.exited.done():
            self.kill()
            await asyncio.wait({self.exited}, timeout=_KILL_LIMIT_S)
        self.close()
        if not self.exited.done():
            return "cannot be killed"
        status, last_line = self.exited.result(), self.output.last_line
        how = describe_exit(status)
        return f"{how}: {last_line}" if os.WIFEXITED(status) and status and last_line else how

    def hang_up(self) -> None:
        """End its stream: it reads what was sent before, then it ends. Nobody may be receiving."""
        self._control.close()

    def close(self) -> None:
        """Give back the descriptors, after taking what is left of the output."""
        self._control.close()
        self.output.finish()


async def receive(control: socket.socket) -> child_wire.Message | None:
    """The next message of a non-blocking control socket; None at its end."""
    try:
        loop = asyncio.get_running_loop()
        packet = await loop.sock_recv(control, child_wire.MAX_PACKET_BYTES)
    except OSError:
        return None
    return child_wire.decode(packet) if packet else None
