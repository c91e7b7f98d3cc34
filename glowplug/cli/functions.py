"""`glowplug deploy`, `ls`, `describe` and `rm`: what is deployed and how it is."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glowplug.cli.options import (
    DEFAULT_ENDPOINT,
    ApiKey,
    AsJson,
    Endpoint,
    FunctionName,
    absolute_source,
)

if TYPE_CHECKING:
    from glowplug.client import Json


def deploy(
    name: FunctionName,
    *,
    model: Annotated[
        str,
        typer.Option(metavar="SOURCE", help="A folder, a .gguf file, package://… or s3://…."),
    ],
    digest: Annotated[
        str | None,
        typer.Option(metavar="SHA256", help="The snapshot that the model must be sealed into."),
    ] = None,
    idle: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Idle time until scale to zero; default: learned."),
    ] = None,
    cold_start_cost: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Replica time that avoiding a cold start is worth."),
    ] = None,
    sleep: Annotated[
        str | None, typer.Option(metavar="TIME", help="Idle time until a replica sleeps, as 10s.")
    ] = None,
    min_replicas: Annotated[int | None, typer.Option("--min", metavar="N")] = None,
    max_replicas: Annotated[int | None, typer.Option("--max", metavar="N")] = None,
    activation_replicas: Annotated[
        int | None,
        typer.Option("--activation", metavar="N", help="Replicas when the first request comes."),
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(metavar="N", help="Who gets replicas when they are short: −100 to 100."),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="bfloat16 (default) or float32.")] = None,
    quantization: Annotated[
        str | None,
        typer.Option(metavar="none|int8|int4", help="Bits of the weights; default: as the dtype."),
    ] = None,
    max_seqs: Annotated[
        int | None, typer.Option(metavar="N", help="Sequences that one replica runs at once.")
    ] = None,
    max_context: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens; default: the model's own limit.")
    ] = None,
    kv_cache: Annotated[
        str | None, typer.Option(metavar="SIZE", help="KV cache of one replica, as 512MiB.")
    ] = None,
    speculation: Annotated[
        str | None, typer.Option("--speculation", metavar="auto|off", help="Guess tokens ahead.")
    ] = None,
    draft_model: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="A smaller model of the same vocabulary that guesses."),
    ] = None,
    prefix_snapshot: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Hot prompt prefixes kept for the next start."),
    ] = None,
    pooling: Annotated[
        str | None,
        typer.Option(metavar="auto|mean|last|cls", help="Tokens that make an embedding."),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATH", help="A LoRA adapter (PEFT folder); give it repeatedly."),
    ] = None,
    adapter_cache: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory for adapters in use, as 512MiB.")
    ] = None,
    predictive: Annotated[
        str | None,
        typer.Option(metavar="off|forecast|on|auto", help="Start ahead of what is foretold."),
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(metavar="ZONE", help="Of its traffic, as Europe/Berlin.")
    ] = None,
    accelerator: Annotated[
        str | None,
        typer.Option(metavar="CLASS", help="auto, cpu, cuda or a GPU's name as nvidia-h200."),
    ] = None,
    start_timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="Longest wait in the queue and to start.")
    ] = None,
    request_timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="Longest time for one whole request.")
    ] = None,
    queue_requests: Annotated[
        int | None, typer.Option(metavar="N", help="Requests held while no replica has room.")
    ] = None,
    queue_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Their bodies' size in sum, as 64MiB.")
    ] = None,
    schedules: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Scheduled prewarms, a JSON list, in the place of those there are; see prewarm.",
        ),
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until the function can be called.")] = True,
    as_json: AsJson = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    api_key: ApiKey = None,
) -> None:
    """Deploy a model as a function, or change one.

    What is not given gets its default, also when the function exists already; only its scheduled
    prewarms stay.
    """
    from glowplug.cli.progress import deploy_and_wait
    from glowplug.client import Client

    queue = _given(max_requests=queue_requests, max_bytes=queue_bytes)
    spec = _given(
        name=name,
        model=absolute_source(model),
        digest=digest,
        idle_s=idle,
        cold_start_cost_s=cold_start_cost,
        sleep_s=sleep,
        min_replicas=min_replicas,
        max_replicas=max_replicas,
        activation_replicas=activation_replicas,
        priority=priority,
        dtype=dtype,
        quantization=quantization,
        max_seqs=max_seqs,
        max_context=max_context,
        kv_cache_bytes=kv_cache,
        speculation=speculation,
        draft_model=absolute_source(draft_model) if draft_model else None,
        prefix_snapshot_bytes=prefix_snapshot,
        pooling=pooling,
        adapters=_adapters(adapter or []) or None,
        adapter_cache_bytes=adapter_cache,
        predictive=predictive,
        timezone=timezone,
        accelerator=accelerator,
        start_timeout_s=start_timeout,
        request_timeout_s=request_timeout,
        queue=queue or None,
        schedules=_schedules(schedules),
    )
    with Client(endpoint, api_key=api_key) as client:
        function = deploy_and_wait(client, spec) if wait else client.deploy(spec)
    if as_json:
        typer.echo(json.dumps(function))
    else:
        typer.echo(f"{name} is {function['state']}: {function['invoke_url']}/v1/chat/completions")


def ls(
    *, as_json: AsJson = False, endpoint: Endpoint = DEFAULT_ENDPOINT, api_key: ApiKey = None
) -> None:
    """List the functions."""
    from glowplug.client import Client

    with Client(endpoint, api_key=api_key) as client:
        functions = client.functions()
    if as_json:
        typer.echo(json.dumps(functions))
        return
    if not functions:
        typer.echo("no functions; deploy one with: glowplug deploy NAME --model SOURCE")
        return
    from glowplug.cli.views import function_table, show

    show(function_table(functions))


def describe(
    name: FunctionName,
    *,
    as_json: AsJson = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    api_key: ApiKey = None,
) -> None:
    """Show one function: state, replicas, last start stage by stage."""
    from glowplug.client import Client

    with Client(endpoint, api_key=api_key) as client:
        function = client.function(name)
    if as_json:
        typer.echo(json.dumps(function))
        return
    from glowplug.cli.views import function_panel, show

    show(function_panel(function))


def rm(
    name: FunctionName, *, endpoint: Endpoint = DEFAULT_ENDPOINT, api_key: ApiKey = None
) -> None:
    """Delete a function and end its replicas; its snapshot stays in the cache."""
    from glowplug.client import Client

    with Client(endpoint, api_key=api_key) as client:
        client.delete(name)
    typer.echo(f"{name} deleted")


def _adapters(options: list[str]) -> dict[str, str]:
    """Name → folder, as the server must see it.

    Raises:
        InvalidRequest: not NAME=PATH, or a name twice.
    """
    from glowplug.errors import InvalidRequest

    adapters: dict[str, str] = {}
    for option in options:
        name, separator, path = option.partition("=")
        if not (name and separator and path):
            raise InvalidRequest(f"--adapter {option}: write NAME=PATH")
        if name in adapters:
            raise InvalidRequest(f"--adapter {option}: {name} is given twice")
        adapters[name] = absolute_source(path)
    return adapters


def _schedules(file: Path | None) -> object:
    """What the file says; the server checks it.

    Raises:
        InvalidRequest: it cannot be read, or is not JSON.
    """
    from glowplug.errors import InvalidRequest

    if file is None:
        return None
    try:
        return json.loads(file.read_text())
    except OSError as error:
        raise InvalidRequest(f"--schedules {file}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InvalidRequest(f"--schedules {file}: is not JSON ({error})") from None


def _given(**fields: object) -> "Json":
    return {key: value for key, value in fields.items() if value is not None}
