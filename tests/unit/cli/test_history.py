"""`glowplug history` against the real control API and a real store."""

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from stand_ins import Platform

from glowplug.cli.main import run
from tests.unit.scaler.test_traces import AZURE, BURST, functions_header, functions_row

Output = pytest.CaptureFixture[str]
HEADER = "minute,arrivals,peak,finished,service_s\n"


@pytest.fixture(autouse=True)
def deployed(request: pytest.FixtureRequest, platform: Platform, capsys: Output) -> str:
    """A function without history yet: each test has its own, for history outlives functions."""
    name: str = request.node.name.replace("_", "-")
    assert run(["deploy", name, "--model", "/models/smol"]) == 0
    capsys.readouterr()
    return name


def ago(minutes: int) -> str:
    return f"{datetime.now(UTC) - timedelta(minutes=minutes):%Y-%m-%dT%H:%MZ}"


def rows(name: str, capsys: Output, *options: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run(["history", name, "--json", *options]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["function"] == name
    return said["minutes"]


def imported(name: str, file: Path, *options: str) -> int:
    return run(["history", "import", name, str(file), *options])


def test_in_out_and_shown(deployed: str, capsys: Output, tmp_path: Path) -> None:
    file = tmp_path / "f.csv"
    text = f"{HEADER}{ago(3000)},5,2,4,2.0\n{ago(125)},2,1,2,3.0\n{ago(1)},7,3,6,0.5\n"
    file.write_text(text)
    assert imported(deployed, file) == 0
    assert "imported 3 minutes, 14 requests" in capsys.readouterr().out
    assert run(["history", "export", deployed]) == 0
    assert capsys.readouterr().out == text
    assert run(["history", "export", deployed, "--since", "3h"]) == 0
    assert capsys.readouterr().out == HEADER + "".join(text.splitlines(keepends=True)[2:])
    assert [row["arrivals"] for row in rows(deployed, capsys, "--since", "1d")] == [2, 7]
    assert rows(deployed, capsys)[0]["minute"] == text.splitlines()[1].partition(",")[0]
    assert run(["history", deployed]) == 0
    table = capsys.readouterr().out
    assert [line.split()[-5:] for line in table.splitlines() if " s" in line][-1] == [
        *("14", "3", "12"),
        *("0.46", "s"),
    ]
    assert table.count(":00") == 3


def test_no_traffic(deployed: str, capsys: Output) -> None:
    assert run(["history", deployed, "--since", "2h"]) == 0
    assert capsys.readouterr().out == f"{deployed} had no requests in the last 2h\n"


def test_an_old_export_is_shifted_by_whole_weeks(
    deployed: str, capsys: Output, tmp_path: Path
) -> None:
    file = tmp_path / "f.csv"
    old = datetime(2019, 7, 15, 9, 30, tzinfo=UTC)  # a Monday
    lines = [
        f"{old + timedelta(weeks=week):%Y-%m-%dT%H:%MZ},{week},1,0,0.0\n" for week in range(10)
    ]
    file.write_text(HEADER + "".join(lines))
    assert imported(deployed, file) == 1
    assert "line 2: 2019-07-15T09:30Z is before the oldest" in capsys.readouterr().err
    assert imported(deployed, file, "--shift") == 0
    assert "left out: 2 minutes" in capsys.readouterr().err
    shown = rows(deployed, capsys, "--since", "56d")
    assert [row["arrivals"] for row in shown] == list(range(2, 10))
    whens = [datetime.fromisoformat(row["minute"]) for row in shown]
    assert {(when.weekday(), when.hour, when.minute) for when in whens} == {(0, 9, 30)}
    assert time.time() - whens[-1].timestamp() < 7 * 86_400


def test_azure_llm(deployed: str, capsys: Output, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(AZURE)
    assert imported(deployed, file, "--format", "azure-llm", "--shift", "--service", "10s") == 0
    first, second = rows(deployed, capsys)
    assert (first["arrivals"], first["peak"], first["finished"]) == (2, 2, 2)
    assert (second["arrivals"], second["service_s"]) == (1, 10.0)
    assert first["minute"].endswith("T18:17Z")


def test_burstgpt_has_no_dates(deployed: str, capsys: Output, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(BURST)
    options = ("--format", "burstgpt")
    assert imported(deployed, file, *options) == 1
    assert "it has no dates; give --start MINUTE or --shift" in capsys.readouterr().err
    start = ago(30)
    of_one = (*options, "--start", start, "--only", "ChatGPT", "--service", "1s")
    assert imported(deployed, file, *of_one) == 0
    assert [row["arrivals"] for row in rows(deployed, capsys)] == [1, 1]
    assert imported(deployed, file, *options, "--start", "today") == 1
    assert "--start: 'today' is not a minute in UTC" in capsys.readouterr().err


def test_azure_functions_need_a_choice(deployed: str, capsys: Output, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    counts: dict[int, object] = {1: 3, 2: 50, 600: 7}
    file.write_text(functions_header() + functions_row("a", {5: 1}) + functions_row("b", counts))
    options = ("--format", "azure-functions", "--shift")
    assert imported(deployed, file, *options) == 1
    assert "it has many functions; name one's hash with --only" in capsys.readouterr().err
    assert imported(deployed, file, *options, "--only", "c") == 1
    assert "it has no function c" in capsys.readouterr().err
    assert imported(deployed, file, *options, "--only", "b") == 0
    shown = rows(deployed, capsys)
    assert sum(row["arrivals"] for row in shown) == 60
    assert shown[0]["minute"].endswith("T00:00Z")
    assert max(row["peak"] for row in shown) > 1


def test_wrong_use(deployed: str, capsys: Output, tmp_path: Path) -> None:
    file = tmp_path / "f.csv"
    file.write_text("when,what\n")
    for arguments, code, said in (
        (["history", "import", deployed, str(file)], 1, f"{file} line 1: the first line must be"),
        (["history", "import", deployed, str(tmp_path / "no.csv")], 1, "/no.csv: No such file"),
        (["history", "import", deployed, str(file), "--format", "xls"], 2, "'xls' is not one of"),
        (["history", deployed, "--since", "soon"], 1, "since: 'soon' is not a duration"),
        (["history", "nobody"], 1, "there is no function 'nobody'"),
        (["history", "show"], 2, "Missing argument"),
    ):
        assert run(arguments) == code
        assert said in capsys.readouterr().err
    file.write_text(AZURE)
    for service in ("0s", "2d", "long"):
        options = ("--format", "azure-llm", "--shift", "--service", service)
        assert imported(deployed, file, *options) == 1
        assert "--service: " in capsys.readouterr().err
    assert run(["history", "--help"]) == 0
    assert "import" in capsys.readouterr().out
