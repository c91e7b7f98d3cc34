"""How scheduled prewarms and their runs look to a person (rich)."""

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from glowplug.client import Json

STATE_STYLES = {"active": "green", "paused": "yellow", "over": "dim"}


def prewarm_table(prewarms: "Sequence[Json]") -> Table:
    """One row a prewarm, with the run that is on or next."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in (
        "NAME",
        "WHEN",
        "ZONE",
        "FOR",
        "REPLICAS",
        "STATE",
        "READY BY",
        "LAUNCH",
        "UNTIL",
    ):
        table.add_column(column, overflow="fold")
    for prewarm in prewarms:
        spec, state = prewarm["spec"], prewarm["state"]
        ready_by, launch, until = _times(prewarm["runs"][0]) if prewarm["runs"] else ("–",) * 3
        table.add_row(
            prewarm["name"],
            escape(spec["cron"] or spec["at"]),
            spec["timezone"],
            span(spec["duration"]),
            str(spec["min_replicas"]),
            f"[{STATE_STYLES.get(state, 'default')}]{state}[/]",
            ready_by,
            launch,
            until,
        )
    return table


def run_table(runs: "Sequence[Json]") -> Table:
    """The next runs of all prewarms of a function, and those that are on."""
    table = Table(title="prewarms", title_justify="left", box=None, header_style="dim")
    for column in ("", "replicas", "ready by", "zone", "launch", "until", ""):
        table.add_column(column)
    for run in runs:
        ready_by, launch, until = _times(run)
        table.add_row(
            run["name"],
            str(run["replicas"]),
            ready_by,
            run["timezone"],
            launch,
            until,
            "active" if run["active"] else "",
            style="green" if run["active"] else None,
        )
    return table


def _times(run: "Json") -> tuple[str, str, str]:
    """Ready by, launch and until; of the last two the date only where it is another."""
    date, _, _ = run["ready_by"].partition("T")

    def short(text: str) -> str:
        day, _, time = text.partition("T")
        return time[:8] if day == date else f"{day} {time[:8]}"

    return run["ready_by"].replace("T", " "), short(run["launch"]), short(run["until"])


def span(seconds: float) -> str:
    """A duration as a user writes it: 1d2h, 90m is 1h30m."""
    rest, parts = round(seconds), []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
