"""`glowplug forecast`: what is foretold of a function, beside what came."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glowplug.cli.options import DEFAULT_ENDPOINT, ApiKey, AsJson, Endpoint, FunctionName

if TYPE_CHECKING:
    from rich.table import Table

    from glowplug.cli.forecast_series import Slice
    from glowplug.client import Json

PAST_HOURS = 4  # a row
PLOT_HOURS = 0.5  # a point


def forecast(
    name: FunctionName,
    *,
    hours: Annotated[
        int, typer.Option(metavar="N", min=1, max=168, help="How far to look ahead.")
    ] = 48,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw it: FILE.html, or FILE.png with the plot extra."),
    ] = None,
    as_json: AsJson = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    api_key: ApiKey = None,
) -> None:
    """Show what is foretold of a function beside what came, and whether it is acted on."""
    from glowplug.cli.forecast_plot import check, draw
    from glowplug.cli.forecast_series import slices
    from glowplug.client import Client

    if plot is not None:
        check(plot)
    with Client(endpoint, api_key=api_key) as client:
        report = client.forecast(name, hours=hours)
    drawn = plot is not None and report["ahead"] is not None
    if plot is not None and drawn:
        draw(plot, report, slices(report, hours=PLOT_HOURS))
    if as_json:
        typer.echo(json.dumps(report))
        return
    for line in summary(report):
        typer.echo(line)
    if report["ahead"] is None:
        if plot is not None:
            typer.echo(f"{plot} is not drawn: nothing is foretold yet")
        return
    from glowplug.cli.views import show

    past = [each for each in slices(report, hours=PAST_HOURS) if each.came is not None]
    ahead = [each for each in slices(report, hours=1) if each.came is None]
    if past:
        show(_table("the past week, foretold ten minutes ahead", past))
    show(_table(f"the next {hours} hours", ahead))
    if drawn:
        typer.echo(f"drawn to {plot}")


def summary(report: "Json") -> list[str]:
    """What it comes to, in a few lines."""
    acts = "acted on" if report["acts"] else "not acted on"
    lines = [
        f"{report['function']}: the forecast is {acts} (predictive {report['predictive']}, "
        f"{report['timezone']}): {report['reason']}"
    ]
    tested = report["backtest"]
    if tested is not None:
        costs = ", ".join(
            f"{title} {tested[key]['cost_s'] / 3600:.1f} h ({tested[key]['cold_starts']} cold "
            f"starts, {tested[key]['unused_s'] / 3600:.1f} h unused)"
            for key, title in (
                ("nothing", "doing nothing"),
                ("last_value", "last value"),
                ("forecast", "this forecast"),
            )
        )
        lines.append(
            f"backtest, in replica-hours with a cold start worth "
            f"{tested['cold_start_worth_s']:g} s: {costs}"
        )
    return lines


def _table(title: str, rows: "list[Slice]") -> "Table":
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    table.add_column("FROM", no_wrap=True)
    for column in ("REQUESTS FORETOLD", "CAME", "CHANCE IN 5 MIN", "REPLICAS FORETOLD", "PEAK"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            f"{row.start:%a %d %b %H:%M}",
            f"{row.foretold:.1f}",
            "–" if row.came is None else str(row.came),
            f"{row.chance:.0%}",
            str(row.replicas),
            "–" if row.peak is None else str(row.peak),
        )
    return table
