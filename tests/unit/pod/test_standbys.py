"""The pool's decisions, with children that are only sockets."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from socket import socket
from typing import Any

import pytest

from runtime.pod import child_wire, health, standbys
from runtime.pod.child import Child, StartFailed
from runtime.pod.child_wire import Alive, Check, Expect, Failed, Serving, StandbyReady
from runtime.pod.output import Output
from runtime.pod.standbys import Standbys

pytestmark = pytest.mark.timeout(20)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standbys, "_REFILL_DELAY_S", 0.02)
    monkeypatch.setattr(standbys, "_REFILL_AT_MOST_S", 0.2)
    monkeypatch.setattr(standbys, "_BACKOFF_S", 0.005)


@dataclass
class Fake:
    """One forked child: its other end, and what the pool got."""

    child: Child
    there: socket
    hurried: bool

    def warm(self) -> None:
        child_wire.send(self.there, StandbyReady(warm_ms=1.0))

    def die(self, status: int = signal.SIGKILL) -> None:
        self.there.close()
        self.child.exited.set_result(status)


class Forks:
    """Makes fakes; `failures` of them fail first. With `by_hand` a fake does not get warm."""

    def __init__(self, *, by_hand: bool = False, failures: int = 0) -> None:
        self.made: list[Fake] = []
        self.tries = 0
        self.by_hand = by_hand
        self.failures = failures

    async def __call__(self, *, hurry: Callable[[], bool]) -> Child:
        await asyncio.sleep(0)
        self.tries += 1
        if self.failures:
            self.failures -= 1
            raise StartFailed("no more processes")
        here, there = child_wire.pair()
        here.setblocking(False)
        exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        child = Child(pid=0, exited=exited, control=here, output=Output("standby"))
        fake = Fake(child, there, hurry())
        self.made.append(fake)
        if not self.by_hand:
            fake.warm()
        return child

    def close(self) -> None:
        for fake in self.made:
            fake.there.close()
            fake.child.close()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 (the pool tells only of ready ones)
            await asyncio.sleep(0.002)


@pytest.fixture
def run() -> Iterator[Callable[..., None]]:
    """Runs `test(pool, forks, counts)` and closes every fake's descriptors."""

    def runner(
        test: Callable[..., Any], *, keep: int = 1, at_once: int = 2, **options: Any
    ) -> None:
        async def main() -> None:
            forks, counts = Forks(**options), list[int]()
            pool = Standbys(forks, keep=keep, at_once=at_once, changed=counts.append)
            try:
                pool.fill()
                await test(pool, forks, counts)
            finally:
                pool.close()
                forks.close()

        asyncio.run(main())

    yield runner


def test_the_pool_is_filled_and_no_more(run: Any) -> None:
    async def test(pool: Standbys, forks: Forks, counts: list[int]) -> None:
        await until(lambda: counts[-1:] == [3])
        pool.fill()
        await asyncio.sleep(0.05)
        assert len(forks.made) == 3
        assert counts == [1, 2, 3]

    run(test, keep=3)


def test_no_more_than_allowed_warm_up_at_once(run: Any) -> None:
    async def test(pool: Standbys, forks: Forks, counts: list[int]) -> None:
        await until(lambda: len(forks.made) == 2)
        await asyncio.sleep(0.02)
        assert len(forks.made) == 2
        forks.made[0].warm()
        await until(lambda: len(forks.made) == 3)

    run(test, keep=5, by_hand=True)


def test_each_is_handed_out_once_in_the_order_of_asking(run: Any) -> None:
    async def test(pool: Standbys, forks: Forks, counts: list[int]) -> None:
        with pool.starting():
            taken = [pool.take() for _ in range(5)]
            assert not any(each.done() for each in taken)
            for n in range(5):
                await until(lambda n=n: len(forks.made) > n)
                forks.made[n].warm()
                assert await taken[n] is forks.made[n].child
        assert counts == []  # none was ever spare

    run(test, keep=0, by_hand=True)


def test_a_ready_one_is_handed_out_at_once(run: Any) -> None:
    async def test(pool: Standbys, forks: Forks, counts: list[int]) -> None:
        await until(lambda: counts == [1])
        with pool.starting():
            assert pool.take().result() is forks.made[0].child
            assert counts == [1, 0]

    run(test)


def test_refilling_waits_for_the_start_but_not_for_ever(run: Any) -> None:
    async def test(pool: Standbys, forks: Forks, counts: list[int]) -> None:
        await until(lambda: counts == [1])
        with pool.starting():
            pool.take()
            await asyncio.sleep(0.05)
            assert len(forks.made) == 1
        await until(lambda: len(forks.made) == 2)
        await until(lambda: counts == [1, 0, 1])
        with pool.starting():
            pool.take()
            await until(lambda: len(forks.made) == 3)  # over the limit, the start is not done

    run(test)


def test_one_that_waited_in_vain_leaves_the_standby_to_the_next(run: Any) -> None:
    async def test(pool: Standbys, forks: Forks, counts: list[int]) -> None:
        with pool.starting():
            first, second = pool.take(), pool.take()
            first.cancel()
            await until(lambda: forks.made)
            forks.made[0].warm()
            assert await second is forks.made[0].child

    run(test, keep=0, by_hand=True)


def test_a_dead_standby_is_never_handed_out_and_is_replaced(run: Any) -> None:
    async def test(pool: Standbys, forks: Forks, counts: list[int]) -> None:
        await until(lambda: counts == [1])
        forks.made[0].die()
        await until(lambda: counts == [1, 0, 1])
        assert pool.take().result() is forks.made[1].child

    run(test)


def test_failures_are_told_after_some_tries_and_do_not_stop_the_pool(run: Any) -> None:
    async def test(pool: Standbys, forks: Forks, counts: list[int]) -> None:
        with pool.starting():
            waiting = pool.take()
            with pytest.raises(StartFailed, match="could be started: no more processes"):
                await waiting
        assert forks.tries >= 3
        await until(lambda: counts == [1])

    run(test, failures=4, at_once=1)


def test_a_few_failures_are_not_told(run: Any) -> None:
    async def test(pool: Standbys, forks: Forks, counts: list[int]) -> None:
        with pool.starting():
            assert await pool.take() is forks.made[0].child

    run(test, failures=2, at_once=1)


@pytest.mark.parametrize("says", [None, Failed(message="no kernel for this CPU")])
def test_one_that_does_not_warm_up_is_tried_again(run: Any, says: Failed | None) -> None:
    async def test(pool: Standbys, forks: Forks, counts: list[int]) -> None:
        await until(lambda: forks.made)
        if says:
            child_wire.send(forks.made[0].there, says)
        forks.made[0].die(1 << 8)
        await until(lambda: len(forks.made) == 2)
        forks.made[1].warm()
        await until(lambda: counts == [1])

    run(test, by_hand=True)


def test_those_that_wait_are_told_what_to_expect(run: Any) -> None:
    async def test(pool: Standbys, forks: Forks, counts: list[int]) -> None:
        await until(lambda: counts == [1, 2])
        forks.made[0].there.close()  # dying, not noticed yet
        pool.expect("sha256-a")
        assert child_wire.receive(forks.made[1].there) == (Expect(snapshot="sha256-a"), [])

    run(test, keep=2)


def test_a_closed_pool_starts_no_more(run: Any) -> None:
    async def test(pool: Standbys, forks: Forks, counts: list[int]) -> None:
        await until(lambda: counts == [1])
        pool.close()
        forks.made[0].die()
        await asyncio.sleep(0.05)
        assert len(forks.made) == 1

    run(test)


def test_what_somebody_waits_for_is_hurried_and_the_rest_is_not(run: Any) -> None:
    async def test(pool: Standbys, forks: Forks, counts: list[int]) -> None:
        await until(lambda: len(forks.made) == 1)
        with pool.starting():
            waiting = pool.take()  # the one that warms up is not waited for
            await until(lambda: len(forks.made) == 2)
            assert [fake.hurried for fake in forks.made] == [False, True]
            forks.made[1].warm()
            assert await waiting is forks.made[1].child
        forks.made[0].warm()
        await until(lambda: counts == [1])

    run(test, by_hand=True, at_once=1)


def test_one_that_was_hurried_for_nobody_ends(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[Child] = []

    def kill(child: Child, _signal: signal.Signals = signal.SIGKILL) -> None:
        killed.append(child)
        child.exited.set_result(signal.SIGKILL)

    async def test(pool: Standbys, forks: Forks, counts: list[int]) -> None:
        monkeypatch.setattr(Child, "kill", kill)
        await until(lambda: len(forks.made) == 1)
        with pool.starting():
            waiting = pool.take()
            await until(lambda: len(forks.made) == 2)
            forks.made[0].warm()
            assert await waiting is forks.made[0].child
            forks.made[1].warm()
            await until(lambda: killed == [forks.made[1].child])
        assert counts == []

    run(test, by_hand=True)


def test_one_that_is_handed_out_while_it_is_asked_is_its_owners(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else reads what it says, nobody ends it, and its late answer comes first."""
    monkeypatch.setattr(standbys, "_CHECK_EVERY_S", 0.01)
    monkeypatch.setattr(health, "_ANSWER_LIMIT_S", 0.1)
    monkeypatch.setattr(health, "_GRACE_S", 0.01)
    killed: list[Child] = []
    monkeypatch.setattr(Child, "kill", lambda child, *_: killed.append(child))

    async def test(pool: Standbys, forks: Forks, counts: list[int]) -> None:
        await until(lambda: counts == [1])
        checking = asyncio.ensure_future(pool.keep_healthy())
        fake = forks.made[0]
        loop = asyncio.get_running_loop()
        fake.there.setblocking(False)
        assert child_wire.decode(await loop.sock_recv(fake.there, 1000)) == Check()
        with pool.starting():
            child = pool.take().result()
            pool.set_keep(0)  # no other is to come
            child_wire.send(fake.there, Alive())
            child_wire.send(fake.there, Serving(sent_s=0.0))
            await asyncio.sleep(0.2)  # past the limit
            assert child is fake.child
            assert await child.receive() == Alive()
            assert await child.receive() == Serving(sent_s=0.0)
        assert killed == []
        checking.cancel()

    run(test)


def test_one_that_has_answered_is_handed_out_before_one_that_has_not(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standbys, "_CHECK_EVERY_S", 0.01)

    async def test(pool: Standbys, forks: Forks, counts: list[int]) -> None:
        await until(lambda: counts == [1, 2])
        checking = asyncio.ensure_future(pool.keep_healthy())
        first, second = forks.made
        loop = asyncio.get_running_loop()
        second.there.setblocking(False)
        assert child_wire.decode(await loop.sock_recv(second.there, 1000)) == Check()
        child_wire.send(second.there, Alive())
        await until(lambda: not pool._health.asked(second.child))
        with pool.starting():
            assert pool.take().result() is second.child
            assert pool.take().result() is first.child
        checking.cancel()

    run(test, keep=2)
