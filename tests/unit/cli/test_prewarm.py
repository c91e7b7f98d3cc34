"""glowplug prewarm against the real control API and registry."""

import json
from pathlib import Path
from typing import Any

import pytest
from stand_ins import Platform

from glowplug.cli.main import run
from glowplug.cli.prewarm_views import span
from glowplug.client import Client

Output = pytest.CaptureFixture[str]
MORNING = ["--cron", "0 8 * * 1-5", "--duration", "2h", "--timezone", "Europe/Berlin"]


@pytest.fixture(autouse=True)
def deployed(platform: Platform, capsys: Output) -> None:
    assert run(["deploy", "smol", "--model", "/models/smol", "--max", "3"]) == 0
    capsys.readouterr()


def add(name: str = "morning", *options: str) -> int:
    return run(["prewarm", "add", "smol", name, *(options or MORNING)])


def schedules(platform: Platform) -> list[dict[str, Any]]:
    with Client(platform.endpoint) as client:
        spec: list[dict[str, Any]] = client.function("smol")["spec"]["schedules"]
        return spec


def test_add(platform: Platform, capsys: Output) -> None:
    assert add("morning", *MORNING, "--replicas", "2") == 0
    assert capsys.readouterr().out == "morning of smol is waiting\n"
    assert schedules(platform) == [
        {
            "name": "morning",
            "cron": "0 8 * * 1-5",
            "at": None,
            "duration": 7200.0,
            "timezone": "Europe/Berlin",
            "min_replicas": 2,
            "enabled": True,
        }
    ]


def test_add_again_changes_it(platform: Platform) -> None:
    assert add() == 0
    assert add("noon", "--cron", "0 12 * * *", "--duration", "1h") == 0
    assert add("morning", "--at", "2028-03-01T08:00", "--duration", "30m", "--paused") == 0
    first, second = schedules(platform)
    assert (first["name"], first["cron"], first["enabled"]) == ("morning", None, False)
    assert (first["at"], first["duration"], first["timezone"]) == ("2028-03-01T08:00", 1800, "UTC")
    assert second["name"] == "noon"


def test_pause_and_resume(platform: Platform, capsys: Output) -> None:
    add()
    before = schedules(platform)
    assert run(["prewarm", "pause", "smol", "morning"]) == 0
    assert capsys.readouterr().out.endswith("morning of smol is paused\n")
    assert schedules(platform) == [before[0] | {"enabled": False}]
    assert run(["prewarm", "resume", "smol", "morning", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spec"]["enabled"] is True
    assert schedules(platform) == before


def test_ls(platform: Platform, capsys: Output) -> None:
    assert run(["prewarm", "ls", "smol"]) == 0
    assert capsys.readouterr().out.startswith("smol has no prewarms; add one with")
    add("morning", *MORNING, "--paused")
    capsys.readouterr()
    assert run(["prewarm", "ls", "smol"]) == 0
    head, row, *_ = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["NAME", "WHEN", "ZONE", "FOR"]
    assert row.split()[0] == "morning"
    assert "paused" in row
    assert run(["prewarm", "ls", "smol", "--json"]) == 0
    (prewarm,) = json.loads(capsys.readouterr().out)
    assert (prewarm["name"], prewarm["function"], prewarm["state"]) == ("morning", "smol", "paused")
    assert prewarm["runs"] == []


def test_rm(platform: Platform, capsys: Output) -> None:
    add()
    assert run(["prewarm", "rm", "smol", "morning"]) == 0
    assert capsys.readouterr().out.endswith("morning of smol deleted\n")
    assert schedules(platform) == []
    assert run(["prewarm", "rm", "smol", "morning"]) == 1
    assert "the function smol has no prewarm 'morning'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["add", "smol", "x", "--duration", "1h"], "error: the prewarm says neither cron nor at"),
        (
            ["add", "smol", "x", "--cron", "0 8 * *", "--duration", "1h"],
            "error: cron: '0 8 * *' does not have five fields",
        ),
        (
            ["add", "smol", "x", *MORNING, "--replicas", "4"],
            "error: min_replicas: the prewarm 'x' wants 4, over max_replicas 3",
        ),
        (["add", "smol", "X", *MORNING], "error: name: use lower-case letters"),
        (["add", "smol", "a/b", *MORNING], "error: name: 'a/b' cannot be a prewarm's name"),
        (["add", "nobody", "x", *MORNING], "error: there is no function 'nobody'"),
        (["ls", "nobody"], "error: there is no function 'nobody'"),
        (["pause", "smol", "x"], "error: the function smol has no prewarm 'x'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    platform: Platform, arguments: list[str], said: str, capsys: Output
) -> None:
    assert run(["prewarm", *arguments]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(said)
    assert shown.count("\n") == 1
    assert schedules(platform) == []


def test_a_deploy_keeps_them_until_it_has_its_own(
    platform: Platform, tmp_path: Path, capsys: Output
) -> None:
    add()
    deploy = ["deploy", "smol", "--model", "/models/smol", "--max", "3"]
    assert run([*deploy, "--idle", "5s"]) == 0
    assert [each["name"] for each in schedules(platform)] == ["morning"]
    file = tmp_path / "prewarms.json"
    file.write_text('[{"name": "night", "cron": "0 22 * * *", "duration": "1h"}]')
    assert run([*deploy, "--schedules", str(file)]) == 0
    assert [each["name"] for each in schedules(platform)] == ["night"]
    file.write_text('[{"name": "night", "cron": "0 25 * * *", "duration": "1h"}]')
    assert run([*deploy, "--schedules", str(file)]) == 1
    assert "error: schedules.0.cron: '0 25 * * *'" in capsys.readouterr().err
    file.write_text("[")
    assert run([*deploy, "--schedules", str(file)]) == 1
    assert "is not JSON" in capsys.readouterr().err
    assert run([*deploy, "--schedules", str(tmp_path / "none")]) == 1
    assert "cannot be read" in capsys.readouterr().err
    file.write_text("[]")
    assert run([*deploy, "--schedules", str(file)]) == 0
    assert schedules(platform) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(60, "1m"), (7200, "2h"), (5400, "1h30m"), (93_784, "1d2h3m4s"), (604_800, "7d")],
)
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text
