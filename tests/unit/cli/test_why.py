"""glowplug why against the real control API, over a scaler that says what a test tells it."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from stand_ins import Scaler, serving

from activator.app import build_app
from activator.auth import Identity
from glowplug.cli import why as command
from glowplug.cli.main import run
from glowplug.client import Client
from glowplug.contracts import PrewarmRun
from glowplug.errors import NotFound
from glowplug.explanation import (
    BreakerInput,
    Cause,
    Event,
    EventKind,
    Explanation,
    FloorInput,
    Inputs,
    NextChange,
    not_decided,
)
from scaler.registry import SqliteRegistry

Output = pytest.CaptureFixture[str]

AT_S = 1893456000.0  # 2030-01-01T00:00Z
INPUTS = Inputs(
    in_flight=0,
    queued=2,
    arrivals=1,
    starting=0,
    ready=0,
    outdated=0,
    needed=1,
    idle_s=0.0,
    next_call_s=None,
    cold_start_cost_s=None,
    idle_limit_s=None,
)


def happened(number: int, kind: EventKind, reason: str = "", **fields: object) -> Event:
    return Event(id=number, at_s=AT_S + number, kind=kind, reason=reason, **fields)  # type: ignore[arg-type]


STORY = (
    happened(1, EventKind.DEPLOYED, "revision 0123456789, generation 1"),
    happened(
        2,
        EventKind.DESIRED,
        "2 requests queued, none running",
        before=0,
        after=1,
        cause=Cause.REQUESTS,
        inputs=INPUTS,
    ),
    happened(3, EventKind.START_FAILED, "no [memory]", replica="smol-1a2b"),
)


@dataclass
class Told:
    """glowplug.explanation.Explanations; `explanation` None: it does not know the function yet."""

    explanation: Explanation | None

    def explain(self, function: str, *, limit: int) -> Explanation:
        if self.explanation is None:
            raise NotFound(function)
        return replace(self.explanation, events=self.explanation.events[:limit])


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    registry = SqliteRegistry(tmp_path / "registry.sqlite")
    scaler = Scaler(registry, "http://127.0.0.1:1")
    told = Told(replace(not_decided(AT_S), verdict="kept", events=STORY[::-1], inputs=INPUTS))
    app = build_app(registry=registry, endpoints=scaler, demand=scaler, explanations=told)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    with serving(app) as endpoint:
        monkeypatch.setenv("GLOWPLUG_ENDPOINT", endpoint)
        with Client(endpoint) as client:
            client.deploy({"name": "smol", "model": "/models/smol"})
        yield told
    registry.close()
    monkeypatch.undo()
    time.tzset()


def test_the_newest_last_and_then_now(told: Told, capsys: Output) -> None:
    assert run(["why", "smol"]) == 0
    head, *rows, _, now, inputs = capsys.readouterr().out.rstrip().splitlines()
    assert head.split() == ["WHEN", "WHAT", "WHY", "FROM"]
    cells = [[cell.strip() for cell in row.split("  ") if cell.strip()] for row in rows]
    assert cells == [
        ["01-01 00:00:01.0", "deployed", "revision 0123456789, generation 1"],
        [
            "01-01 00:00:02.0",
            "0 → 1",
            "2 requests queued, none running",
            "2 queued, 1 new",
        ],
        ["01-01 00:00:03.0", "start failed", "smol-1a2b: no [memory]"],
    ]
    assert (now, inputs) == ("now 0: kept", "from 2 queued, 1 new")


def test_what_is_next(told: Told, capsys: Output) -> None:
    floor = FloorInput(replicas=2, until_s=AT_S, reason="prewarm 'x' 08:00 UTC")
    breaker = BreakerInput(failures=3, deaths=0, open=True, retry_in_s=4.0, cause="no memory")
    told.explanation = replace(
        not_decided(AT_S),
        inputs=replace(
            INPUTS,
            idle_s=4.25,
            next_call_s=90.0,
            cold_start_cost_s=300.0,
            floors=[floor],
            breaker=breaker,
        ),
        next_change=NextChange(
            at_s=AT_S + 60, in_s=60, desired=1, cause=Cause.PREWARM, reason="prewarm 'x'"
        ),
        next_prewarm=PrewarmRun(
            name="x",
            launch_s=AT_S + 60,
            ready_by_s=AT_S + 64,
            until_s=AT_S + 3600,
            replicas=1,
            timezone="Europe/Berlin",
            active=False,
        ),
    )
    assert run(["why", "smol"]) == 0
    _, now, inputs, change, prewarm = capsys.readouterr().out.splitlines()
    assert now == "now 0: not decided yet"
    assert inputs == (
        "from 2 queued, 1 new, idle 4.2 s, next call expected in 2 min, a cold start costs 300 s, "
        "at least 2: prewarm 'x' 08:00 UTC, 3 failures, breaker open"
    )
    assert change == "next change: 01-01 00:01:00.0 → 1"
    assert prewarm == "next prewarm: 2030-01-01 01:01:00+01:00 for 'x', 1 replicas"


def test_json(told: Told, capsys: Output) -> None:
    assert run(["why", "smol", "--json", "--limit", "1"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["function"] == "smol"
    assert answer["now"] == {
        "at": "2030-01-01T00:00:00.000Z",
        "desired": 0,
        "reason": "not decided yet",
        "verdict": "kept",
        "next_change": None,
        "next_prewarm": None,
        "inputs": vars(INPUTS) | {"floors": []},
    }
    assert answer["data"] == [
        {
            "id": 3,
            "at": "2030-01-01T00:00:03.000Z",
            "event": "start_failed",
            "cause": None,
            "before": None,
            "after": None,
            "replica": "smol-1a2b",
            "reason": "no [memory]",
            "inputs": None,
        }
    ]


def test_follow(told: Told, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event once, also those of a function that is deleted and deployed again."""
    steps = [STORY[1::-1], STORY[1::-1], STORY[::-1], (), STORY[:1]]

    def pass_time(_: float) -> None:
        if not steps:
            raise KeyboardInterrupt
        assert told.explanation is not None
        told.explanation = replace(told.explanation, events=steps.pop(0))

    assert told.explanation is not None
    told.explanation = replace(told.explanation, events=())
    monkeypatch.setattr(command.time, "sleep", pass_time)
    assert run(["why", "smol", "--follow", "--json"]) == 130
    ids = [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()]
    assert ids == [1, 2, 3, 1]


def test_a_function_that_the_scaler_has_not_seen_yet(told: Told, capsys: Output) -> None:
    told.explanation = None
    assert run(["why", "smol"]) == 0
    assert capsys.readouterr().out.strip() == "now 0: not decided yet"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nobody"], "error: there is no function 'nobody'"),
        (["smol", "--limit", "0"], "error: limit: '0' is not a number from 1 to 100"),
        (["smol", "--limit", "101"], "error: limit: '101' is not a number from 1 to 100"),
        (["smol", "--limit", "-1"], "error: limit: '-1' is not a number from 1 to 100"),
    ],
)
def test_what_is_wrong_is_said(told: Told, arguments: list[str], said: str, capsys: Output) -> None:
    assert run(["why", *arguments]) == 1
    assert capsys.readouterr().err.startswith(said)


def test_only_an_admin_may_ask(tmp_path: Path, capsys: Output) -> None:
    registry = SqliteRegistry(tmp_path / "registry.sqlite")
    scaler = Scaler(registry, "http://127.0.0.1:1")
    keys = {
        "sk-user-0123456789": Identity("team", False),
        "sk-admin-012345678": Identity("o", True),
    }
    told = Told(not_decided(AT_S))
    app = build_app(
        registry=registry, endpoints=scaler, demand=scaler, keys=keys, explanations=told
    )
    with serving(app) as endpoint:
        with Client(endpoint, api_key="sk-admin-012345678") as client:
            client.deploy({"name": "smol", "model": "/models/smol"})
            assert client.decisions("smol")["data"] == []
        user = ["why", "smol", "--endpoint", endpoint, "--api-key", "sk-user-0123456789"]
        assert run(user) == 1
    registry.close()
    assert "admin" in capsys.readouterr().err
