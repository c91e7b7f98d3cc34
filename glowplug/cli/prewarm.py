"""`glowplug prewarm`: replicas that are ready by a time, without waiting for the first request."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from glowplug.cli.options import DEFAULT_ENDPOINT, ApiKey, AsJson, Endpoint

if TYPE_CHECKING:
    from glowplug.client import Json

Function = Annotated[str, typer.Argument(metavar="FUNCTION", help="The function.")]
Prewarm = Annotated[str, typer.Argument(metavar="PREWARM", help="The prewarm's name.")]

app = typer.Typer(help="Plan replicas that are ready by a time: every weekday at 8, or once.")


@app.command()
def add(
    function: Function,
    prewarm: Prewarm,
    *,
    cron: Annotated[
        str | None, typer.Option(metavar="CRON", help='When, as "0 8 * * 1-5"; local times.')
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Once, as 2028-03-01T08:00, local or with Z.")
    ] = None,
    duration: Annotated[str, typer.Option(metavar="TIME", help="How long, as 2h: 1m to 7d.")],
    timezone: Annotated[
        str | None, typer.Option(metavar="ZONE", help="As Europe/Berlin; default: UTC.")
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(metavar="N", help="Replicas at least; default: 1.")
    ] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Add it, but do not run it.")] = False,
    as_json: AsJson = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    api_key: ApiKey = None,
) -> None:
    """Plan a prewarm, or change the one of that name; no replica is restarted."""
    from glowplug.client import Client

    given = {"cron": cron, "at": at, "timezone": timezone, "min_replicas": replicas}
    schedule = {key: value for key, value in given.items() if value is not None}
    schedule |= {"duration": duration, "enabled": not paused}
    with Client(endpoint, api_key=api_key) as client:
        _say(client.put_prewarm(function, prewarm, schedule), as_json=as_json)


@app.command()
def ls(
    function: Function,
    *,
    as_json: AsJson = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    api_key: ApiKey = None,
) -> None:
    """List a function's prewarms and their next runs."""
    from glowplug.client import Client

    with Client(endpoint, api_key=api_key) as client:
        prewarms = client.prewarms(function)
    if as_json:
        typer.echo(json.dumps(prewarms))
    elif prewarms:
        from glowplug.cli.prewarm_views import prewarm_table
        from glowplug.cli.views import show

        show(prewarm_table(prewarms))
    else:
        typer.echo(f"{function} has no prewarms; add one with: glowplug prewarm add")


@app.command()
def pause(
    function: Function,
    prewarm: Prewarm,
    *,
    as_json: AsJson = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    api_key: ApiKey = None,
) -> None:
    """Run it no more until it is resumed; what it holds now is let go."""
    _switch(function, prewarm, on=False, as_json=as_json, endpoint=endpoint, api_key=api_key)


@app.command()
def resume(
    function: Function,
    prewarm: Prewarm,
    *,
    as_json: AsJson = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    api_key: ApiKey = None,
) -> None:
    """Run it again; a window that is on begins at once."""
    _switch(function, prewarm, on=True, as_json=as_json, endpoint=endpoint, api_key=api_key)


@app.command()
def rm(
    function: Function,
    prewarm: Prewarm,
    *,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    api_key: ApiKey = None,
) -> None:
    """Delete a prewarm; what it holds now is let go."""
    from glowplug.client import Client

    with Client(endpoint, api_key=api_key) as client:
        client.delete_prewarm(function, prewarm)
    typer.echo(f"{prewarm} of {function} deleted")


def _switch(
    function: str, prewarm: str, *, on: bool, as_json: bool, endpoint: str, api_key: str | None
) -> None:
    from glowplug.client import Client

    with Client(endpoint, api_key=api_key) as client:
        schedule = client.prewarm(function, prewarm)["spec"]
        changed = client.put_prewarm(function, prewarm, schedule | {"enabled": on})
    _say(changed, as_json=as_json)


def _say(prewarm: "Json", *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(prewarm))
        return
    line = f"{prewarm['name']} of {prewarm['function']} is {prewarm['state']}"
    runs = prewarm["runs"]
    if runs:
        run = runs[0]
        line += f": {run['replicas']} ready by {run['ready_by']}, until {run['until']}"
    typer.echo(line)
