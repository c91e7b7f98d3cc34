"""Forks: keeps a fork server running and gets new processes from it.

On the supervisor's event loop. A fork server that dies is replaced, and so is one whose code or
settings are outdated; processes it made live on.
"""

import asyncio
import os
import sys
from collections import deque
from collections.abc import Callable
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
_RETRY_S = 5.0  # to replace a server by one of code that cannot be imported
_MAX_RETRY_DOUBLINGS = 7
_MAX_EXPECTED = 4
_TELL_DELAY_S = 2.0  # so that a start's first requests have the machine
_CONTROL_FD = 3

# Libraries that would start threads when imported, which a process that forks must not have.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class Forks:
    """Where new processes come from."""

    def __init__(
        self,
        reaper: Reaper,
        *,
        program: str,
        cache: Path,
        threads: int,
        verify: str = "never",
        looked: Callable[[], None],
        renewed: Callable[[], None],
    ) -> None:
        """`looked` is called when the accelerator is known, `renewed` when processes are made by a
        new server, after `renew`."""
        self.accelerator: str | None = None  # of this machine, once a fork server has looked
        self._reaper = reaper
        self._program = program
        self._cache = cache
        self._threads = threads
        self._verify = verify
        self._looked = looked
        self._renewed = renewed
        self._outdated = asyncio.Event()  # the fork server is
        self._behind = False  # and so are the processes it has made, until `renewed` is called
        self._forked = 0
        self._expected: deque[str] = deque(maxlen=_MAX_EXPECTED)
        self._untold: set[str] = set()  # of those, what the running server has not heard of
        self._telling: asyncio.TimerHandle | None = None
        # Resolves when the running server can fork, fails when it ends before that.
        self._server: asyncio.Future[Child] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Keep a fork server running until cancelled."""
        failures = 0
        while True:
            self._outdated.clear()
            server, how = await self._start()
            if server is not None:
                failures = 0
                self._take_up(server)
                how = await self._until_end(server)
            log.error("fork server: %s", how)
            if not self._server.done():
                self._server.set_exception(StartFailed(f"fork server: {how}"))
                self._server.exception()  # whoever waits gets it; nobody has to
            self._server = asyncio.get_running_loop().create_future()
            await asyncio.sleep(min(_BACKOFF_S * 2**failures, _MAX_BACKOFF_S))
            failures += 1

    def renew(self, *, threads: int | None = None, verify: str | None = None) -> None:
        """Make processes from the code that is installed now and with these settings (None: as
        before). The old fork server goes when a new one is up, and stays where none comes up."""
        self._threads = threads or self._threads
        self._verify = verify or self._verify
        self._behind = True
        self._outdated.set()

    async def _until_end(self, server: Child) -> str:
        """Returns how it ended; on the way it is replaced as often as `renew` asks."""
        loop = asyncio.get_running_loop()
        failures = 0
        end = loop.create_task(server.receive())  # it says nothing more
        while True:
            outdated = loop.create_task(self._outdated.wait())
            await asyncio.wait({end, outdated}, return_when=asyncio.FIRST_COMPLETED)
            outdated.cancel()
            if end.done():
                return await server.ended(within_s=_END_LIMIT_S)
            self._outdated.clear()
            successor, how = await self._start()
            if successor is None:
                wait_s = _RETRY_S * 2 ** min(failures, _MAX_RETRY_DOUBLINGS)
                failures += 1
                log.error("no new fork server, the old one goes on: %s; again in %g s", how, wait_s)
                loop.call_later(wait_s, self._outdated.set)
                continue
            failures = 0
            end.cancel()
            await asyncio.wait({end})
            server.hang_up()  # it still does what it was asked, then it ends
            old, server = server, successor
            self._server = loop.create_future()
            self._take_up(server)
            log.info("fork server: %d is replaced by %d", old.pid, server.pid)
            end = loop.create_task(server.receive())
            await old.ended(within_s=_FORK_LIMIT_S)

    async def _start(self) -> tuple[Child | None, str]:
        """A fork server that can fork, or None and why there is none."""
        try:
            server = self._spawn()
        except OSError as error:
            return None, error.strerror or str(error)
        message = None
        with suppress(TimeoutError):
            async with asyncio.timeout(_IMPORT_LIMIT_S):
                try:
                    message = await server.receive()
                except ValueError as error:  # of a version whose first packet is another
                    log.error("fork server: %s", error)
        if isinstance(message, Imported) and message.vocabulary == child_wire.VOCABULARY:
            log.info("fork server: pid %d, imports took %.0f ms", server.pid, message.imports_ms)
            self.accelerator = message.accelerator
            self._looked()
            return server, ""
        if isinstance(message, Imported):
            server.kill()
            await server.ended(within_s=_END_LIMIT_S)
            return None, "the installed code needs a new supervisor; restart glowplug serve"
        return None, await server.ended(within_s=_END_LIMIT_S)

    def _take_up(self, server: Child) -> None:
        """Fork from this one from now on."""
        self._server.set_result(server)
        self._untold.update(self._expected)
        self._tell_soon()
        if self._behind and not self._outdated.is_set():
            self._behind = False
            self._renewed()

    def expect(self, snapshot: str) -> None:
        """Processes forked from now on are to know that this snapshot is likely to be assigned.

        It may take the fork server a while, in which it cannot fork. So it hears of it in a moment,
        or just before the next fork that nobody waits for.
        """
        if snapshot not in self._expected:
            self._expected.append(snapshot)
            self._untold.add(snapshot)
            self._tell_soon()

    def _tell_soon(self) -> None:
        if self._untold and self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(_TELL_DELAY_S, self._tell)

    def _tell(self) -> None:
        """Have the server know all that is expected, if there is one."""
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        if not self._server.done() or self._server.exception() is not None:
            return  # the next one hears of everything
        told = [snapshot for snapshot in self._expected if snapshot in self._untold]
        self._untold.clear()
        with suppress(OSError):  # its end is noticed elsewhere
            for snapshot in told:
                self._server.result().send(Expect(snapshot=snapshot))

    async def fork(self, *, hurry: Callable[[], bool]) -> Child:
        """A new process, which warms up by itself, unless `hurry()` once it can be forked; waits
        for the fork server if need be.

        Raises:
            StartFailed: there is no fork server, or it could not fork.
        """
        server = await asyncio.shield(self._server)
        self._forked += 1
        output = Output(f"standby {self._forked}")
        control, theirs = child_wire.pair()
        control.setblocking(False)
        try:
            if not (hurried := hurry()):
                self._tell()
            server.send(Fork(hurry=hurried), (theirs.fileno(), output.write_end))
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

    def _spawn(self) -> Child:
        output = Output("fork server")
        control, theirs = child_wire.pair()
        control.setblocking(False)
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, *self._arguments()],
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

    def _arguments(self) -> list[str]:
        return [
            *("-m", "runtime.pod.fork_server"),
            *("--control-fd", str(_CONTROL_FD)),
            *("--supervisor", str(os.getpid())),
            *("--program", self._program),
            *("--cache", str(self._cache)),
            *("--threads", str(self._threads)),
            *("--verify", self._verify),
        ]
