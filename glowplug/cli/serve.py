"""`glowplug serve`: run Glowplug on this machine."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from glowplug.cli.options import DEFAULT_DATA, DataDir


class LogLevel(StrEnum):
    """How much goes to stderr and to logs/serve.log."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


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
        str | None, typer.Option(metavar="URL", help="How clients reach this server.")
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
