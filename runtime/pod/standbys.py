"""Standbys: the pool of warm processes that wait for a snapshot.

On the supervisor's event loop. The pool is refilled off the path of a cold start: not while a
replica starts (up to a limit), and a moment after.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from runtime.pod.child import Child, StartFailed
from runtime.pod.child_wire import Expect, Failed, StandbyReady
from runtime.pod.health import HealthChecks
from runtime.pod.output import log

_WARM_LIMIT_S = 60.0
_END_LIMIT_S = 2.0
_REFILL_DELAY_S = 1.0  # after a start, so that its first requests have the machine
_REFILL_AT_MOST_S = 5.0  # a slow start must not keep the pool empty
_CHECK_EVERY_S = 5.0
_BACKOFF_S = 0.2
_MAX_BACKOFF_S = 10.0
_FAILURES_TO_GIVE_UP = 3  # in a row: then those who wait are told


class Fork(Protocol):
    """Makes a process that says StandbyReady: once it is warm, or at once if `hurry()`, which is
    asked when the fork is about to happen.

    Raises:
        StartFailed: it cannot be made.
    """

    def __call__(self, *, hurry: Callable[[], bool]) -> Awaitable[Child]: ...


@dataclass(eq=False)
class _Coming:
    """A process that is not ready yet. `hurried`: it is for somebody who waits, and does not warm
    up; None: it is not forked yet, so that is open. `generation`: the code it was forked from."""

    hurried: bool | None = None
    generation: int = 0


class Standbys:
    """Keeps `keep` standbys ready and hands each out once.

    Where an assignment finds none, a process is forked for it that does not warm up first: that
    would take longer than what it saves. `changed` is told how many are ready.
    """

    def __init__(
        self,
        fork: Fork,
        *,
        keep: int,
        at_once: int,
        changed: Callable[[int], None],
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        """`at_once` may warm up at the same time. `has_room`: there is memory for one more than
        are kept."""
        self.at_once = at_once
        self._fork = fork
        self._keep = keep
        self._changed = changed
        self._has_room = has_room
        self._health = HealthChecks(self._drop)
        self._told = 0
        self._ready: deque[Child] = deque()
        self._outdated: deque[Child] = deque()  # ready, but of an earlier generation
        self._generation = 0
        self._waiters: deque[asyncio.Future[Child]] = deque()
        self._coming: dict[asyncio.Task[None], _Coming] = {}
        self._ending: set[asyncio.Task[str]] = set()
        self._starting = 0
        self._failures = 0  # in a row
        self._deaths = 0  # of ready standbys, since the last one was handed out
        self._pause: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def ready(self) -> int:
        """How many wait."""
        return len(self._ready) + len(self._outdated)

    def fill(self) -> None:
        """Start what is missing, if now is the time."""
        self._waiters = deque(waiter for waiter in self._waiters if not waiter.done())
        waiting, coming = len(self._waiters), self._coming.values()
        for_waiters = sum(one.hurried is not False for one in coming)
        for _ in range(waiting - for_waiters):
            self._begin()
        wanted = max(0, self._keep - len(self._ready)) if self._pause is None else 0
        for _ in range(min(wanted, self.at_once) + waiting - len(coming)):
            self._begin()

    def set_keep(self, keep: int) -> None:
        """Keep this many from now on."""
        if not self._closed:
            self._keep = keep
            self._end_surplus()
            self.fill()

    def renew(self) -> None:
        """New processes are of new code or settings: replace those that wait by such ones.

        Each goes when its successor is ready, or at once where there is no room for both; until
        then it is handed out if there is no new one.
        """
        self._generation += 1
        self._outdated.extend(self._ready)
        self._ready.clear()
        if not self._has_room():
            while self._outdated:
                self._end(self._outdated.popleft())
        self._tell()
        self.fill()

    async def keep_healthy(self) -> None:
        """Check those that wait every now and then, but not beside a start; until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_EVERY_S)
            if not self._starting:
                try:
                    await self._health.check([*self._ready, *self._outdated])
                except Exception:  # a bug of ours must not end the checks
                    log.exception("health checks")

    def _begin(self) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            del self._coming[task]
            if not task.cancelled():
                task.result()
                self.fill()

        coming = _Coming()
        task = asyncio.get_running_loop().create_task(self._add(coming))
        self._coming[task] = coming
        task.add_done_callback(ended)

    def _hurry(self, coming: "_Coming") -> bool:
        """Decide, now that it is forked, whether it is for somebody who waits."""
        waiting = sum(not waiter.done() for waiter in self._waiters)
        coming.hurried = waiting > sum(one.hurried is True for one in self._coming.values())
        coming.generation = self._generation
        return coming.hurried

    def take(self) -> asyncio.Future[Child]:
        """A ready standby at once (the future is done), or the next one; it is the caller's.

        Cancel the future to stop waiting. It fails with StartFailed when no process can be started.
        """
        taken: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        self._waiters.append(taken)
        self._hand_out()
        self.fill()
        return taken

    def expect(self, snapshot: str) -> None:
        """Tell those that wait that this snapshot is likely to be assigned."""
        for child in (*self._ready, *self._outdated):
            with suppress(OSError):  # its end is noticed elsewhere
                child.send(Expect(snapshot=snapshot))

    def close(self) -> None:
        """Start no more, and think nothing of the deaths of those that wait."""
        self._closed = True
        self._keep = 0
        self._ready.clear()
        self._outdated.clear()

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Around the start of a replica: refilling waits for its end."""
        self._starting += 1
        if self._starting == 1:
            self._pause_for(_REFILL_AT_MOST_S)
        try:
            yield
        finally:
            self._starting -= 1
            if self._starting == 0:
                self._pause_for(_REFILL_DELAY_S)

    def _pause_for(self, delay_s: float) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._pause = asyncio.get_running_loop().call_later(delay_s, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self.fill()

    def _hand_out(self) -> None:
        while (self._ready or self._outdated) and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(self._choose())
                self._deaths = 0
        self._tell()

    def _choose(self) -> Child:
        """The one that has waited longest, of those that surely live if there are any."""
        pool = self._ready or self._outdated
        child = next((one for one in pool if not self._health.asked(one)), pool[0])
        pool.remove(child)
        self._health.release(child)
        return child

    def _tell(self) -> None:
        if self._told != self.ready:
            self._told = self.ready
            self._changed(self.ready)

    async def _add(self, coming: _Coming) -> None:
        """Start one standby; when that fails, the task lasts until the next try is due."""
        try:
            child = await self._start(coming)
        except Exception as error:
            self._failures += 1
            log.error("no standby: %s", error, exc_info=not isinstance(error, StartFailed))
            if self._failures >= _FAILURES_TO_GIVE_UP:
                for waiter in self._waiters:
                    if not waiter.done():
                        waiter.set_exception(StartFailed(f"no process could be started: {error}"))
                self._waiters.clear()
            await asyncio.sleep(min(_BACKOFF_S * 2**self._failures, _MAX_BACKOFF_S))
            return
        self._failures = 0
        if coming.hurried and all(waiter.done() for waiter in self._waiters):
            child.kill()  # whoever it was for has another, and as a standby it is not warm
            await child.ended(within_s=_END_LIMIT_S)
            return
        is_new = coming.generation == self._generation
        (self._ready if is_new else self._outdated).append(child)
        child.exited.add_done_callback(lambda _: self._drop(child, "died while it waited"))
        self._hand_out()
        self._end_surplus()

    async def _start(self, coming: _Coming) -> Child:
        child = await self._fork(hurry=partial(self._hurry, coming))
        try:
            async with asyncio.timeout(_WARM_LIMIT_S):
                answer = await child.receive()
        except TimeoutError:
            child.kill()
            answer = Failed(message=f"a standby was not warm within {_WARM_LIMIT_S:.0f} s")
        if isinstance(answer, StandbyReady):
            if not coming.hurried:
                log.info("%s: warm in %.0f ms", child.output.name, answer.warm_ms)
            return child
        how = await child.ended(within_s=_END_LIMIT_S)
        raise StartFailed(answer.message if isinstance(answer, Failed) else how)

    def _drop(self, child: Child, why: str) -> None:
        """It waits, but cannot be used: another takes its place, later each time."""
        for pool in (self._ready, self._outdated):
            if child in pool:
                pool.remove(child)
                break
        else:
            return  # it was handed out
        log.error("%s: %s", child.output.name, why)
        self._end(child)
        self._tell()
        self._pause_for(min(_BACKOFF_S * 2**self._deaths, _MAX_BACKOFF_S))
        self._deaths += 1

    def _end_surplus(self) -> None:
        """End those that are more than are kept: the outdated first."""
        for pool in (self._outdated, self._ready):
            while pool and self.ready > self._keep:
                self._end(pool.popleft())
        self._tell()

    def _end(self, child: Child) -> None:
        """End one that is in the pool no more."""
        self._health.release(child)
        child.kill()
        ending = asyncio.get_running_loop().create_task(child.ended(within_s=_END_LIMIT_S))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
