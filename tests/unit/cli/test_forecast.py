"""`glowplug forecast` against the real control API: table, JSON and plots have the real series."""

import json
import re
import sys
from collections.abc import Iterator
from datetime import datetime
from html.parser import HTMLParser
from zoneinfo import ZoneInfo

import pytest
from stand_ins import Scaler, replica_app, serving
from traffic import MemoryTraffic

from activator.app import build_app
from glowplug.cli.forecast_plot import BOTTOM, TOP, draw
from glowplug.cli.forecast_series import slices
from glowplug.cli.main import run
from glowplug.client import Client
from scaler.forecasts import Forecasts
from scaler.registry import SqliteRegistry
from scaler.simulate.seasonal import START_S, WEEK_S, weeks
from scaler.simulate.traffic import minutes_of

Output = pytest.CaptureFixture[str]
NOW_S = START_S + 4 * WEEK_S + 1000.0


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with four weeks of an evening function's traffic, and a function without any."""
    busy = weeks(7, 15)[14]
    traffic = MemoryTraffic({"busy": minutes_of(zip(busy.arrivals_s, busy.service_s, strict=True))})
    registry = SqliteRegistry(tmp_path_factory.mktemp("forecast") / "registry.sqlite")
    forecasts = Forecasts(registry=registry, reader=traffic, now=lambda: NOW_S)
    with serving(replica_app([], [])) as replica_url:
        scaler = Scaler(registry, replica_url)
        app = build_app(
            registry=registry, endpoints=scaler, demand=scaler, forecast=forecasts.report
        )
        with serving(app) as url:
            with Client(url) as client:
                client.deploy(
                    {
                        "name": "busy",
                        "model": "/m",
                        "timezone": busy.timezone,
                        "idle_s": 60,
                        "cold_start_cost_s": 300,
                    }
                )
                client.deploy({"name": "quiet", "model": "/m"})
            yield url
    registry.close()


@pytest.fixture
def report(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The API's answer; commands talk to the same server."""
    monkeypatch.setenv("GLOWPLUG_ENDPOINT", endpoint)
    with Client(endpoint) as client:
        return client.forecast("busy", hours=24)


class Page(HTMLParser):
    """The polylines of a page by id, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.lines: dict[str, tuple[float, list[tuple[float, float]]]] = {}
        self.text = ""
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.loads += [attributes[key] for key in ("src", "href") if key in attributes]
        if tag == "polyline":
            points = [
                tuple(float(number) for number in point.split(","))
                for point in attributes["points"].split()
            ]
            self.lines[attributes["id"]] = (float(attributes["data-top"]), points)

    def handle_data(self, data):
        self.text += data

    def values(self, name: str) -> list[float]:
        top, points = self.lines[name]
        return [(BOTTOM - y) / (BOTTOM - TOP) * top for _, y in points]


def test_json_is_the_apis_answer(report, capsys: Output) -> None:
    assert run(["forecast", "busy", "--hours", "24", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == report
    assert report["acts"] is True
    assert report["reason"].startswith("it pays: in 7 days ")
    assert report["backtest"]["forecast"]["cost_s"] < report["backtest"]["nothing"]["cost_s"]
    assert len(report["past"]["arrivals"]) == 2016
    assert len(report["ahead"]["chance"]) in range(24 * 12, 24 * 12 + 2)
    assert report["ahead"]["start"] == NOW_S // 300 * 300


def rows_of(table: str) -> list[list[str]]:
    """Cells of the rows that begin with a time."""
    return [line.split() for line in table.splitlines() if re.match(r"\s*\w{3} \d\d ", line)]


def test_the_table_has_what_came_and_what_is_foretold(report, capsys: Output, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert run(["forecast", "busy", "--hours", "24"]) == 0
    out = capsys.readouterr().out
    assert "the forecast is acted on (predictive auto" in out
    assert "doing nothing" in out
    past, ahead = out.split("the next 24 hours")
    rows = rows_of(past)
    assert len(rows) in range(42, 45)
    assert sum(int(row[5]) for row in rows) == sum(report["past"]["arrivals"])
    assert max(int(row[8]) for row in rows) == max(report["past"]["peak"])
    rows = [
        line.split() for line in ahead.splitlines() if re.match(r"\s*[A-Z][a-z]{2} \d\d ", line)
    ]
    assert len(rows) in (24, 25)
    assert sum(float(row[4]) for row in rows) == pytest.approx(
        sum(report["ahead"]["expected_arrivals"]), abs=1.5
    )


def test_the_page_has_the_series_and_loads_nothing(report, tmp_path, capsys: Output) -> None:
    path = tmp_path / "plot.html"
    assert run(["forecast", "busy", "--hours", "24", "--plot", str(path)]) == 0
    assert f"drawn to {path}" in capsys.readouterr().out
    page = Page(path.read_text())
    assert page.loads == []
    assert "the forecast is acted on" in page.text
    assert set(page.lines) == {"came", "foretold", "replicas"}
    points = slices(report, hours=0.5)
    came = [each.came / each.hours for each in points if each.came is not None]
    top = page.lines["came"][0]
    assert page.values("came") == pytest.approx(came, abs=top / 1000)
    assert page.values("foretold") == pytest.approx(
        [each.foretold / each.hours for each in points], abs=top / 1000
    )
    assert page.values("replicas") == pytest.approx([each.replicas for each in points], abs=0.01)
    assert max(page.values("replicas")) >= 1
    xs = [x for x, _ in page.lines["foretold"][1]]
    assert xs == sorted(xs)


def test_the_picture_decodes_and_has_all_three_colours(report, tmp_path) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    from PIL import Image

    path = tmp_path / "plot.png"
    assert run(["forecast", "busy", "--plot", str(path)]) == 0
    with Image.open(path) as image:
        image.load()
        assert image.size == (1200, 600)
        colours = {colour for _, colour in image.convert("RGB").getcolors(maxcolors=2**20)}
    assert {(0x8A, 0x94, 0xA6), (0xD9, 0x48, 0x0F), (0x19, 0x71, 0xC2)} <= colours


def test_png_without_matplotlib_names_the_fix(
    report, tmp_path, capsys: Output, monkeypatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = tmp_path / "plot.png"
    assert run(["forecast", "busy", "--plot", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "pip install 'glowplug[plot]'" in captured.err
    assert not path.exists()


def test_a_plot_of_another_kind_is_refused(report, tmp_path, capsys: Output) -> None:
    assert run(["forecast", "busy", "--plot", str(tmp_path / "plot.pdf")]) == 1
    assert "end it in .html or .png" in capsys.readouterr().err


def test_a_function_without_traffic_says_so(report, tmp_path, capsys: Output) -> None:
    path = tmp_path / "plot.html"
    assert run(["forecast", "quiet", "--plot", str(path)]) == 0
    out = capsys.readouterr().out
    assert "not acted on (predictive auto, UTC): no traffic history yet" in out
    assert "is not drawn" in out
    assert not path.exists()


@pytest.mark.parametrize("suffix", [".html", ".png"])
def test_a_young_function_is_drawn_without_a_past(report, tmp_path, suffix: str) -> None:
    if suffix == ".png":
        pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    young = {**report, "past": None, "backtest": None, "reason": "young & <new>"}
    points = slices(young, hours=0.5)
    assert all(each.came is None and each.peak is None for each in points)
    path = tmp_path / f"plot{suffix}"
    draw(path, young, points)
    assert path.stat().st_size > 1000
    if suffix == ".html":
        page = Page(path.read_text())
        assert page.lines["came"][1] == []
        assert "young & <new>" in page.text


def test_slices_are_cut_by_the_zones_clock() -> None:
    """Kolkata is half an hour off, Berlin's 29 March has 23 hours."""

    def cut(zone: str, start: str, bins: int, hours: float) -> list[tuple[str, float]]:
        start_s = datetime.fromisoformat(start).replace(tzinfo=ZoneInfo(zone)).timestamp()
        zeros = [0.0] * bins
        series = {
            "start": start_s,
            "chance": zeros,
            "expected_arrivals": zeros,
            "replicas": [0] * bins,
        }
        shown = {"timezone": zone, "bin_s": 300, "past": None, "ahead": series}
        return [(f"{each.start:%H:%M}", each.hours) for each in slices(shown, hours=hours)]

    kolkata = cut("Asia/Kolkata", "2026-03-01T10:20", 20, 1)
    assert [at for at, _ in kolkata] == ["10:20", "11:00"]
    assert [hours for _, hours in kolkata] == pytest.approx([8 / 12, 1])
    berlin = cut("Europe/Berlin", "2026-03-29T00:00", 23 * 12, 4)
    assert berlin == [
        ("00:00", 3),
        ("04:00", 4),
        ("08:00", 4),
        ("12:00", 4),
        ("16:00", 4),
        ("20:00", 4),
    ]


@pytest.mark.parametrize("hours", ["0", "169", "x"])
def test_hours_out_of_range_are_refused(report, hours: str, capsys: Output) -> None:
    assert run(["forecast", "busy", "--hours", hours]) == 2
    assert "--hours" in capsys.readouterr().err


def test_an_unknown_function(report, capsys: Output) -> None:
    assert run(["forecast", "nobody"]) == 1
    assert "nobody" in capsys.readouterr().err
