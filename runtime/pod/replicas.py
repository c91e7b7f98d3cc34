"""Replicas: each one's life, from the assignment to the end of its process.

On the supervisor's event loop; one task a replica, whose `_life` reads top to bottom. Every change
of a replica is published, the last one being GONE with the reason.
"""

import asyncio
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from glowplug.contracts import Assignment, Replica, ReplicaState, StartKind
from runtime.pod.child import Child, StartFailed
from runtime.pod.child_wire import (
    Alive,
    Drain,
    Failed,
    Measured,
    Message,
    Serving,
    Sleep,
    Slept,
    Take,
)
from runtime.pod.output import log
from runtime.pod.standbys import Standbys

_BACKLOG = 1024  # connections that wait in the kernel while the replica starts
_END_LIMIT_S = 5.0  # from a failure told, or the end of its socket, to the end of a process
_DRAIN_GRACE_S = 4.0  # a replica ends itself soon after its drain limit; now it is told to
_TERM_GRACE_S = 2.0  # from SIGTERM to SIGKILL
_LAST_WORDS_S = 1.0  # to read what an ended process has said
_TRIES = 3  # a standby can die just when it is handed out
_RELEASED = "released"


class _Released(Exception):
    """The replica was released before it was ready."""


def _release() -> asyncio.Future[float]:
    return asyncio.get_running_loop().create_future()


@dataclass(eq=False, kw_only=True)
class _Live:
    """A replica that is not gone, with what has to be given back when it is."""

    replica: Replica
    assignment: Assignment
    listener: socket.socket
    standby: asyncio.Future[Child]
    starting: ExitStack  # holds the refill of standbys back until the replica is ready
    child: Child | None = None
    release: asyncio.Future[float] = field(default_factory=_release)  # to drain_s


class Replicas:
    """All replicas of the pod.

    `publish` gets a replica's whole state after each change, `measured` its id and its metrics
    after those, `proven` each snapshot that could be served.
    """

    def __init__(
        self,
        standbys: Standbys,
        *,
        host: str,
        publish: Callable[[Replica], None],
        measured: Callable[[str, str], None],
        proven: Callable[[str], None],
    ) -> None:
        self._standbys = standbys
        self._host = host
        self._publish = publish
        self._measured = measured
        self._proven = proven
        self._live: dict[str, _Live] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    def assign(self, assignment: Assignment) -> None:
        """Start a replica; it is published as STARTING, with its URL, before this returns."""
        assigned_s = time.monotonic()
        if assignment.replica in self._live:
            log.error("%s: assigned twice, the second one is ignored", assignment.replica)
            return
        replica = Replica(
            id=assignment.replica,
            function=assignment.function,
            revision=assignment.revision,
            state=ReplicaState.STARTING,
            url="",
            capacity=assignment.max_seqs,
            start_kind=StartKind.CACHE,
            assigned_s=assigned_s,
        )
        try:
            if self._closed:
                raise StartFailed("the pod is ending")
            listener = _listen(self._host)
        except (OSError, StartFailed) as error:
            self._publish(replace(replica, state=ReplicaState.GONE, reason=str(error)))
            return
        starting = ExitStack()
        starting.enter_context(self._standbys.starting())
        standby = self._standbys.take()
        kind = StartKind.SNAPSHOT if standby.done() else StartKind.CACHE
        replica = replace(replica, url=_url(listener), start_kind=kind)
        live = _Live(
            replica=replica,
            assignment=assignment,
            listener=listener,
            standby=standby,
            starting=starting,
        )
        self._live[replica.id] = live
        self._publish(live.replica)
        task = asyncio.get_running_loop().create_task(self._run(live))
        self._tasks[replica.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(replica.id, None))

    def sleep(self, replica: str) -> None:
        """Have a replica give its KV memory back; it decides itself whether it is idle."""
        live = self._live.get(replica)
        if live is not None and live.child is not None:
            with suppress(OSError):  # it is ending already
                live.child.send(Sleep())

    def release(self, replica: str, *, drain_s: float) -> None:
        """Drain and end a replica; one that still starts is ended at once."""
        live = self._live.get(replica)
        if live is not None and not live.release.done():
            live.release.set_result(drain_s)

    async def end(self, *, drain_s: float) -> None:
        """Take no more assignments and release all; returns when all are gone."""
        self._closed = True
        for replica in list(self._live):
            self.release(replica, drain_s=drain_s)
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    def _change(self, live: _Live, replica: Replica) -> None:
        live.replica = replica
        self._publish(replica)

    async def _run(self, live: _Live) -> None:
        try:
            reason = await self._life(live)
        except _Released:
            reason = _RELEASED
        except StartFailed as error:
            reason = str(error)
        except Exception as error:  # a bug of ours must not lose the replica's end
            log.exception("%s", live.replica.id)
            reason = f"internal error: {type(error).__name__}: {error}"
        finally:
            live.starting.close()
            live.standby.cancel()
            live.listener.close()
            if live.child is not None:
                live.child.kill()
            del self._live[live.replica.id]
        log.info("%s: gone: %s", live.replica.id, reason)
        self._change(live, replace(live.replica, state=ReplicaState.GONE, reason=reason))

    async def _life(self, live: _Live) -> str:
        """Returns why the replica ended."""
        child = await self._hand_over(live)
        started = await self._answer(child, live)
        if not isinstance(started, Serving):
            if isinstance(started, Failed) and started.snapshot_lost:
                live.replica = replace(live.replica, snapshot_lost=True)
            return await _failed(child, started)
        now_s = time.monotonic()
        ready = replace(
            live.replica,
            state=ReplicaState.READY,
            ready_s=now_s,
            max_context=started.max_context,
            stages_ms={
                **live.replica.stages_ms,
                **started.stages_ms,
                "report": (now_s - started.sent_s) * 1e3,
            },
        )
        log.info("%s: ready in %.1f ms", ready.id, (now_s - ready.assigned_s) * 1e3)
        self._change(live, ready)
        self._proven(live.assignment.snapshot)
        live.starting.close()

        try:
            while isinstance(message := await self._answer(child, live), Slept):
                self._change(live, replace(live.replica, asleep=message.asleep))
            return await _failed(child, message)
        except _Released:
            pass
        self._change(live, replace(live.replica, state=ReplicaState.DRAINING))
        return await self._drain(child, live)

    async def _hand_over(self, live: _Live) -> Child:
        """Give the assignment and the listening socket to a standby."""
        for _ in range(_TRIES):
            await _first(live.standby, live.release)
            if live.release.done():
                if live.standby.done() and not live.standby.exception():
                    await _kill(live.standby.result())
                raise _Released
            child = live.standby.result()
            take = Take(assignment=live.assignment, sent_s=time.monotonic())
            try:
                child.send(take, (live.listener.fileno(),))
            except OSError:
                await _kill(child)
                live.standby = self._standbys.take()
                continue
            # Closed here: when the child ends, the kernel refuses those who wait, at once.
            live.listener.close()
            live.child = child
            child.output.name = live.replica.id
            stages_ms = {"standby": (take.sent_s - live.replica.assigned_s) * 1e3}
            self._change(live, replace(live.replica, pid=child.pid, stages_ms=stages_ms))
            return child
        raise StartFailed(f"{_TRIES} standbys in turn died when they were given the snapshot")

    async def _answer(self, child: Child, live: _Live) -> Message | None:
        """The child's next message; None at its end. Raises _Released: `release` came first."""
        while True:
            answer = asyncio.ensure_future(child.receive())
            await _first(answer, live.release)
            if not answer.done():
                break
            message = answer.result()
            if isinstance(message, Measured):
                self._measured(live.replica.id, message.text)
            elif not isinstance(message, Alive):  # asked as a standby, and taken before it answered
                return message
        answer.cancel()
        if live.replica.state is ReplicaState.STARTING:
            await _kill(child)  # nobody was answered yet: there is nothing to drain
        raise _Released

    async def _drain(self, child: Child, live: _Live) -> str:
        """Let it finish within its limit; returns how it ended."""
        drain_s = live.release.result()
        hearing = asyncio.ensure_future(self._hear(child, live.replica.id))
        try:
            child.send(Drain(drain_s=drain_s))
            await asyncio.wait({child.exited}, timeout=drain_s + _DRAIN_GRACE_S)
        except OSError:
            pass  # it is ending already
        if child.exited.done():
            await asyncio.wait({hearing}, timeout=_LAST_WORDS_S)
        hearing.cancel()
        child.kill(signal.SIGTERM)
        how = await child.ended(within_s=_TERM_GRACE_S)
        return _RELEASED if how == "exit code 0" else f"{_RELEASED}; {how}"

    async def _hear(self, child: Child, replica: str) -> None:
        """Take what a replica still measures, until it ends."""
        while message := await child.receive():
            if isinstance(message, Measured):
                self._measured(replica, message.text)


async def _first(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def _failed(child: Child, message: Message | None) -> str:
    """The reason for the user, when a child ended (None) or said why it must."""
    if not isinstance(message, Failed | None):
        child.kill()
    how = await child.ended(within_s=_END_LIMIT_S)
    return message.message if isinstance(message, Failed) else how


async def _kill(child: Child) -> None:
    child.kill()
    await child.ended(within_s=_END_LIMIT_S)


def _listen(host: str) -> socket.socket:
    """A listening TCP socket on a free port."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.bind((host, 0))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
