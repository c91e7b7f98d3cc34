"""Options that several commands share, and what they mean."""

from pathlib import Path
from typing import Annotated

import typer

Endpoint = Annotated[
    str, typer.Option(envvar="GLOWPLUG_ENDPOINT", metavar="URL", help="The server to talk to.")
]
ApiKey = Annotated[
    str | None,
    typer.Option(envvar="GLOWPLUG_API_KEY", metavar="KEY", help="Sent as a bearer token."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
DataDir = Annotated[
    Path,
    typer.Option(
        "--data",
        envvar="GLOWPLUG_DATA",
        metavar="DIR",
        help="Where the registry, the snapshots and the logs lie.",
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        envvar="GLOWPLUG_STORE", metavar="s3://BUCKET/PREFIX", help="Where snapshots are shared."
    ),
]
StoreEndpoint = Annotated[
    str | None,
    typer.Option(
        envvar="GLOWPLUG_STORE_ENDPOINT", metavar="URL", help="Of an S3-compatible service."
    ),
]
FunctionName = Annotated[str, typer.Argument(metavar="NAME", help="The function.")]

DEFAULT_ENDPOINT = "http://127.0.0.1:8080"
DEFAULT_DATA = Path("~/.local/share/glowplug")


def size(text: str | None, option: str) -> int | None:
    """Bytes from an option such as 64MiB. Raises InvalidRequest."""
    from glowplug.errors import InvalidRequest
    from glowplug.fields import parse_bytes

    if text is None:
        return None
    try:
        return int(str(parse_bytes(text)))
    except ValueError as error:
        raise InvalidRequest(f"{option}: {error}") from None


def absolute_source(source: str) -> str:
    """A model source as the server must see it: a path absolute, what has a scheme as it is."""
    if not source.strip():
        raise typer.BadParameter("the model's source is empty; name a folder or a .gguf file")
    return source if "://" in source else str(Path(source).expanduser().absolute())
