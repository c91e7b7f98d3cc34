"""`glowplug seal` and `glowplug snapshots`: the node cache of a data folder, without a server."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glowplug.cli.options import DEFAULT_DATA, AsJson, DataDir, Store, StoreEndpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snapshot.adapter_store import AdapterStore
    from snapshot.node_cache import NodeCache
    from snapshot.s3_store import S3Store

Digest = Annotated[
    str, typer.Argument(metavar="SNAPSHOT", help="Its digest, or a beginning that only it has.")
]
AnyDigest = Annotated[
    str,
    typer.Argument(metavar="SNAPSHOT|ADAPTER", help="Its digest, or a beginning that only it has."),
]

app = typer.Typer(help="List, share, verify, pin and remove sealed snapshots and adapters.")


def seal(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A folder, a .gguf file, package://… or s3://…."),
    ],
    *,
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    quantization: Annotated[
        str, typer.Option(metavar="none|int8|int4", help="Bits of the weights.")
    ] = "none",
    draft_model: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="A draft model to seal with it.")
    ] = None,
    store_endpoint: StoreEndpoint = None,
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
        sealer = ProcessSealer(cache, s3_endpoint=store_endpoint)
        sealing = sealer.seal(spec, lambda done: update("sealing", done))
        digest = asyncio.run(sealing)
    folder = cache.path(digest)
    typer.echo(json.dumps({"digest": digest, "path": str(folder)}) if as_json else digest)


@app.command()
def ls(
    *,
    remote: Annotated[bool, typer.Option("--remote", help="Those in the store instead.")] = False,
    store: Store = None,
    store_endpoint: StoreEndpoint = None,
    data: DataDir = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """List the snapshots and adapters in the node cache, newest first."""
    if remote:
        digests = _open_store(store, store_endpoint).list()
        typer.echo(json.dumps(digests) if as_json else "\n".join(digests) or "no snapshots")
        return
    from snapshot.adapter_store import AdapterStore

    cache = _cache(data)
    snapshots, adapters = cache.list(), AdapterStore(cache).list()
    if as_json:
        rows = [{"kind": "snapshot", **asdict(each)} for each in snapshots]
        rows += [{"kind": "adapter", **asdict(each)} for each in adapters]
        typer.echo(json.dumps(rows))
    elif snapshots or adapters:
        from glowplug.cli.views import show, snapshot_table

        show(snapshot_table(snapshots, adapters))
    else:
        typer.echo("no snapshots; seal one with: glowplug seal SOURCE")


@app.command()
def verify(
    digest: AnyDigest,
    *,
    key: Annotated[
        list[Path] | None,
        typer.Option(metavar="KEY", help="Public key (PEM) that must have signed; repeatable."),
    ] = None,
    data: DataDir = DEFAULT_DATA,
) -> None:
    """Read every byte of a snapshot or adapter and compare it with what was sealed; check a
    snapshot's signature.

    What is damaged is moved to quarantine: the next call gets it anew.
    """
    from glowplug.cli.progress import progress
    from glowplug.errors import CorruptSnapshot
    from snapshot.signatures import check_signature, read_public_keys

    holder, digest = _holder(data, digest)
    keys = read_public_keys(key) if key else []
    with progress(digest) as update:
        update("reading", None)
        try:
            holder.verify(digest)
        except CorruptSnapshot as error:
            holder.quarantine(digest, error.message)
            raise
    if keys:
        check_signature(_cache(data).path(digest), keys)
    typer.echo(f"{digest} is whole{' and signed' if keys else ''}")


@app.command()
def sign(
    digest: Digest,
    *,
    key: Annotated[Path, typer.Option(metavar="KEY", help="Private key, ECDSA P-256 or Ed25519.")],
    data: DataDir = DEFAULT_DATA,
) -> None:
    """Sign a snapshot: its manifest, and thereby every byte of it."""
    from snapshot.signatures import sign as write_signature

    cache, digest = _found(data, digest)
    cache.verify(digest)
    write_signature(cache.path(digest), key)
    typer.echo(f"{digest} signed")


@app.command()
def pin(digest: AnyDigest, *, data: DataDir = DEFAULT_DATA) -> None:
    """Keep a snapshot or an adapter in the cache whatever its limit."""
    holder, digest = _holder(data, digest)
    holder.pin(digest)
    typer.echo(f"{digest} pinned")


@app.command()
def unpin(digest: AnyDigest, *, data: DataDir = DEFAULT_DATA) -> None:
    """Let it leave the cache again when the room is needed."""
    holder, digest = _holder(data, digest)
    holder.unpin(digest)
    typer.echo(f"{digest} unpinned")


@app.command()
def pull(
    digest: Annotated[str, typer.Argument(metavar="SNAPSHOT", help="Its digest.")],
    *,
    store: Store = None,
    store_endpoint: StoreEndpoint = None,
    data: DataDir = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Fetch a snapshot from the store; what is here of it already is not fetched again."""
    from glowplug.cli.progress import progress

    cache = _cache(data)
    opened = _open_store(store, store_endpoint)
    digest = digest if digest.startswith("sha256-") else f"sha256-{digest}"
    from snapshot.transfer import pull as fetch

    with progress(digest) as update:
        pulled = fetch(opened, digest, cache=cache, progress=lambda done: update("fetching", done))
    if as_json:
        typer.echo(json.dumps({"digest": digest, **asdict(pulled)}))
    else:
        mib = pulled.fetched_bytes / 2**20
        typer.echo(f"{digest} is in the cache ({mib:.0f} MiB fetched)")


@app.command()
def push(
    digest: Digest,
    *,
    store: Store = None,
    store_endpoint: StoreEndpoint = None,
    data: DataDir = DEFAULT_DATA,
) -> None:
    """Upload a snapshot to the store, unless it is there."""
    from glowplug.cli.progress import progress

    cache = _cache(data)
    opened = _open_store(store, store_endpoint)
    digest = _resolve(cache, digest)
    from snapshot.transfer import push as upload

    with progress(digest) as update:
        is_new = upload(opened, digest, cache=cache, progress=lambda done: update("sending", done))
    typer.echo(f"{digest} {'pushed to' if is_new else 'is in'} {opened.location}")


@app.command()
def gc(
    *,
    limit: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Evict down to this; default: the server's limit."),
    ] = None,
    data: DataDir = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Delete what serves nobody, then the longest unused snapshots and adapters over the limit."""
    from glowplug.cli.options import size
    from snapshot.eviction import collect_garbage

    collected = collect_garbage(_cache(data), limit_bytes=size(limit, "--limit"))
    if as_json:
        typer.echo(json.dumps(asdict(collected)))
        return
    for digest in (*collected.snapshots, *collected.adapters):
        typer.echo(f"{digest} evicted")
    typer.echo(f"{collected.freed_bytes / 2**20:.0f} MiB freed")


@app.command()
def rm(digest: AnyDigest, *, data: DataDir = DEFAULT_DATA) -> None:
    """Delete a snapshot or an adapter that is not in use."""
    holder, digest = _holder(data, digest)
    holder.remove(digest)
    typer.echo(f"{digest} removed")


def _open_store(store: str | None, endpoint: str | None) -> "S3Store":
    """Raises InvalidRequest, SnapshotError."""
    from glowplug.errors import InvalidRequest
    from snapshot.s3_location import parse_location

    if store is None:
        raise InvalidRequest("give --store s3://BUCKET/PREFIX, or set GLOWPLUG_STORE")
    location = parse_location(store, endpoint)
    from snapshot.s3_store import S3Store

    return S3Store(location)


def _cache(data: Path) -> "NodeCache":
    from glowplug.data_folder import DataFolder
    from snapshot.node_cache import NodeCache

    return NodeCache(DataFolder(data.expanduser().absolute()).cache)


def _found(data: Path, digest: str) -> "tuple[NodeCache, str]":
    """The cache and the whole digest of a snapshot in it; see _resolve."""
    cache = _cache(data)
    return cache, _resolve(cache, digest)


def _holder(data: Path, digest: str) -> "tuple[NodeCache | AdapterStore, str]":
    """Who has the snapshot or adapter, and its whole digest; see _resolve."""
    from snapshot.adapter_store import AdapterStore

    cache = _cache(data)
    adapters = AdapterStore(cache)
    digest = _resolve(cache, digest, adapters.digests())
    return adapters if adapters.has(digest) else cache, digest


def _resolve(cache: "NodeCache", text: str, others: "Sequence[str]" = ()) -> str:
    """The one digest, of a snapshot or among the others, that begins with `text`; `text` itself
    where none does.

    Raises:
        InvalidRequest: several do, or `text` is too short to mean one.
    """
    from glowplug.errors import InvalidRequest

    prefix = text if text.startswith("sha256-") else f"sha256-{text}"
    if len(prefix) < len("sha256-") + 4:
        raise InvalidRequest(f"{text!r} is too short; give four digits of the digest or more")
    digests = [*(each.digest for each in cache.list()), *others]
    found = [digest for digest in digests if digest.startswith(prefix)]
    if len(found) > 1:
        raise InvalidRequest(f"{text} begins {len(found)} digests; give more of it")
    return found[0] if found else prefix
