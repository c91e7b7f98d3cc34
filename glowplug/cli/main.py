"""The `glowplug` command: lists the commands and turns every failure into one line.

Start-up time is a feature: nothing heavy (torch, httpx, rich, uvicorn) is imported before a command
that needs it runs.
"""

import sys

import typer

from glowplug.cli import (
    demo,
    forecast,
    functions,
    history,
    invoke,
    prewarm,
    serve,
    snapshots,
    terraform,
    why,
)
from glowplug.errors import GlowplugError

app = typer.Typer(
    name="glowplug",
    help="Serverless, scale-to-zero inference for language models.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(serve.serve)
app.command()(functions.deploy)
app.command()(functions.ls)
app.command()(functions.describe)
app.command()(forecast.forecast)
app.command()(why.why)
app.command()(invoke.invoke)
app.command()(invoke.chat)
app.command()(functions.rm)
app.add_typer(prewarm.app, name="prewarm")
app.add_typer(history.app, name="history")
app.command()(snapshots.seal)
app.add_typer(snapshots.app, name="snapshots")
app.add_typer(terraform.app, name="terraform")
app.command()(demo.demo)


def main() -> None:
    """Run the command line: exit code 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    sys.exit(run(sys.argv[1:] or ["--help"]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; errors go to stderr as one line."""
    try:
        return app(arguments, prog_name="glowplug", standalone_mode=False) or 0
    except typer.TyperException as error:  # wrong usage
        typer.echo(f"error: {error.format_message()} (see glowplug --help)", err=True)
        return error.exit_code
    except GlowplugError as error:
        typer.echo(f"error: {error.message}", err=True)
        return 1
    except OSError as error:
        typer.echo(f"error: {_in_words(error)}", err=True)
        return 1


def _in_words(error: OSError) -> str:
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}"
