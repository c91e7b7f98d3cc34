"""`glowplug seal` and `glowplug snapshots`: the node cache of a data folder, without a server."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glowplug.cli.options import DEFAULT_DATA, AsJson, DataDir

if TYPE_CHECKING:
    from snapshot.node_cache import NodeCache

Digest = Annotated[
    str, typer.Argument(metavar="SNAPSHOT", help="Its digest, or a beginning that only it has.")
]

app = typer.Typer(help="List, verify and remove sealed snapshots.")


def seal(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A folder, a .gguf file or package://PACKAGE/FILE."),
    ],
    *,
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    quantization: Annotated[
        str, typer.Option(metavar="none|int8|int4", help="Bits of the weights.")
    ] = "none",
    draft_model: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="A draft model to seal with it.")
    ] = None,
    data: DataDir = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Seal a model into the node cache ahead of a deploy."""
    import asyncio

    from glowplug.cli.options import absolute_source
    from glowplug.cli.progress import progress
    from glowplug.spec import parse_spec
    from snapshot.sealer import ProcessSealer

    model = {"model": absolute_source(source), "dtype": dtype, "quantization": quantization}
    draft = {"draft_model": absolute_source(draft_model)} if draft_model else {}
    spec = parse_spec({"name": "seal", **model, **draft})
    cache = _cache(data)
    with progress(source) as update:
        sealing = ProcessSealer(cache).seal(spec, lambda done: update("sealing", done))
        digest = asyncio.run(sealing)
    folder = cache.path(digest)
    typer.echo(json.dumps({"digest": digest, "path": str(folder)}) if as_json else digest)


@app.command()
def ls(*, data: DataDir = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """List the snapshots in the node cache, newest first."""
    snapshots = _cache(data).list()
    if as_json:
        typer.echo(json.dumps([asdict(snapshot) for snapshot in snapshots]))
    elif snapshots:
        from glowplug.cli.views import show, snapshot_table

        show(snapshot_table(snapshots))
    else:
        typer.echo("no snapshots; seal one with: glowplug seal SOURCE")


@app.command()
def verify(digest: Digest, *, data: DataDir = DEFAULT_DATA) -> None:
    """Read every byte of a snapshot and compare it with the manifest."""
    from glowplug.cli.progress import progress

    cache = _cache(data)
    digest = _resolve(cache, digest)
    with progress(digest) as update:
        update("reading", None)
        cache.verify(digest)
    typer.echo(f"{digest} is whole")


@app.command()
def rm(digest: Digest, *, data: DataDir = DEFAULT_DATA) -> None:
    """Delete a snapshot; replicas that run from it keep it until they end."""
    cache = _cache(data)
    digest = _resolve(cache, digest)
    cache.remove(digest)
    typer.echo(f"{digest} removed")


def _cache(data: Path) -> "NodeCache":
    from glowplug.data_folder import DataFolder
    from snapshot.node_cache import NodeCache

    return NodeCache(DataFolder(data.expanduser().absolute()).cache)


def _resolve(cache: "NodeCache", text: str) -> str:
    """The one digest that begins with `text`; `text` itself where none does.

    Raises:
        InvalidRequest: several do, or `text` is too short to mean one.
    """
    from glowplug.errors import InvalidRequest

    prefix = text if text.startswith("sha256-") else f"sha256-{text}"
    if len(prefix) < len("sha256-") + 4:
        raise InvalidRequest(f"{text!r} is too short; give four digits of the digest or more")
    found = [each.digest for each in cache.list() if each.digest.startswith(prefix)]
    if len(found) > 1:
        raise InvalidRequest(f"{text} begins {len(found)} snapshots; give more of the digest")
    return found[0] if found else prefix
