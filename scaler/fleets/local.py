"""LocalFleet: the replicas of this machine, in one pod that it keeps running.

On the event loop. One task keeps the pod's supervisor alive: when it dies, all its replicas are
gone (the pod's processes end with it) and it is started again, after growing waits if it keeps
dying. Assignments made meanwhile wait for the new pod, within their timeout.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from weakref import WeakSet

from glowplug.accelerators import AUTO, refusal
from glowplug.contracts import Assignment, Replica, ReplicaState
from glowplug.errors import Unavailable
from glowplug.pod_wire import (
    MAX_STANDBYS,
    Assign,
    Hello,
    Message,
    Ping,
    Pong,
    Prefetch,
    Release,
    Renew,
    ReplicaChanged,
    ReplicaMeasured,
    SetStandbys,
    Sleep,
    StandbysChanged,
)
from scaler.fleets.heartbeat import Heartbeat
from scaler.fleets.pod_process import PodProcess
from scaler.fleets.series import ReplicaSeries

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 30.0
_STABLE_S = 10.0  # a pod that lived this long is started again with the first wait

_SILENT = "the pod's supervisor hangs: it did not answer"

_log = logging.getLogger(__name__)


class LocalFleet:
    """Implements glowplug.contracts.Fleet.

    `standbys` is how many are ready to be assigned, by class of accelerator: one class, none before
    it is known. `series` has the metrics of the replicas.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log_path: Path,
        assign_timeout_s: float = 10.0,
        hello_timeout_s: float = 30.0,
        end_timeout_s: float = 10.0,
        ping_every_s: float = 5.0,
        ping_limit_s: float = 20.0,
    ) -> None:
        """`command` starts the supervisor; ` --control-fd N` is added. Its output is appended to
        `log_path`. One that says nothing for `ping_limit_s` after it was asked is killed."""
        self.standbys: dict[str, int] = {}
        self.series = ReplicaSeries()
        self._command = list(command)
        self._log_path = log_path
        self._assign_timeout_s = assign_timeout_s
        self._hello_timeout_s = hello_timeout_s
        self._end_timeout_s = end_timeout_s
        self._ping_every_s = ping_every_s
        self._ping_limit_s = ping_limit_s
        self._keep: int | None = None  # standbys; None: as the command says
        self._accelerator_known = asyncio.Event()  # it is in `standbys`
        self._pod: PodProcess | None = None  # once it has said hello
        self._up = asyncio.Event()  # set exactly while there is a pod
        self._trouble = "it is starting"  # why there is none
        self._replicas: dict[str, Replica] = {}
        self._first: dict[str, asyncio.Future[Replica | None]] = {}  # assignments sent
        self._watches: WeakSet[_Watch] = WeakSet()
        self._keeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to keep the pod running; returns at once."""
        self._keeping = asyncio.create_task(self._keep_running(), name="pod")

    async def close(self) -> None:
        """End the pod with all its replicas, and all watches."""
        if self._keeping is not None:
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping
            self._keeping = None
        self._all_gone("the pod was ended")
        for watch in list(self._watches):
            watch.changes.put_nowait(None)

    async def list(self) -> Sequence[Replica]:
        """All replicas that are not gone."""
        return list(self._replicas.values())

    async def assign(self, assignment: Assignment) -> Replica:
        """Give a standby the snapshot; returns the replica while it still starts.

        Raises:
            Unavailable: no pod, no answer in time, or the pod could not do it.
        """
        try:
            async with asyncio.timeout(self._assign_timeout_s):
                while self._pod is None:
                    await self._up.wait()
                if assignment.accelerator != AUTO:
                    await self._check_accelerator(assignment.accelerator)
                first = asyncio.get_running_loop().create_future()
                self._first[assignment.replica] = first
                await self._pod.send(Assign(assignment=assignment))
                replica: Replica | None = await first
        except TimeoutError:
            trouble = "the pod did not answer" if self._pod else f"no pod: {self._trouble}"
            raise Unavailable(f"{trouble} (waited {self._assign_timeout_s:g} s)") from None
        except ConnectionError:
            raise Unavailable("the pod ended while it was asked") from None
        finally:
            self._first.pop(assignment.replica, None)
        if replica is None:
            raise Unavailable(f"the pod ended while it was asked: {self._trouble}")
        if replica.state is ReplicaState.GONE:
            raise Unavailable(replica.reason or "the pod gave no reason")
        return replica

    async def sleep(self, replica: str) -> None:
        """Have an idle replica give its KV memory back; one that is not known is gone."""
        await self._send(Sleep(replica=replica))

    async def release(self, replica: str, *, drain_s: float) -> None:
        """Drain and end it; one that is not known is gone already, or never came to be."""
        await self._send(Release(replica=replica, drain_s=drain_s))

    async def prefetch(self, snapshot: str) -> None:
        """Read the snapshot ahead."""
        await self._send(Prefetch(snapshot=snapshot))

    async def set_standbys(self, count: int) -> None:
        """Keep this many standbys ready from now on, also after the pod was started again.

        Raises:
            ValueError: fewer than none, or more than a pod keeps.
        """
        if not 0 <= count <= MAX_STANDBYS:
            raise ValueError(f"{count} standbys: keep 0 to {MAX_STANDBYS}")
        self._keep = count
        await self._send(SetStandbys(keep=count))

    async def renew(self, *, threads: int | None = None, verify: str | None = None) -> None:
        """Replace the standbys by ones of the installed code and with these settings (None: as
        before); replicas go on. A pod that is started again has its command's settings."""
        await self._send(Renew(threads=threads, verify=verify))

    def watch(self) -> AsyncIterator[Replica]:
        """Every change of a replica, from this call on. Ends when the fleet is closed."""
        watch = _Watch()
        self._watches.add(watch)
        return watch

    async def _send(self, message: Message) -> None:
        """Without a pod there is nobody to tell, and no replica either."""
        if self._pod is not None:
            with suppress(ConnectionError):
                await self._pod.send(message)

    async def _keep_running(self) -> None:
        wait_s = _FIRST_WAIT_S
        while True:
            started_s = time.monotonic()
            self._trouble = await self._run_pod()
            self._all_gone(self._trouble)
            if time.monotonic() - started_s >= _STABLE_S:
                wait_s = _FIRST_WAIT_S
            _log.error("%s; starting it again in %.1f s", self._trouble, wait_s)
            await asyncio.sleep(wait_s)
            wait_s = min(_LONGEST_WAIT_S, wait_s * 2)

    async def _run_pod(self) -> str:
        """Run one pod to its end; returns what happened to it."""
        try:
            pod = await PodProcess.spawn(self._command, log_path=self._log_path)
        except OSError as error:
            return f"the pod cannot be started ({error})"
        _log.info("the pod's supervisor is process %d", pod.pid)
        within_s = self._end_timeout_s
        try:
            trouble = await self._listen(pod)
            if trouble == _SILENT:
                within_s = 0.0  # it would not hear of it
        finally:
            self._up.clear()
            self._pod = None
            how = await pod.end(within_s=within_s)
        return f"{trouble} ({how}); its log is {self._log_path}"

    async def _listen(self, pod: PodProcess) -> str:
        """Take what the pod tells until it ends; returns what happened."""
        async with aclosing(pod.messages()) as messages:
            try:
                async with asyncio.timeout(self._hello_timeout_s):
                    hello = await anext(messages, None)
            except TimeoutError:
                return f"the pod's supervisor said nothing for {self._hello_timeout_s:g} s"
            if not isinstance(hello, Hello):
                return "the pod's supervisor ended before it was up"
            self._pod = pod
            self._up.set()
            if self._keep is not None:
                await self._send(SetStandbys(keep=self._keep))
            heartbeat = Heartbeat(
                lambda: pod.send(Ping()), every_s=self._ping_every_s, limit_s=self._ping_limit_s
            )
            silence = asyncio.ensure_future(heartbeat.until_silent())
            hearing = asyncio.ensure_future(self._hear(messages, heartbeat))
            try:
                await asyncio.wait({silence, hearing}, return_when=asyncio.FIRST_COMPLETED)
                if not hearing.done():
                    return _SILENT
                hearing.result()  # an error of ours, if there was one
            finally:
                silence.cancel()
                hearing.cancel()
                await asyncio.gather(silence, hearing, return_exceptions=True)
        return "the pod's supervisor ended"

    async def _hear(self, messages: AsyncIterator[Message], heartbeat: Heartbeat) -> None:
        async for message in messages:
            heartbeat.heard()
            self._take(message)

    async def _check_accelerator(self, wanted: str) -> None:
        """Raises Unavailable for a class that this machine does not have, once that is known."""
        await self._accelerator_known.wait()
        if reason := refusal(wanted, self.standbys):
            raise Unavailable(reason)

    def _take(self, message: Message) -> None:
        if isinstance(message, ReplicaChanged):
            self._changed(message.replica)
        elif isinstance(message, ReplicaMeasured):
            if replica := self._replicas.get(message.replica):
                self.series.take(replica, message.text)
        elif isinstance(message, StandbysChanged):
            if message.accelerator:
                self.standbys = {message.accelerator: message.ready}
                self._accelerator_known.set()
        elif not isinstance(message, Pong):
            _log.error("the pod sent what only a fleet sends: %r", message)

    def _changed(self, replica: Replica) -> None:
        if replica.state is ReplicaState.GONE:
            self._replicas.pop(replica.id, None)
            self.series.ended(replica)
        else:
            self._replicas[replica.id] = replica
        first = self._first.get(replica.id)
        if first is not None and not first.done():
            first.set_result(replica)
        for watch in self._watches:
            watch.changes.put_nowait(replica)

    def _all_gone(self, reason: str) -> None:
        self.standbys = dict.fromkeys(self.standbys, 0)
        for replica in list(self._replicas.values()):
            self._changed(replace(replica, state=ReplicaState.GONE, reason=reason))
        for first in self._first.values():
            if not first.done():
                first.set_result(None)


class _Watch(AsyncIterator[Replica]):
    """The changes for one follower; forgotten when the follower drops it."""

    def __init__(self) -> None:
        self.changes: asyncio.Queue[Replica | None] = asyncio.Queue()

    async def __anext__(self) -> Replica:
        replica = await self.changes.get()
        if replica is None:
            raise StopAsyncIteration
        return replica
