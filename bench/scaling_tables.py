"""The tables of bench/scaling.py, for people."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scaling_figures import Ratio, Row
from scaling_world import OURS

if TYPE_CHECKING:
    from rich.table import Table as RichTable

_WIDTH = 118


def show(
    rows: Sequence[Row],
    ratios: dict[str, dict[str, Ratio]],
    bound: dict[str, Ratio | None],
    points: Sequence[dict[str, float]],
    speed: Sequence[dict[str, float | str]],
) -> None:
    """Everything that was measured."""
    from rich.console import Console

    console = Console(width=_WIDTH, highlight=False)
    for setting in dict.fromkeys((row.part, row.traffic, row.cost_s) for row in rows):
        mine = [row for row in rows if (row.part, row.traffic, row.cost_s) == setting]
        console.print(_setting(mine))
    if points:
        console.print(_curve(points))
    for each in speed:
        console.print(
            f"a week of {each['functions']} functions, {each['requests']} requests, through "
            f"plan(), predictive {each['predictive']}: {each['wall_s']:.1f} s "
            f"({each['processor_s']:.1f} s of processor time)"
        )
    if ratios:
        console.print(_ratios(ratios, bound))


def _table(title: str, *columns: str) -> "RichTable":
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    table.add_column(columns[0])
    for column in columns[1:]:
        table.add_column(column, justify="right")
    return table


def _setting(rows: Sequence[Row]) -> "RichTable":
    first = rows[0]
    table = _table(
        f"\n{first.part}: {first.traffic}, λ = {first.cost_s:g} s, {first.seeds} seeds "
        "(* cannot be done)",
        "POLICY",
        "J",
        "/ BEST FIXED",
        "COLD/WAKE",
        "COLD/REQUEST",
        "WAIT p50",
        "p95",
        "p99, s",
        "WASTED, s",
        "STARTS",
    )
    for row in rows:
        over = row.over_best_fixed
        table.add_row(
            row.policy,
            f"{row.J:.0f}",
            "–" if over is None else f"{over:.2f}",
            f"{row.cold_per_wake:.1%}",
            f"{row.cold_per_request:.1%}",
            f"{row.wait_p50_s:.3f}",
            f"{row.wait_p95_s:.3f}",
            f"{row.wait_p99_s:.3f}",
            f"{row.wasted_s:.0f}",
            f"{row.starts:.0f}",
            style="bold" if row.policy == OURS else None,
        )
    return table


def _curve(points: Sequence[dict[str, float]]) -> "RichTable":
    titles = (OURS, "best_fixed", "KPA", "clairvoyant")
    table = _table(
        "\ncurve: a cold start is worth 100 times its length; J, and cold starts per wake",
        "RESTORE",
        *(title.replace("_", " ").upper() for title in titles),
    )
    for point in points:
        cells = (
            f"{point[f'{title}_J']:.0f}  {point[f'{title}_cold_per_wake']:4.0%}" for title in titles
        )
        table.add_row(f"{point['start_s']:g} s", *cells)
    return table


def _ratios(ratios: dict[str, dict[str, Ratio]], bound: dict[str, Ratio | None]) -> "RichTable":
    table = _table(
        "\ngeometric means of J over that of others (best fixed: in hindsight, setting by setting)",
        "",
        "MEAN",
        "95%",
        "WORST",
        "SETTINGS",
    )
    named = [(f"{part} {name}", r) for part, each in ratios.items() for name, r in each.items()]
    named += [(f"seasonal {name}, known rate*", ratio) for name, ratio in bound.items() if ratio]
    for name, ratio in named:
        table.add_row(
            name.replace("_", " "),
            f"{ratio.mean:.3f}",
            f"{ratio.low:.3f} … {ratio.high:.3f}",
            f"{ratio.worst:.3f}",
            str(ratio.settings),
        )
    return table
