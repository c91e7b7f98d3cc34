"""Something to look at while a thing takes its time: a bar on a terminal, plain lines elsewhere.

All of it goes to stderr, so stdout stays what a script asked for.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from glowplug.errors import GlowplugError

if TYPE_CHECKING:
    from glowplug.client import Client, Json

POLL_S = 0.2

Update = Callable[[str, float | None], None]  # (what is going on, 0.0 to 1.0 if known)


@contextmanager
def progress(label: str) -> Iterator[Update]:
    """Show `label` while the block runs; it may call `update(note, fraction)`."""
    if not sys.stderr.isatty():
        shown = None

        def say(note: str, fraction: float | None) -> None:
            nonlocal shown
            if note != shown:
                typer.echo(f"{label}: {note}", err=True)
                shown = note

        yield say
        return

    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)

        def draw(note: str, fraction: float | None) -> None:
            bar.update(
                task,
                description=f"{label}: {note}",
                total=None if fraction is None else 1.0,
                completed=fraction or 0.0,
            )

        yield draw


def deploy_and_wait(client: "Client", spec: "Json") -> "Json":
    """Deploy the spec and return the function once it can be called.

    That is when its model is sealed and, where min_replicas asks for one, a replica is ready.

    Raises:
        GlowplugError: the spec is wrong, its model cannot be sealed or its replicas do not start.
    """
    function = client.deploy(spec)
    states = {"ready"} if function["spec"]["min_replicas"] else {"zero", "starting", "ready"}
    return wait_for_state(client, spec["name"], states)


def wait_for_state(
    client: "Client", name: str, states: set[str], *, label: str | None = None
) -> "Json":
    """Poll until the function's current revision is sealed and its state is one of `states`.

    Raises:
        GlowplugError: it is failed instead, or was deleted meanwhile.
    """
    with progress(label or name) as update:
        while True:
            function = client.function(name)
            state = function["state"]
            if state == "failed" or function.get("failure"):
                raise GlowplugError(f"{name}: {function.get('failure') or function['reason']}")
            if state in states and function["snapshot"] is not None:
                return function
            update(state, function["sealing_progress"])
            time.sleep(POLL_S)
