"""docs/api.md and docs/operations.md say what the code does: errors, stages, fields, options."""

import re
from pathlib import Path

from typer.main import get_command

from activator.representation import represent
from activator.timing import OWN_STAGES
from glowplug import errors
from glowplug.cli.main import app
from glowplug.contracts import Function
from glowplug.spec import FunctionSpec
from runtime.server.embedding_protocol import MAX_INPUTS, MAX_TOTAL_TOKENS, EmbeddingRequest
from runtime.server.protocol import ChatCompletionRequest, CompletionRequest
from scaler.forecast_report import report, verdict_of

DOCS = Path(__file__).parents[3] / "docs"
API = (DOCS / "api.md").read_text()


def section(text: str, title: str) -> str:
    """What stands under a heading, up to the next one of any level."""
    return re.split(r"\n#+ ", text.split(f"# {title}\n", 1)[1], maxsplit=1)[0]


def rows(text: str) -> list[list[str]]:
    """The table's rows, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_errors() -> None:
    documented = {(int(row[0]), row[1].strip("`")) for row in rows(section(API, "Errors"))}
    raised = {
        (kind.status, kind.type)
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.GlowplugError)
    }
    assert documented == raised


def test_stages() -> None:
    documented = {row[0].strip("`") for row in rows(section(API, "Stages"))}
    assert OWN_STAGES - {"stream"} <= documented  # that one is in the log only


def test_a_function_as_it_is_shown() -> None:
    function = Function(spec=FunctionSpec(name="a", model="/m"), generation=1)
    documented = [
        name.strip(" `")
        for row in rows(section(API, "Control"))
        if not row[0].startswith(("`GET", "`POST", "`PUT", "`DELETE", "field", "---"))
        for name in row[0].split(",")
    ]
    assert documented == list(represent(function, None, base_url="http://host"))


def test_a_forecast_as_it_is_shown() -> None:
    spec = FunctionSpec(name="a", model="/m")
    shown = report(
        spec, verdict_of(spec, None, None), forecast=None, backtest=None, hours=1, now_s=0.0
    )
    documented = [
        name.strip(" `") for row in rows(section(API, "Forecast")) for name in row[0].split(",")
    ]
    assert documented == list(shown)


def test_parameters() -> None:
    text = section(API, "Invoke").split("Supported: ")[1].split("A parameter that")[0]
    named = {name.partition(".")[0] for name in re.findall(r"`([a-z_.]+)`", text)}
    assert (
        named <= ChatCompletionRequest.model_fields.keys() | CompletionRequest.model_fields.keys()
    )
    assert {"messages", "prompt", "max_tokens", "stream_options", "ignore_eos"} <= named


def test_embeddings() -> None:
    text = section(API, "Embeddings")
    documented = {row[0].strip("`") for row in rows(text) if row[0].startswith("`")}
    assert documented == EmbeddingRequest.model_fields.keys() - {"model"}
    assert f"{MAX_INPUTS} inputs and {MAX_TOTAL_TOKENS:,} tokens" in text


def test_options_of_serve() -> None:
    text = section((DOCS / "operations.md").read_text(), "Run it")
    documented = [row[0].strip("`") for row in rows(text)]
    options = [parameter.opts[-1] for parameter in get_command(app).commands["serve"].params]
    assert documented == [option for option in options if option != "--help"]
