"""Traffic history: exact whatever becomes of reports and processes, bounded, and what is stored."""

import asyncio
import contextlib
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glowplug.contracts import DemandReport
from glowplug.errors import GlowplugError
from scaler import traffic, traffic_file
from scaler.minutes import KEPT_MINUTES, Minute
from scaler.traffic import Traffic
from scaler.traffic_file import TrafficFile
from tests.unit.scaler.traffic_reports import Clock, Deployed, Reporter

EVER = (0, 1 << 40)


@contextlib.asynccontextmanager
async def opened(path: Path, clock: Clock) -> AsyncIterator[Traffic]:
    history = Traffic(path / "traffic.sqlite", now_s=clock)
    yield history
    await history.stop()


def killed(history: Traffic) -> None:
    """As after kill -9: what was not written is lost."""
    history._thread.shutdown(wait=True)
    history._file.close()


async def totals(history: Traffic, function: str = "f") -> tuple[int, int, float]:
    minutes = await history.read(function, *EVER)
    assert [each.minute for each in minutes] == sorted({each.minute for each in minutes})
    return (
        sum(each.arrivals for each in minutes),
        sum(each.finished for each in minutes),
        sum(each.service_s for each in minutes),
    )


def test_a_minute_has_what_became_known_in_it(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Clock()
        async with opened(tmp_path, clock) as history:
            one = Reporter("a")
            one.count(arrivals=3)
            history.record(one.report(in_flight=2, queued=1, peak=3), 3)
            one.count(arrivals=1, finished=2, service_s=0.5)
            history.record(one.report(in_flight=2, peak=4), 4)
            first = clock.minute
            clock.now_s += 60
            history.record(one.report(in_flight=2, peak=2), 2)  # they go on
            clock.now_s += 60
            one.count(finished=2, service_s=200.0)
            history.record(one.report(), 0)
            clock.now_s += 60
            history.record(one.report(), 0)  # nothing
            assert await history.read("f", *EVER) == [
                Minute(minute=first, arrivals=4, peak=4, finished=2, service_s=0.5),
                Minute(minute=first + 1, peak=2),
                Minute(minute=first + 2, finished=2, service_s=200.0),
            ]
            assert await history.read("f", first + 1, first + 2) == [
                Minute(minute=first + 1, peak=2)
            ]
            assert await history.read("other", *EVER) == []

    asyncio.run(main())


def test_a_warm_call_is_no_arrival(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, Clock()) as history:
            one = Reporter("a")
            one.count(arrivals=2, warms=2)
            history.record(one.report(queued=1), 0)
            assert await history.read("f", *EVER) == []
            one.count(arrivals=3, warms=1)
            history.record(one.report(), 0)
            assert await totals(history) == (2, 0, 0.0)

    asyncio.run(main())


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(0, 2), st.integers(1, 40)),
        st.tuples(st.just("finish"), st.integers(0, 2), st.integers(1, 40)),
        st.tuples(st.just("make report"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("deliver"), st.integers(0, 30), st.just(0)),  # any, in any order, again
        st.tuples(st.just("new activator"), st.integers(0, 2), st.just(0)),
        st.tuples(st.sampled_from(["flush", "scaler restarts", "scaler dies", "prune"])),
        st.tuples(st.just("time passes"), st.integers(1, 3000)),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(OPERATIONS)
def test_totals_are_exact_whatever_happens(operations: list[tuple[object, ...]]) -> None:
    """Reports of three activators are lost, repeated and reordered, activators are replaced, the
    scaler restarts and dies: nothing twice, and all that a living activator has counted."""

    async def main(folder: Path) -> None:
        clock, number = Clock(), 0
        path = folder / "traffic.sqlite"
        history = Traffic(path, now_s=clock)
        activators = [Reporter("a0"), Reporter("b0"), Reporter("c0")]
        sent: list[DemandReport] = []
        known: dict[str, tuple[int, int]] = {}  # to the scaler, by reporter
        stored: dict[str, tuple[int, int]] = {}
        for what, *how in operations:
            if what == "arrive":
                activators[how[0]].count(arrivals=how[1])
            elif what == "finish":
                activators[how[0]].count(finished=how[1], service_s=0.25 * how[1])
            elif what == "make report":
                sent.append(activators[how[0]].report())
            elif what == "deliver" and sent:
                report = sent[how[0] % len(sent)]
                history.record(report, 0)
                arrivals, finished = known.get(report.reporter, (0, 0))
                known[report.reporter] = (
                    max(arrivals, report.arrivals),
                    max(finished, report.finished),
                )
            elif what == "new activator":
                number += 1
                activators[how[0]] = Reporter(f"{activators[how[0]].name[0]}{number}")
            elif what == "flush":
                await history.flush()
                stored = dict(known)
            elif what == "prune":
                await history.prune(Deployed("f"))
                stored = dict(known)
            elif what == "scaler restarts":
                await history.stop()
                stored = dict(known)
                history = Traffic(path, now_s=clock)
            elif what == "scaler dies":
                killed(history)
                known = dict(stored)
                history = Traffic(path, now_s=clock)
            elif what == "time passes":
                clock.now_s += how[0]
        for each in activators:  # the next report of each that lives
            report = each.report()
            history.record(report, 0)
            known[each.name] = (report.arrivals, report.finished)
        arrivals, finished, service_s = await totals(history)
        assert arrivals == sum(each[0] for each in known.values())
        assert finished == sum(each[1] for each in known.values())
        assert service_s == pytest.approx(0.25 * finished)
        await history.stop()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))


def test_what_cannot_be_written_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with opened(tmp_path, Clock()) as history:
            one = Reporter("a")
            one.count(arrivals=5)
            history.record(one.report(peak=2), 2)
            good = history._file
            with sqlite3.connect(tmp_path / "traffic.sqlite") as other:
                other.execute("BEGIN IMMEDIATE")
                history._file._connection.execute("PRAGMA busy_timeout = 10")
                await history.flush()
                with pytest.raises(GlowplugError, match="in use by another process"):
                    await history.read("f", *EVER)
                other.rollback()
            other.close()
            assert history._file is good
            one.count(arrivals=1)
            history.record(one.report(peak=3), 3)
            (minute,) = await history.read("f", *EVER)
            assert (minute.arrivals, minute.peak) == (6, 3)

    asyncio.run(main())
    assert "was not written, and will be again" in caplog.text


def test_memory_is_bounded_while_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        clock = Clock()
        async with opened(tmp_path, clock) as history:

            def broken(*_: object, **__: object) -> None:
                raise GlowplugError("disk full")

            monkeypatch.setattr(history._file, "write", broken)
            one = Reporter("a")
            for _ in range(30):
                clock.now_s += 60
                one.count(arrivals=1)
                history.record(one.report(), 0)
                await history.flush()
            assert len(history._pending) == 20
            monkeypatch.undo()
            minutes = await history.read("f", *EVER)
            assert [each.minute for each in minutes] == list(
                range(clock.minute - 19, clock.minute + 1)
            )

    monkeypatch.setattr(traffic, "MAX_PENDING", 20)
    asyncio.run(main())


def test_a_reader_that_leaves_loses_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, Clock()) as history:
            one = Reporter("a")
            for _ in range(20):
                one.count(arrivals=1)
                history.record(one.report(), 0)
                reading = asyncio.create_task(history.read("f", *EVER))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                reading.cancel()
            assert await totals(history) == (20, 0, 0.0)

    asyncio.run(main())


def test_replacing_leaves_other_minutes_and_what_comes_after(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Clock()
        async with opened(tmp_path, clock) as history:
            now, one = clock.minute, Reporter("a")
            old = [Minute(minute=now - back, arrivals=back) for back in (9, 7, 5, 3)]
            await history.replace("f", old)
            one.count(arrivals=2)
            history.record(one.report(), 0)
            await history.replace(
                "f", [Minute(minute=now - 7, arrivals=70), Minute(minute=now - 4, arrivals=40)]
            )
            assert [(now - each.minute, each.arrivals) for each in await history.read("f", *EVER)][
                :5
            ] == [(9, 9), (7, 70), (4, 40), (3, 3), (0, 2)]
            await history.replace("f", [Minute(minute=now, arrivals=100)])
            one.count(arrivals=1)
            history.record(one.report(), 0)
            assert (await history.read("f", now, now + 1))[0].arrivals == 101
            await history.replace("f", [])
            assert len(await history.read("f", *EVER)) == 5

    asyncio.run(main())


def test_what_is_too_old_or_of_a_deleted_function_goes_in_time(tmp_path: Path) -> None:
    async def main() -> None:
        clock, registry = Clock(), Deployed("f", "g")
        async with opened(tmp_path, clock) as history:
            for name in ("f", "g"):
                reporter = Reporter(name, function=name)
                reporter.count(arrivals=1)
                history.record(reporter.report(), 0)
            await history.prune(registry)
            registry.names.remove("g")
            await history.prune(registry)
            clock.now_s += 6 * 86_400
            await history.prune(registry)
            assert await totals(history, "g") == (1, 0, 0.0)  # it may come back
            registry.names.append("g")
            await history.prune(registry)
            registry.names.remove("g")
            clock.now_s += 6 * 86_400
            await history.prune(registry)
            clock.now_s += 7 * 86_400 - 60
            await history.prune(registry)
            assert await totals(history, "g") == (1, 0, 0.0)
            clock.now_s += 120
            await history.prune(registry)
            assert await totals(history, "g") == (0, 0, 0.0)
            clock.now_s = Clock().now_s + KEPT_MINUTES * 60
            await history.prune(registry)
            assert await totals(history) == (1, 0, 0.0)
            clock.now_s += 60
            await history.prune(registry)
            assert await totals(history) == (0, 0, 0.0)
            assert history._file.counters() == {}
            names = history._file._connection.execute("SELECT count(*) FROM functions").fetchone()
            assert names == (0,)

    asyncio.run(main())


def test_reporters_are_forgotten_only_when_they_are_silent(tmp_path: Path) -> None:
    async def main() -> None:
        clock, registry = Clock(), Deployed("f")
        async with opened(tmp_path, clock) as history:
            idle, gone = Reporter("idle"), Reporter("gone")
            for each in (idle, gone):
                each.count(arrivals=5)
                history.record(each.report(), 0)
            for _ in range(10):
                clock.now_s += 86_400
                history.record(idle.report(), 0)  # nothing new, but it lives
                await history.prune(registry)
            assert history._file.counters().keys() == {("f", "idle")}
            assert history._counted.keys() == {("f", "idle")}
            idle.count(arrivals=1)
            history.record(idle.report(), 0)
            assert await totals(history) == (11, 0, 0.0)

    asyncio.run(main())


def test_reporters_of_one_function_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic_file, "MAX_REPORTERS", 3)

    async def main() -> None:
        clock, registry = Clock(), Deployed("f")
        async with opened(tmp_path, clock) as history:
            for number in range(9):
                reporter = Reporter(f"r{number}")
                reporter.count(arrivals=1)
                history.record(reporter.report(), 0)
                history.record(Reporter(f"empty{number}").report(), 0)
                await history.prune(registry)
                clock.now_s += 10
            assert {reporter for _, reporter in history._file.counters()} == {"r6", "r7", "r8"}
            assert len(history._counted) <= 3 + 1
            assert await totals(history) == (9, 0, 0.0)

    asyncio.run(main())


def test_rows_are_bounded_over_all_functions(tmp_path: Path) -> None:
    file = TrafficFile(tmp_path / "traffic.sqlite", max_rows=10)
    now = Clock().minute
    for name in ("f", "g"):
        file.replace(name, [Minute(minute=now - back, arrivals=1) for back in range(9, -1, -1)])
    file.prune(deployed={"f", "g"}, heard=[], now_s=now * 60.0)
    kept = [each.minute for name in ("f", "g") for each in file.read(name, *EVER)]
    assert kept == [*range(now - 4, now + 1)] * 2
    file.close()


def test_a_file_of_something_else_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "traffic.sqlite"
    path.write_bytes(b"not a database, but long enough to look at" * 50)
    with pytest.raises(GlowplugError, match=r"traffic\.sqlite: the traffic history is corrupt"):
        Traffic(path)


def test_it_writes_and_prunes_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "FLUSH_S", 0.01)

    async def main() -> None:
        async with opened(tmp_path, Clock()) as history, asyncio.timeout(10):
            loop, written = asyncio.get_running_loop(), asyncio.Event()
            write = history._file.write

            def watched(*rows: Any, **options: Any) -> None:
                write(*rows, **options)
                loop.call_soon_threadsafe(written.set)

            monkeypatch.setattr(history._file, "write", watched)
            one = Reporter("a")
            await history.start(Deployed("f"))
            for number in (1, 2):
                written.clear()
                one.count(arrivals=4)
                history.record(one.report(), 0)
                await written.wait()
                with contextlib.closing(sqlite3.connect(tmp_path / "traffic.sqlite")) as stored:
                    rows = stored.execute("SELECT arrivals FROM minutes").fetchall()
                assert rows == [(4 * number,)]

    asyncio.run(main())
