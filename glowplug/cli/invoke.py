"""`glowplug invoke` and `glowplug chat`: call a function and stream what it says."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from glowplug.cli.options import DEFAULT_ENDPOINT, ApiKey, AsJson, Endpoint, FunctionName

if TYPE_CHECKING:
    from glowplug.client import Answer, Client

MaxTokens = Annotated[int | None, typer.Option(metavar="N", help="Longest answer, in tokens.")]
Temperature = Annotated[
    float | None, typer.Option(metavar="T", help="0 always takes the likeliest token.")
]
System = Annotated[str | None, typer.Option(metavar="TEXT", help="The system message.")]


def invoke(
    name: FunctionName,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The message; - reads stdin.")],
    *,
    system: System = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Repeats the sampling.")] = None,
    timing: Annotated[bool, typer.Option("--timing", help="Show where the time went.")] = False,
    as_json: AsJson = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    api_key: ApiKey = None,
) -> None:
    """Call a function once and stream its answer."""
    from glowplug.client import Client

    messages = _opening(system)
    messages.append({"role": "user", "content": sys.stdin.read() if prompt == "-" else prompt})
    with (
        Client(endpoint, api_key=api_key) as client,
        client.chat(
            name, messages, max_tokens=max_tokens, temperature=temperature, seed=seed
        ) as answer,
    ):
        if as_json:
            for _ in answer:
                pass
            typer.echo(json.dumps(_as_json(answer)))
            return
        try:
            for piece in answer:
                _write(piece)
        finally:
            _write("\n")
    if timing:
        from glowplug.cli.views import show, timing_table

        show(timing_table([(answer.start_kind, answer)]))


def chat(
    name: FunctionName,
    *,
    system: System = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    api_key: ApiKey = None,
) -> None:
    """Talk with a function; Ctrl-C stops an answer, Ctrl-D ends."""
    from glowplug.client import Client

    messages = _opening(system)
    with Client(endpoint, api_key=api_key) as client:
        client.function(name)  # so that a wrong name shows before the first message
        while (line := _read_line()) is not None:
            if not line.strip():
                continue
            messages.append({"role": "user", "content": line})
            said = _turn(client, name, messages, max_tokens=max_tokens, temperature=temperature)
            if said:
                messages.append({"role": "assistant", "content": said})
            else:  # nothing came: the message can be sent again
                messages.pop()


def _turn(
    client: "Client",
    name: str,
    messages: list[dict[str, str]],
    *,
    max_tokens: int | None,
    temperature: float | None,
) -> str:
    """One answer; an error or Ctrl-C ends the turn, not the conversation."""
    from glowplug.errors import GlowplugError

    said = ""
    try:
        with client.chat(name, messages, max_tokens=max_tokens, temperature=temperature) as answer:
            try:
                for piece in answer:
                    _write(piece)
                    said += piece
            finally:
                _write("\n" if said else "")
    except KeyboardInterrupt:
        pass
    except GlowplugError as error:
        typer.echo(f"error: {error.message}", err=True)
    return said


def _read_line() -> str | None:
    """The user's next line; None at the end (Ctrl-D or Ctrl-C)."""
    if sys.stdin.isatty():
        import readline  # noqa: F401 - gives input() editing and history

    try:
        return input("> " if sys.stdin.isatty() else "")
    except (EOFError, KeyboardInterrupt):
        _write("\n" if sys.stdin.isatty() else "")
        return None


def _opening(system: str | None) -> list[dict[str, str]]:
    return [] if system is None else [{"role": "system", "content": system}]


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _as_json(answer: "Answer") -> dict[str, object]:
    return {
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "start_kind": answer.start_kind,
        "ttft_ms": answer.ttft_ms,
        "total_ms": answer.total_ms,
        "tokens_per_s": answer.tokens_per_s,
        "stages_ms": answer.stages_ms,
        "request_id": answer.headers.get("x-request-id"),
    }
