"""`glowplug history`: what a function's traffic was; as a table, and as a CSV file out and in."""

import json
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from glowplug.cli.options import DEFAULT_ENDPOINT, ApiKey, AsJson, Endpoint, FunctionName

if TYPE_CHECKING:
    from rich.table import Table

    from scaler.minutes import Minute
    from scaler.traces import Trace

DEFAULT_SINCE = "7d"
MAX_SERVICE_S = 86_400.0
SEED = 20191  # of where in their minute counted invocations are
_CHUNK_BYTES = 1 << 20

Since = Annotated[
    str, typer.Option(metavar="TIME", help="How far to look back, as 36h or 7d; 8 weeks are kept.")
]


class FileFormat(StrEnum):
    """What `history import` reads."""

    GLOWPLUG = "glowplug"
    AZURE_LLM = "azure-llm"
    BURSTGPT = "burstgpt"
    AZURE_FUNCTIONS = "azure-functions"


class _FunctionOrCommand(TyperGroup):
    """`history NAME` is `history show NAME`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {*self.commands, "--help"}
        if args and args[0] not in known:
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_FunctionOrCommand,
    no_args_is_help=True,
    help="Show a function's traffic by the hour: `glowplug history NAME`; export or import it.",
)


@app.command()
def show(
    name: FunctionName,
    *,
    since: Since = DEFAULT_SINCE,
    as_json: AsJson = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    api_key: ApiKey = None,
) -> None:
    """Show a function's traffic by the hour, in UTC; as JSON by the minute."""
    from glowplug.client import Client
    from scaler.minutes import KEPT_MINUTES
    from scaler.traffic_csv import CsvReader, iso_minute

    reader = CsvReader(max_rows=KEPT_MINUTES + 1, name="the server's answer")
    with Client(endpoint, api_key=api_key) as client, client.history(name, since=since) as chunks:
        for chunk in chunks:
            reader.feed(chunk)
    minutes = reader.finish()
    if as_json:
        rows = [vars(each) | {"minute": iso_minute(each.minute)} for each in minutes]
        typer.echo(json.dumps({"function": name, "minutes": rows}))
    elif not minutes:
        typer.echo(f"{name} had no requests in the last {since}")
    else:
        from glowplug.cli.views import show

        show(hour_table(minutes))


@app.command()
def export(
    name: FunctionName,
    *,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="How far to look back; default: all.")
    ] = None,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    api_key: ApiKey = None,
) -> None:
    """Write a function's traffic history to stdout: CSV, a line a minute with traffic."""
    from glowplug.client import Client

    with Client(endpoint, api_key=api_key) as client, client.history(name, since=since) as chunks:
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()


@app.command("import")
def import_(
    name: FunctionName,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV; the traces also gzipped.")],
    *,
    file_format: Annotated[
        FileFormat, typer.Option("--format", help="Whose CSV it is.")
    ] = FileFormat.GLOWPLUG,
    shift: Annotated[
        bool,
        typer.Option("--shift", help="Move it by whole weeks (without dates: days) to end by now."),
    ] = False,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="MINUTE", help="When a trace without dates began, as 2026-11-02T00:00Z."
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="BurstGPT: of this model. Azure Functions: this hash."),
    ] = None,
    service: Annotated[
        str,
        typer.Option(metavar="TIME", help="How long a request of a trace is taken to be served."),
    ] = "2s",
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    api_key: ApiKey = None,
) -> None:
    """Import traffic history from an export, or from a published trace.

    It replaces what there is from the file's first minute to its last; other minutes stay.
    """
    from glowplug.client import Client
    from glowplug.errors import InvalidRequest
    from scaler.minutes import KEPT_MINUTES
    from scaler.trace_minutes import DAY, WEEK, minutes_of, shifted
    from scaler.traffic_csv import HEADER, lines_of

    now = int(time.time() // 60)
    step = WEEK
    if file_format is FileFormat.GLOWPLUG:
        minutes = _read(file)
    else:
        trace = _trace(file, file_format, only)
        start_s = trace.start_s if start is None else _unix_time(start)
        if start_s is None:
            if not shift:
                raise InvalidRequest(f"{file}: it has no dates; give --start MINUTE or --shift")
            start_s, step = 0.0, DAY
        minutes = minutes_of(trace, start_s=start_s, service_s=_seconds("--service", service))
    if shift:
        moved = shifted(minutes, newest=now, step=step)
        minutes = [each for each in moved if each.minute >= now - KEPT_MINUTES]
        if len(minutes) < len(moved):
            dropped = len(moved) - len(minutes)
            typer.echo(f"left out: {dropped} minutes that would be over 8 weeks old", err=True)
    with Client(endpoint, api_key=api_key) as client:
        done = client.import_history(name, f"{HEADER}\n{lines_of(minutes)}".encode())
    span = f", {done['first']} to {done['last']}" if done["first"] else ""
    typer.echo(f"{name}: imported {done['minutes']} minutes, {done['arrivals']} requests{span}")


def hour_table(minutes: "Sequence[Minute]") -> "Table":
    """One row an hour with traffic, and their sum."""
    from rich import box
    from rich.table import Table

    hours: dict[int, list[Minute]] = {}
    for each in minutes:
        hours.setdefault(each.minute // 60, []).append(each)
    table = Table(box=box.SIMPLE_HEAD, show_footer=True)
    table.add_column("HOUR (UTC)", footer="all")
    sums = _cells(minutes)
    for title, footer in zip(("REQUESTS", "PEAK", "FINISHED", "MEAN TIME"), sums, strict=True):
        table.add_column(title, justify="right", footer=footer)
    for hour, of_hour in hours.items():
        when = time.strftime("%Y-%m-%d %H:00", time.gmtime(hour * 3600))
        table.add_row(when, *_cells(of_hour))
    return table


def _cells(minutes: "Sequence[Minute]") -> tuple[str, str, str, str]:
    finished = sum(each.finished for each in minutes)
    service_s = sum(each.service_s for each in minutes)
    return (
        str(sum(each.arrivals for each in minutes)),
        str(max(each.peak for each in minutes)),
        str(finished),
        f"{service_s / finished:.2f} s" if finished else "–",
    )


def _read(file: Path) -> "list[Minute]":
    from scaler.minutes import KEPT_MINUTES
    from scaler.traffic_csv import CsvReader

    reader = CsvReader(max_rows=KEPT_MINUTES + 1, name=str(file))
    with file.open("rb") as data:
        while chunk := data.read(_CHUNK_BYTES):
            reader.feed(chunk)
    return reader.finish()


def _trace(file: Path, file_format: FileFormat, only: str | None) -> "Trace":
    """Raises InvalidRequest: it is not such a file, or it is not clear which function is meant."""
    from glowplug.errors import InvalidRequest
    from scaler.traces import load_azure_llm, load_burstgpt, read_azure_functions

    if file_format is FileFormat.AZURE_LLM:
        return load_azure_llm(file)
    if file_format is FileFormat.BURSTGPT:
        return load_burstgpt(file, model=only)
    found = None
    for row in read_azure_functions(file):
        if only is None and found is not None:
            raise InvalidRequest(f"{file}: it has many functions; name one's hash with --only")
        if only in (None, row.function):
            found = row
            if only is not None:
                break
    if found is None:
        raise InvalidRequest(f"{file}: it has no function {only or ''}".rstrip())
    return found.trace(seed=SEED)


def _unix_time(text: str) -> float:
    from glowplug.errors import InvalidRequest
    from scaler.traffic_csv import minute_of

    try:
        return minute_of(text) * 60.0
    except ValueError as error:
        raise InvalidRequest(f"--start: {error}") from None


def _seconds(option: str, text: str) -> float:
    from glowplug.errors import InvalidRequest
    from glowplug.fields import parse_duration

    try:
        seconds = float(str(parse_duration(text)))
    except ValueError as error:
        raise InvalidRequest(f"{option}: {error}") from None
    if not 0 < seconds <= MAX_SERVICE_S:
        raise InvalidRequest(f"{option}: {text} is not more than 0 s and at most a day")
    return seconds
