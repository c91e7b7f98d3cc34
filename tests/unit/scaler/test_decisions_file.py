"""The decision log on disk: what a restart finds."""

import asyncio
import sqlite3
from dataclasses import replace

import pytest

from glowplug.contracts import Function
from glowplug.errors import GlowplugError
from glowplug.explanation import KEPT, BreakerInput, Cause, Event, EventKind, FloorInput, Inputs
from glowplug.spec import FunctionSpec
from scaler.decisions import DecisionLog
from scaler.decisions_file import DecisionsFile, KeptDecisions

FULL = Event(
    id=1,
    at_s=1893456000.125,
    kind=EventKind.DESIRED,
    reason="prewarm 'früh' 08:00 Europe/Berlin",
    before=0,
    after=2,
    cause=Cause.PREWARM,
    replica="f-1",
    inputs=Inputs(
        in_flight=1,
        queued=2,
        arrivals=3,
        starting=4,
        ready=5,
        outdated=6,
        needed=1,
        idle_s=0.5,
        next_call_s=9.0,
        cold_start_cost_s=300.0,
        idle_limit_s=None,
        floors=[FloorInput(replicas=2, until_s=None, reason="prewarm")],
        breaker=BreakerInput(failures=3, deaths=0, open=True, retry_in_s=4.0, cause="no memory"),
    ),
)


def event(number):
    return replace(FULL, id=number)


class Registry:
    """Only what is deployed."""

    def __init__(self, *names):
        self.names = names

    async def list(self):
        return [function(name) for name in self.names]


def function(name):
    return Function(spec=FunctionSpec(name=name, model="/m"), generation=1)


def test_what_is_written_is_read(tmp_path):
    file = DecisionsFile(tmp_path / "decisions.sqlite")
    file.write([], [("f", FULL), ("g", event(7))])
    file.close()
    file = DecisionsFile(tmp_path / "decisions.sqlite")
    assert file.read() == {"f": [FULL], "g": [event(7)]}
    file.close()


def test_the_newest_are_kept(tmp_path):
    file = DecisionsFile(tmp_path / "decisions.sqlite")
    for first in range(1, 251, 50):
        file.write([], [("f", event(number)) for number in range(first, first + 50)])
    file.write([], [("g", event(1))])
    found = file.read()
    assert [each.id for each in found["f"]] == list(range(251 - KEPT, 251))
    assert len(found["g"]) == 1
    file.close()


def test_what_is_deleted_goes_before_what_is_new(tmp_path):
    file = DecisionsFile(tmp_path / "decisions.sqlite")
    file.write([], [("f", event(number)) for number in range(1, 9)])
    file.write(["f"], [("f", event(1))])
    assert file.read() == {"f": [event(1)]}
    file.close()


def test_what_another_version_wrote_is_left_out(tmp_path):
    path = tmp_path / "decisions.sqlite"
    file = DecisionsFile(path)
    file.write([], [("f", FULL)])
    file.close()
    with sqlite3.connect(path) as connection:
        connection.execute('INSERT INTO events VALUES (\'f\', 2, \'{"id": 2, "kind": "hm"}\')')
    file = DecisionsFile(path)
    assert file.read() == {"f": [FULL]}
    file.close()


def test_a_file_that_is_none(tmp_path):
    path = tmp_path / "decisions.sqlite"
    path.write_text("not SQLite, but long enough to be looked at" * 100)
    with pytest.raises(GlowplugError, match="the decision log is corrupt"):
        KeptDecisions(path)


def test_over_a_restart(tmp_path):
    async def first():
        kept = KeptDecisions(tmp_path / "decisions.sqlite")
        await kept.start(Registry("f", "gone"))
        kept.log.deployed(function("f"))
        kept.log.deployed(function("gone"))
        kept.log.note("f", EventKind.READY, "after 0.1 s")
        await kept.stop()

    async def second():
        kept = KeptDecisions(tmp_path / "decisions.sqlite")
        await kept.start(Registry("f"))
        kept.log.deployed(function("f"), starting=True)
        found = kept.log.of("f"), kept.log.of("gone")
        await kept.stop()
        return found

    asyncio.run(first())
    events, gone = asyncio.run(second())
    assert gone == []
    assert [(each.id, each.kind) for each in events] == [
        (3, EventKind.SERVER_STARTED),
        (2, EventKind.READY),
        (1, EventKind.DEPLOYED),
    ]
    file = DecisionsFile(tmp_path / "decisions.sqlite")
    assert list(file.read()) == ["f"]
    file.close()


def test_a_file_that_cannot_be_written_is_written_later(tmp_path, caplog):
    path = tmp_path / "decisions.sqlite"

    async def scenario():
        kept = KeptDecisions(path)
        await kept.start(Registry("f"))
        kept.log.deployed(function("f"))
        with sqlite3.connect(path) as other:
            other.execute("ALTER TABLE events RENAME TO hidden")
        await kept._flush()
        assert "will be again" in caplog.text
        kept.log.note("f", EventKind.READY, "")
        with sqlite3.connect(path) as other:
            other.execute("ALTER TABLE hidden RENAME TO events")
        await kept.stop()

    asyncio.run(scenario())
    file = DecisionsFile(path)
    assert [each.id for each in file.read()["f"]] == [1, 2]
    file.close()


def test_what_comes_back_keeps_its_order():
    log = DecisionLog()
    log.deployed(function("f"))
    log.deployed(function("g"))
    taken = log.take_unwritten()
    log.note("f", EventKind.READY, "")
    log.forget("g")
    log.give_back(*taken)
    forgotten, events = log.take_unwritten()
    assert forgotten == {"g"}
    assert [(name, event.id) for name, event in events] == [("f", 1), ("f", 2)]
    assert log.take_unwritten() == (set(), [])
