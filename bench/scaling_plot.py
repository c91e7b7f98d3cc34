"""The Pareto plot of bench/scaling.py: what each policy wastes against how often it starts cold."""

import importlib.util
from collections import defaultdict
from collections.abc import Sequence
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scaling_figures import Row
from scaling_world import FIXED, OURS

from glowplug.cli.forecast_plot import check as check_format
from glowplug.errors import GlowplugError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HIDDEN = ("instant*", "just in time*")  # at the origin
_COLUMNS = 3


def check(path: Path) -> None:
    """That this can be drawn, before minutes are spent on what it shows."""
    try:
        check_format(path)
    except GlowplugError as error:
        raise SystemExit(str(error)) from None
    if not path.absolute().parent.is_dir():
        raise SystemExit(f"--plot {path}: there is no folder {path.absolute().parent}")
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("--plot: needs matplotlib; make install, or pip install matplotlib")


def draw(path: Path, rows: Sequence[Row], points: Sequence[dict[str, float]]) -> None:
    """One panel per traffic, where policies that ask what a cold start is worth have a point for
    each cost, and one for the curve over restore times."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # draws without a display
    from matplotlib.figure import Figure

    traffics = list(dict.fromkeys((row.part, row.traffic) for row in rows))
    panels = len(traffics) + bool(points)
    lines = -(-panels // _COLUMNS)
    figure = Figure(figsize=(6 * min(panels, _COLUMNS), 5 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(lines, min(panels, _COLUMNS), squeeze=False).flatten()
    for panel, (part, traffic) in zip(axes, traffics, strict=False):
        _pareto(panel, [row for row in rows if (row.part, row.traffic) == (part, traffic)])
        panel.set_title(f"{part}: {traffic}")
    if points:
        _curve(axes[len(traffics)], points)
    for panel in axes[panels:]:
        panel.set_axis_off()
    if path.suffix == ".png":
        figure.savefig(path, format="png", dpi=100)
        return
    drawn = StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    svg = drawn.getvalue()
    title = escape("Glowplug: scaling policies")
    path.write_text(
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f"<h1>{title}</h1>\n{svg[svg.index('<svg') :]}</html>\n",
        encoding="utf-8",
    )


def _pareto(axes: "Axes", rows: Sequence[Row]) -> None:
    from matplotlib.ticker import MaxNLocator

    points = defaultdict(dict)  # by policy: the points without those that say the same
    for row in rows:
        if row.policy not in _HIDDEN:
            points[row.policy][row.wasted_s, row.cold_per_wake] = row
    fixed = [point for name in FIXED for point in points.get(name, {}).items()]
    if fixed:
        axes.plot(*zip(*(at for at, _ in fixed), strict=True), "o-", color="#8a94a6", label="fixed")
        for at, row in fixed:
            _label(axes, row.policy.removeprefix("fixed "), at, color="#8a94a6")
    for name, found in points.items():
        if name in FIXED:
            continue
        style = "D-" if name == OURS else "s--" if len(found) > 1 else "s"
        color = "#d9480f" if name == OURS else None
        axes.plot(*zip(*found, strict=True), style, color=color, label=name, markersize=5)
        if name == OURS:
            for at, row in found.items():
                _label(axes, f"λ {row.cost_s:g}", at, color="#d9480f")
    axes.set_xlabel("wasted replica-seconds")
    axes.set_ylabel("cold starts per wake")
    # Roots: a mixture of two policies stays near the line between them, and small ones can be seen.
    axes.set_xscale("function", functions=(np.sqrt, np.square))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(color="#eee")
    axes.legend(fontsize=7)


def _label(axes: "Axes", text: str, at: tuple[float, float], *, color: str) -> None:
    axes.annotate(text, at, (4, 4), textcoords="offset points", fontsize=7, color=color)


def _curve(axes: "Axes", points: Sequence[dict[str, float]]) -> None:
    at = [point["start_s"] for point in points]
    rates = axes.twinx()
    for title, color in ((OURS, "#d9480f"), ("best_fixed", "#8a94a6"), ("KPA", "#1971c2")):
        label = title.replace("_", " ")
        axes.plot(at, [point[f"{title}_J"] for point in points], "o-", color=color, label=label)
        cold = [point[f"{title}_cold_per_wake"] for point in points]
        rates.plot(at, cold, "o:", color=color)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("restore time, s")
    axes.set_ylabel("J, replica-seconds (solid)")
    rates.set_ylabel("cold starts per wake (dotted)")
    rates.set_ylim(0, 1)
    axes.set_title("a cold start worth 100 times its length")
    axes.legend(fontsize=7)
