"""Forks: keeps a fork server running and gets new processes from it.

On the supervisor's event loop. A fork server that dies is replaced; processes it made live on.
"""

import asyncio
import os
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path

from runtime.pod import child_wire
from runtime.pod.child import Child, StartFailed, receive
from runtime.pod.child_wire import Expect, Failed, Fork, Forked, Imported
from runtime.pod.output import Output, log
from runtime.pod.process import Reaper

_IMPORT_LIMIT_S = 120.0
_FORK_LIMIT_S = 10.0
_END_LIMIT_S = 2.0
_BACKOFF_S = 0.2
_MAX_BACKOFF_S = 10.0
_MAX_EXPECTED = 4
_CONTROL_FD = 3

# Libraries that would start threads when imported, which a process that forks must not have.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class Forks:
    """Where new processes come from."""

    def __init__(
        self, reaper: Reaper, *, program: str, cache: Path, threads: int, verify: str = "never"
    ) -> None:
        self._reaper = reaper
        self._arguments = [
            *("-m", "runtime.pod.fork_server"),
            *("--control-fd", str(_CONTROL_FD)),
            *("--supervisor", str(os.getpid())),
            *("--program", program),
            *("--cache", str(cache)),
            *("--threads", str(threads)),
            *("--verify", verify),
        ]
        self._forked = 0
        self._expected: deque[str] = deque(maxlen=_MAX_EXPECTED)
        # Resolves when the running server can fork, fails when it ends before that.
        self._server: asyncio.Future[Child] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Keep a fork server running until cancelled."""
        failures = 0
        while True:
            try:
                server = self._spawn()
            except OSError as error:
                how = error.strerror
            else:
                if await self._imported(server):
                    failures = 0
                    self._server.set_result(server)
                    await server.receive()  # it says nothing more: this is its end
                how = await server.ended(within_s=_END_LIMIT_S)
            log.error("fork server: %s", how)
            if not self._server.done():
                self._server.set_exception(StartFailed(f"fork server: {how}"))
                self._server.exception()  # whoever waits gets it; nobody has to
            self._server = asyncio.get_running_loop().create_future()
            await asyncio.sleep(min(_BACKOFF_S * 2**failures, _MAX_BACKOFF_S))
            failures += 1

    def expect(self, snapshot: str) -> None:
        """Processes forked from now on are to know that this snapshot is likely to be assigned.

        The fork server hears of it just before the next fork: it may take it a while.
        """
        if snapshot not in self._expected:
            self._expected.append(snapshot)

    async def fork(self) -> Child:
        """A new process, which warms up by itself; waits for the fork server if need be.

        Raises:
            StartFailed: there is no fork server, or it could not fork.
        """
        server = await asyncio.shield(self._server)
        self._forked += 1
        output = Output(f"standby {self._forked}")
        control, theirs = child_wire.pair()
        control.setblocking(False)
        try:
            for snapshot in self._expected:
                server.send(Expect(snapshot=snapshot))
            self._expected.clear()
            server.send(Fork(), (theirs.fileno(), output.write_end))
            theirs.close()
            output.close_write_end()
            async with asyncio.timeout(_FORK_LIMIT_S):
                answer = await receive(control)
        except TimeoutError:
            server.kill()
            answer = Failed(message=f"the fork server did not answer in {_FORK_LIMIT_S:.0f} s")
        except OSError as error:
            answer = Failed(message=f"fork server: {error.strerror}")
        finally:
            theirs.close()
            output.close_write_end()
        if isinstance(answer, Forked):
            log.info("%s: forked in %.1f ms, pid %d", output.name, answer.fork_ms, answer.pid)
            exited = self._reaper.exit_of(answer.pid)
            return Child(pid=answer.pid, exited=exited, control=control, output=output)
        control.close()  # a child that comes late sees this and ends
        last_line = output.finish()
        raise StartFailed(
            answer.message
            if isinstance(answer, Failed)
            else f"the new process ended at once: {last_line or 'it said nothing'}"
        )

    async def _imported(self, server: Child) -> bool:
        message = None
        with suppress(TimeoutError):
            async with asyncio.timeout(_IMPORT_LIMIT_S):
                message = await server.receive()
        if not isinstance(message, Imported):
            return False
        log.info("fork server: pid %d, imports took %.0f ms", server.pid, message.imports_ms)
        return True

    def _spawn(self) -> Child:
        output = Output("fork server")
        control, theirs = child_wire.pair()
        control.setblocking(False)
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, *self._arguments],
            {**os.environ, **_ENVIRONMENT},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, output.write_end, 1),
                (os.POSIX_SPAWN_DUP2, output.write_end, 2),
                (os.POSIX_SPAWN_DUP2, theirs.fileno(), _CONTROL_FD),
            ],
        )
        theirs.close()
        output.close_write_end()
        exited = self._reaper.exit_of(pid)
        return Child(pid=pid, exited=exited, control=control, output=output)
