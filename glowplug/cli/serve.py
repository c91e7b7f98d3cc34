"""`glowplug serve`: run Glowplug on this machine."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from glowplug.cli.options import DEFAULT_DATA, DataDir, Store, StoreEndpoint

_URL = re.compile(r"[\x21-\x7e]{1,2048}")


class LogLevel(StrEnum):
    """How much goes to stderr and to logs/serve.log."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Verify(StrEnum):
    """How much of a snapshot is read and compared with its hashes before it is served."""

    ALWAYS = "always"
    SAMPLED = "sampled"
    NEVER = "never"


def _checked_url(text: str | None) -> str | None:
    """Raises BadParameter for what no client could call."""
    if text is None:
        return None
    try:
        url = urlsplit(text)
        usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        usable = False
    if not usable or url.query or url.fragment or url.username or not _URL.fullmatch(text):
        raise typer.BadParameter(
            f"{text[:100]!r} is not a URL that clients can call; write for example "
            "https://models.example.com"
        )
    return text


def serve(
    *,
    host: Annotated[str, typer.Option(metavar="HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="0 takes a free one.")
    ] = 8080,
    data: DataDir = DEFAULT_DATA,
    standbys: Annotated[
        int, typer.Option(metavar="N", min=0, max=64, help="Warm processes that wait for a model.")
    ] = 1,
    max_standbys: Annotated[
        int,
        typer.Option(metavar="N", min=0, max=64, help="As many where more starts are foretold."),
    ] = 4,
    replica_budget: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Replicas of all functions together; default: any."),
    ] = None,
    memory_budget: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory of all replicas together, as 80GiB."),
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="API keys; without, anybody may call.")
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="How clients reach this server.", callback=_checked_url),
    ] = None,
    cache_limit: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Of the node cache, as 200GiB: the longest unused go."),
    ] = None,
    verify: Annotated[
        Verify, typer.Option(help="How much of a snapshot to check before it is served.")
    ] = Verify.NEVER,
    store: Store = None,
    store_endpoint: StoreEndpoint = None,
    trust: Annotated[
        list[Path] | None,
        typer.Option(metavar="KEY", help="Public key (PEM) that must have signed; repeatable."),
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(help="What to log.")] = LogLevel.INFO,
) -> None:
    """Serve functions on this machine until Ctrl-C."""
    from glowplug.cli.options import size
    from glowplug.serve import ServeSettings
    from glowplug.serve import serve as run

    run(
        ServeSettings(
            host=host,
            port=port,
            data=data.expanduser().absolute(),
            standbys=standbys,
            max_standbys=max_standbys,
            replica_budget=replica_budget,
            memory_budget_bytes=size(memory_budget, "--memory-budget"),
            keys=keys,
            public_url=public_url,
            log_level=log_level,
            cache_limit_bytes=size(cache_limit, "--cache-limit"),
            verify=verify,
            store=store,
            store_endpoint=store_endpoint,
            trust=tuple(trust or ()),
        )
    )
