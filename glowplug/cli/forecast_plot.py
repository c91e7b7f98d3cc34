"""Plots of a forecast: a page of its own with inline SVG, or a PNG through matplotlib."""

import importlib.util
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from glowplug.errors import GlowplugError, InvalidRequest

if TYPE_CHECKING:
    from glowplug.cli.forecast_series import Slice
    from glowplug.client import Json

WIDTH, HEIGHT, LEFT, TOP = 1100, 220, 60, 20  # of one panel, in pixels; its margins
BOTTOM = HEIGHT - TOP
CAME, FORETOLD, REPLICAS = "#8a94a6", "#d9480f", "#1971c2"

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 14px system-ui, sans-serif; margin: 2em auto; max-width: 1180px; }}
svg {{ width: 100%; height: auto; }}
polyline {{ fill: none; stroke-width: 1.5; }}
.grid {{ stroke: #ddd; }}
.now {{ stroke: #333; stroke-dasharray: 4 3; }}
text {{ font: 11px system-ui, sans-serif; fill: #555; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{summary}</p>
{panels}
</body>
</html>
"""


def check(path: Path) -> None:
    """That this can be drawn, before anything is asked for.

    Raises:
        InvalidRequest: neither .html nor .png.
        GlowplugError: .png without matplotlib.
    """
    if path.suffix not in (".html", ".png"):
        raise InvalidRequest(f"--plot {path}: end it in .html or .png")
    if path.suffix == ".png" and importlib.util.find_spec("matplotlib") is None:
        raise GlowplugError(
            "--plot: PNG needs matplotlib; pip install 'glowplug[plot]', or draw an .html"
        )


def draw(path: Path, report: "Json", slices: "Sequence[Slice]") -> None:
    """Write the plot. Raises OSError."""
    if path.suffix == ".png":
        _png(path, report, slices)
    else:
        path.write_text(html(report, slices), encoding="utf-8")


def html(report: "Json", slices: "Sequence[Slice]") -> str:
    """A page that needs nothing else. Each series is a polyline with the id of the series."""
    from glowplug.cli.forecast import summary

    came = [each for each in slices if each.came is not None]
    panels = [
        _panel(
            "requests per hour",
            report["now"],
            slices,
            [
                ("came", CAME, came, lambda each: (each.came or 0) / each.hours),
                ("foretold", FORETOLD, slices, lambda each: each.foretold / each.hours),
            ],
        ),
        _panel(
            "replicas foretold",
            report["now"],
            slices,
            [("replicas", REPLICAS, slices, lambda each: float(each.replicas))],
        ),
    ]
    return _PAGE.format(
        title=escape(_title(report)),
        summary="<br>".join(escape(line) for line in summary(report)),
        panels="\n".join(panels),
    )


def _panel(
    title: str,
    now_s: float,
    slices: "Sequence[Slice]",
    series: "Sequence[tuple[str, str, Sequence[Slice], Callable[[Slice], float]]]",
) -> str:
    first_s, last_s = slices[0].middle_s, max(slices[-1].middle_s, slices[0].middle_s + 1)
    top = max((value(each) for _, _, points, value in series for each in points), default=0) or 1

    def x(at_s: float) -> float:
        return LEFT + (at_s - first_s) / (last_s - first_s) * (WIDTH - LEFT)

    def y(value: float) -> float:
        return TOP + (1 - value / top) * (BOTTOM - TOP)

    parts = []
    for share in (0, 0.5, 1):
        at = y(top * share)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{top * share:.3g}</text>'
        )
    for before, each in pairwise(slices):
        if before.start.date() != each.start.date():
            at = x(each.start.timestamp())
            parts.append(
                f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{BOTTOM}"/>'
            )
            parts.append(f'<text x="{at + 3:.1f}" y="{HEIGHT - 6}">{each.start:%a %d %b}</text>')
    if first_s < now_s < last_s:
        at = x(now_s)
        parts.append(f'<line class="now" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{BOTTOM}"/>')
    for place, (name, color, points, value) in enumerate(series):
        line = " ".join(f"{x(each.middle_s):.1f},{y(value(each)):.2f}" for each in points)
        parts.append(
            f'<polyline id="{name}" data-top="{top:.6g}" stroke="{color}" points="{line}"/>'
        )
        parts.append(
            f'<text x="{WIDTH - 80}" y="{12 + 13 * place}" style="fill: {color}">{name}</text>'
        )
    body = "\n".join(parts)
    return f'<h2>{title}</h2>\n<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n{body}\n</svg>'


def _title(report: "Json") -> str:
    return f"{report['function']}: forecast ({report['timezone']})"


def _png(path: Path, report: "Json", slices: "Sequence[Slice]") -> None:
    from datetime import datetime

    from matplotlib.backends.backend_agg import FigureCanvasAgg  # draws without a display
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    zone = slices[0].start.tzinfo
    at = [datetime.fromtimestamp(each.middle_s, zone) for each in slices]
    came = [each for each in slices if each.came is not None]
    above.plot(
        [datetime.fromtimestamp(each.middle_s, zone) for each in came],
        [(each.came or 0) / each.hours for each in came],
        color=CAME,
        label="came",
    )
    above.plot(
        at, [each.foretold / each.hours for each in slices], color=FORETOLD, label="foretold"
    )
    above.set_ylabel("requests per hour")
    above.legend()
    above.set_title(_title(report))
    below.step(at, [each.replicas for each in slices], where="mid", color=REPLICAS)
    below.set_ylabel("replicas foretold")
    for axes in (above, below):
        axes.axvline(datetime.fromtimestamp(report["now"], zone), color="#333", linestyle="--")
        axes.set_ylim(bottom=0)
    below.xaxis.axis_date(tz=zone)
    figure.savefig(path, format="png", dpi=100)
