"""The pool under any order of events: a state machine in virtual time.

Children are sockets of this process that answer checks unless they hang. Whatever happens, a child
has one owner at most and lives on once it has one; when the trouble ends, exactly `keep` standbys
wait, all alive and of the newest code.
"""

import asyncio
import signal
from collections.abc import Callable
from contextlib import ExitStack

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from virtual_time import VirtualTimeLoop

from runtime.pod import child_wire
from runtime.pod.child import Child, StartFailed
from runtime.pod.child_wire import Alive, Check, Serving, StandbyReady
from runtime.pod.output import Output
from runtime.pod.standbys import Standbys

AT_ONCE = 2
CALM_S = 180.0  # long enough for every backoff, check and warm-up


class FakeChild(Child):
    """A child whose process is `there`, the other end of its control socket."""

    def __init__(self, *, generation: int, hurried: bool) -> None:
        here, self.there = child_wire.pair()
        for end in (here, self.there):
            end.setblocking(False)
        self.generation = generation
        self.hurried = hurried
        self.hangs = False
        self.warm = False
        self.killed = False
        loop = asyncio.get_running_loop()
        super().__init__(
            pid=-1, exited=loop.create_future(), control=here, output=Output("standby")
        )
        loop.add_reader(self.there.fileno(), self._answer)

    @property
    def lives(self) -> bool:
        return not self.exited.done()

    def get_warm(self) -> None:
        self.warm = True
        child_wire.send(self.there, StandbyReady(warm_ms=1.0))

    def die(self) -> None:
        asyncio.get_running_loop().remove_reader(self.there.fileno())
        self.there.close()
        self.exited.set_result(signal.SIGKILL)

    def kill(self, signal_: signal.Signals = signal.SIGKILL) -> None:
        if self.lives:
            self.killed = True
            self.die()

    def _answer(self) -> None:
        if self.hangs:
            asyncio.get_running_loop().remove_reader(self.there.fileno())
            return
        received = child_wire.receive(self.there)
        if received is not None and isinstance(received[0], Check):
            child_wire.send(self.there, Alive())


class Pool(RuleBasedStateMachine):
    """One pool, those who take from it, and what may happen to its children."""

    @initialize(keep=st.integers(0, 3))
    def open(self, keep: int) -> None:
        self.loop = VirtualTimeLoop()
        self.children: list[FakeChild] = []
        self.tries = 0
        self.failures = 0
        self.warm_at_once = False
        self.room = True
        self.generation = 0
        self.keep = keep
        self.counts: list[int] = []
        self.pending: list[asyncio.Future[Child]] = []
        self.handed: list[FakeChild] = []
        self.starts: list[ExitStack] = []
        self.do(self._open)

    def _open(self) -> None:
        self.pool = Standbys(
            self._fork,
            keep=self.keep,
            at_once=AT_ONCE,
            changed=self.counts.append,
            has_room=lambda: self.room,
        )
        self.pool.fill()
        self.checks = self.loop.create_task(self.pool.keep_healthy())

    async def _fork(self, *, hurry: Callable[[], bool]) -> Child:
        await asyncio.sleep(0.001)
        self.tries += 1
        if self.failures:
            self.failures -= 1
            raise StartFailed("no more processes")
        child = FakeChild(hurried=hurry(), generation=self.generation)
        self.children.append(child)
        if self.warm_at_once:
            child.get_warm()
        return child

    def do(self, action: Callable[[], object], *, then_s: float = 0.01) -> None:
        """Act on the loop and let it settle."""

        async def main() -> None:
            action()
            await asyncio.sleep(then_s)

        self.loop.run_until_complete(main())
        for future in [one for one in self.pending if one.done()]:
            self.pending.remove(future)
            if not future.cancelled() and future.exception() is None:
                child = future.result()
                assert isinstance(child, FakeChild)
                assert child not in self.handed, "handed out twice"
                assert not child.killed, "handed out after it was given up"
                self.handed.append(child)
                if child.lives and not child.hangs:
                    self.loop.run_until_complete(self._serve(child))

    async def _serve(self, child: FakeChild) -> None:
        """What it says as a replica reaches its owner, if after an answer that nobody awaits."""
        child_wire.send(child.there, Serving(sent_s=0.0))
        async with asyncio.timeout(1.0):
            while not isinstance(said := await child.receive(), Serving):
                assert isinstance(said, Alive)

    def one_of(self, children: list[FakeChild], data: st.DataObject) -> FakeChild | None:
        return data.draw(st.sampled_from(children)) if children else None

    def waiting(self) -> list[FakeChild]:
        return [one for one in self.children if one.lives and one not in self.handed]

    @rule()
    def take(self) -> None:
        self.do(lambda: self.pending.append(self.pool.take()))

    @rule()
    def take_in_the_middle_of_a_check(self) -> None:
        """At the very moment when the questions are out and the answers are not in."""

        async def main() -> None:
            checking = self.loop.create_task(
                self.pool._health.check([*self.pool._ready, *self.pool._outdated])
            )
            await asyncio.sleep(0)
            self.pending.append(self.pool.take())
            await checking

        if not self.pool._health._answers:
            self.loop.run_until_complete(main())
            self.do(lambda: None)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def wait_no_longer(self, data: st.DataObject) -> None:
        future = data.draw(st.sampled_from(self.pending))
        self.do(future.cancel)

    @rule()
    def a_start_begins(self) -> None:
        stack = ExitStack()
        self.starts.append(stack)
        self.do(lambda: stack.enter_context(self.pool.starting()))

    @precondition(lambda self: self.starts)
    @rule()
    def a_start_ends(self) -> None:
        self.do(self.starts.pop().close)

    @rule(data=st.data())
    def gets_warm(self, data: st.DataObject) -> None:
        if child := self.one_of([one for one in self.waiting() if not one.warm], data):
            self.do(child.get_warm)

    @rule(data=st.data())
    def dies(self, data: st.DataObject) -> None:
        if child := self.one_of(self.waiting(), data):
            self.do(child.die)

    @rule(data=st.data())
    def hangs(self, data: st.DataObject) -> None:
        if child := self.one_of([one for one in self.waiting() if one.warm], data):
            child.hangs = True

    @rule(count=st.integers(1, 6))
    def forks_fail(self, count: int) -> None:
        self.failures = count

    @rule(keep=st.integers(0, 4))
    def other_count(self, keep: int) -> None:
        self.keep = keep
        self.do(lambda: self.pool.set_keep(keep))

    @rule(room=st.booleans())
    def new_code(self, room: bool) -> None:
        self.room = room
        before = len(self.counts) and self.counts[-1]
        self.generation += 1
        self.do(self.pool.renew)
        if room:
            assert (self.counts[-1] if self.counts else 0) >= before, "fewer ready than before"

    @rule(seconds=st.sampled_from([0.05, 0.5, 3.0, 11.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.do(lambda: None, then_s=seconds)

    @rule()
    def no_fork_works_for_a_while(self) -> None:
        self.failures, before = 10**9, self.tries
        for _ in range(3):
            self.do(lambda: self.pending.append(self.pool.take()))
        for _ in range(60):
            self.do(lambda: None, then_s=1.0)
            assert self.tries - before < 80, "a storm of forks"
        self.failures = 0

    @rule()
    def all_is_well(self) -> None:
        """The trouble ends: the pool is as it should be, and nobody waits."""
        self.failures, self.warm_at_once = 0, True
        while self.starts:
            self.do(self.starts.pop().close)
        for child in self.waiting():
            if not child.warm:
                self.do(child.get_warm)
        self.do(lambda: None, then_s=CALM_S)
        self.warm_at_once = False
        waiting = self.waiting()
        assert len(waiting) == self.keep == (self.counts[-1] if self.counts else 0)
        assert all(one.warm and not one.hangs for one in waiting)
        assert all(one.generation == self.generation for one in waiting)
        assert self.pending == []

    @invariant()
    def those_that_were_handed_out_live(self) -> None:
        assert not any(child.killed for child in self.handed)

    @invariant()
    def as_many_are_told_as_are_there(self) -> None:
        told = self.counts[-1] if self.counts else 0
        assert told <= len([one for one in self.waiting() if one.warm and not one.killed])

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:
            self.all_is_well()
        finally:
            self.do(self._close)
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.do(lambda: None)
            self.loop.close()

    def _close(self) -> None:
        self.pool.close()
        for child in self.children:
            child.kill()
            child.close()


TestPool = Pool.TestCase
TestPool.settings = settings(
    derandomize=True,
    deadline=None,
    max_examples=60,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow],
)
