"""`glowplug serve`: run Glowplug on this machine."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from glowplug.cli.options import DEFAULT_DATA, DataDir

_URL = re.compile(r"[\x21-\x7e]{1,2048}")


class LogLevel(StrEnum):
    """How much goes to stderr and to logs/serve.log."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


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
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="API keys; without, anybody may call.")
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="How clients reach this server.", callback=_checked_url),
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(help="What to log.")] = LogLevel.INFO,
) -> None:
    """Serve functions on this machine until Ctrl-C."""
    from glowplug.serve import ServeSettings
    from glowplug.serve import serve as run

    run(
        ServeSettings(
            host=host,
            port=port,
            data=data.expanduser().absolute(),
            standbys=standbys,
            keys=keys,
            public_url=public_url,
            log_level=log_level,
        )
    )
