"""`glowplug why`: what was decided of a function, from what and why, and what comes next."""

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from glowplug.cli.options import DEFAULT_ENDPOINT, ApiKey, AsJson, Endpoint, FunctionName

if TYPE_CHECKING:
    from glowplug.client import Client, Json

FOLLOW_EVERY_S = 1.0


def why(
    name: FunctionName,
    *,
    limit: Annotated[
        int, typer.Option(metavar="N", help="How many events to show; 100 are kept.")
    ] = 20,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on showing them as they happen.")
    ] = False,
    as_json: AsJson = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    api_key: ApiKey = None,
) -> None:
    """Show why a function has its replicas: the last decisions, the newest last, and what is next.

    Times are local. With --json --follow each event is a line.
    """
    from glowplug.client import Client

    with Client(endpoint, api_key=api_key) as client:
        answer = client.decisions(name, limit=limit)
        if as_json and not follow:
            typer.echo(json.dumps(answer))
            return
        _show(answer, as_json=as_json, with_now=not follow)
        while follow:
            time.sleep(FOLLOW_EVERY_S)
            answer = _news(client, name, answer)
            _show(answer, as_json=as_json, with_now=False)


def _news(client: "Client", name: str, before: "Json") -> "Json":
    """The next answer, with only the events that are new in it; `last` is the newest one's id."""
    last = before["data"][0]["id"] if before["data"] else before.get("last", 0)
    answer = client.decisions(name, limit=100)
    newest = answer["data"][0]["id"] if answer["data"] else 0
    if newest < last:  # deleted and deployed again meanwhile
        last = 0
    new = [event for event in answer["data"] if event["id"] > last]
    return answer | {"data": new, "last": max(newest, last)}


def _show(answer: "Json", *, as_json: bool, with_now: bool) -> None:
    events = list(reversed(answer["data"]))
    if as_json:
        for event in events:
            typer.echo(json.dumps(event))
        return
    from glowplug.cli.views import show
    from glowplug.cli.why_views import event_lines, now_lines

    if events:
        show(event_lines(events))
    if with_now:
        show(now_lines(answer["now"]))
