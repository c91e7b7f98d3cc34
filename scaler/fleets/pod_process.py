"""PodProcess: one pod's supervisor as a child process, with its control stream.

On the event loop; used by LocalFleet. The supervisor gets one end of a socket pair as
`--control-fd N`, leads a session of its own (so a Ctrl-C in the terminal does not end it before
its requests are drained), and what it prints goes into a bounded log file.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from pathlib import Path

from glowplug.pod_wire import MAX_LINE_BYTES, Message, decode, encode
from scaler.fleets.output_log import OutputLog

_log = logging.getLogger(__name__)


class PodProcess:
    """A running supervisor. `end` must be called, also after it died: it reaps."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        output: OutputLog,
    ) -> None:
        self.pid = process.pid
        self._process = process
        self._reader = reader
        self._writer = writer
        self._output = output
        self._exited = asyncio.create_task(self._close_on_exit())

    @classmethod
    async def spawn(cls, command: Sequence[str], *, log_path: Path) -> "PodProcess":
        """Start the supervisor.

        Raises:
            OSError: the command or the log file cannot be opened.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            # The reader refuses longer lines: the pod must not make this process grow.
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=MAX_LINE_BYTES)
            try:
                output = OutputLog(log_path)
                try:
                    process = await _start(command, output=output, control_fd=theirs.fileno())
                except BaseException:
                    output.discard()
                    raise
            except BaseException:
                writer.close()
                raise
        await output.open()
        return cls(process, reader, writer, output)

    async def messages(self) -> AsyncGenerator[Message]:
        """What the pod says, until its stream or its process ends."""
        while True:
            try:
                line = await self._reader.readline()
            except (ValueError, ConnectionError) as error:
                _log.error("the pod's stream broke: %s", error)
                return
            if not line.endswith(b"\n"):
                return
            try:
                message = decode(line)
            except ValueError as error:
                _log.error("passed over: %s", error)
                continue
            yield message

    async def send(self, message: Message) -> None:
        """Raises ConnectionError when the pod is gone."""
        if self._writer.is_closing():
            raise ConnectionResetError("the pod's stream is closed")
        self._writer.write(encode(message))
        await self._writer.drain()

    async def end(self, *, within_s: float) -> str:
        """End the pod and say how its supervisor ended, e.g. "killed by signal 9".

        Closing the stream tells the supervisor to end all it started; what is left of its process
        group after `within_s` is killed.
        """
        self._writer.close()
        try:
            async with asyncio.timeout(within_s):
                await asyncio.shield(self._exited)
        except TimeoutError:
            _log.warning("the pod did not end within %g s and is killed", within_s)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        code = await self._exited
        await self._output.close()
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    async def _close_on_exit(self) -> int:
        """A child of the supervisor may hold the stream open after its death: end it here."""
        code = await self._process.wait()
        self._writer.transport.abort()
        return code


async def _start(
    command: Sequence[str], *, output: OutputLog, control_fd: int
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command,
        "--control-fd",
        str(control_fd),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output.write_end,
        stderr=output.write_end,
        pass_fds=(control_fd,),
        start_new_session=True,
    )
