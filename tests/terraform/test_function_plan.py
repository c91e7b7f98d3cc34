"""What a plan says against a configuration: at the attribute, and all of it at once."""

import pytest
from terraform_runs import Workspace

FUNCTION = """
resource "glowplug_function" "it" {{
  name = {name}
  model {{
    source = {source}
    dtype  = {dtype}
    {model}
  }}
  {more}
}}
{other}
"""


def configuration(**parts: str) -> str:
    given = {"name": '"chat"', "source": '"/models/chat"', "dtype": '"float32"'}
    return FUNCTION.format(**{"model": "", "more": "", "other": ""} | given | parts)


@pytest.mark.parametrize(
    ("parts", "summary", "detail", "line"),
    [
        ({"name": '"Chat"'}, "name", "Use lower-case letters", 'name = "Chat"'),
        ({"dtype": '"float8"'}, "model.dtype", "'bfloat16' or 'float32'", '= "float8"'),
        ({"source": '"ftp://x/y"'}, "model.source", "no kind of source", "source = "),
        (
            {"model": 'quantization = "int8"'},
            "model.quantization",
            "dtype bfloat16, not float32",
            "quantization =",
        ),
        (
            {"more": "scaling {\n min_replicas = 3\n max_replicas = 2\n }"},
            "scaling.min_replicas",
            "over max_replicas 2",
            "min_replicas = 3",
        ),
        (
            {"more": "scaling {\n max_replicas = 0\n }"},
            "scaling.max_replicas",
            "greater than or equal to 1",
            "max_replicas = 0",
        ),
        (
            {"more": 'predictive {\n timezone = "Europe/Berln"\n }'},
            "predictive.timezone",
            "(is Europe/Berlin meant?)",
            'timezone = "Europe/Berln"',
        ),
        (
            {"more": 'keep_alive {\n idle = "5 minutes"\n }'},
            "keep_alive.idle",
            "is not a duration",
            'idle = "5 minutes"',
        ),
        (
            {"more": "queue {\n max_requests = 0\n }"},
            "queue.max_requests",
            "greater than or equal to 1",
            "max_requests = 0",
        ),
        (
            {"more": 'adapters = { "a b" = "/x" }'},
            "adapters",
            "is not a name for an adapter",
            "adapters = ",
        ),
        ({"more": 'wait_timeout = "soon"'}, "wait_timeout", "is not a duration", "wait_timeout ="),
    ],
    ids=lambda each: each if isinstance(each, str) and "." in each else None,
)
def test_a_wrong_setting_of_a_function(
    workspace: Workspace, parts: dict[str, str], summary: str, detail: str, line: str
) -> None:
    workspace.write(configuration(**parts))
    [(said, why, where)] = workspace.errors()
    assert said == f"Invalid {summary}"
    assert detail in why
    assert line in where


def test_all_mistakes_show_at_once(workspace: Workspace) -> None:
    more = 'scaling {\n min_replicas = 2\n }\n predictive {\n timezone = "Mars"\n }'
    workspace.write(configuration(dtype='"half"', name='"A"', more=more))
    assert sorted(said for said, _, _ in workspace.errors()) == [
        "Invalid model.dtype",
        "Invalid name",
        "Invalid predictive.timezone",
        "Invalid scaling.min_replicas",
    ]


def test_what_is_not_known_is_not_held_against_the_rest(workspace: Workspace) -> None:
    other = 'variable "most" {\n type = number\n default = 4\n }'
    more = "scaling {\n min_replicas = 3\n max_replicas = var.most\n }"
    workspace.write(configuration(more=more, other=other))
    assert workspace.errors() == []
    assert workspace.plan().code == 2
    assert "over max_replicas 2" in workspace.plan("-var", "most=2").output


@pytest.mark.parametrize(
    ("lines", "summary", "detail"),
    [
        ('cron = "0 8 * *"\n duration = "1h"', "cron", "does not have five fields"),
        ('cron = "0 8 31 2 *"\n duration = "1h"', "cron", "never fires"),
        ('at = "tomorrow"\n duration = "1h"', "at", "is no time"),
        ('cron = "0 8 * * *"\n duration = "1s"', "duration", "greater than or equal to 60"),
        ('cron = "0 8 * * *"\n duration = "1h"\n timezone = "CET-1"', "timezone", "no time zone"),
        ('cron = "0 8 * * *"\n duration = "1h"\n min_replicas = 0', "min_replicas", "equal to 1"),
    ],
)
def test_a_wrong_setting_of_a_prewarm(
    workspace: Workspace, lines: str, summary: str, detail: str
) -> None:
    workspace.write(
        f'resource "glowplug_prewarm" "it" {{\n function = "chat"\n name = "x"\n {lines}\n }}'
    )
    [(said, why, where)] = workspace.errors()
    assert said == f"Invalid {summary}"
    assert detail in why
    assert where.startswith(summary)


@pytest.mark.parametrize(
    ("lines", "detail"),
    [
        ("", "neither cron nor at"),
        ('cron = "0 8 * * *"\n at = "2040-01-01T08:00"', "both cron and"),
    ],
)
def test_a_prewarm_has_one_of_cron_and_at(workspace: Workspace, lines: str, detail: str) -> None:
    workspace.write(
        'resource "glowplug_prewarm" "it" {\n function = "chat"\n name = "x"\n'
        f' duration = "1h"\n {lines}\n }}'
    )
    [(said, why, _)] = workspace.errors()
    assert said == "Invalid settings"
    assert detail in why


@pytest.mark.parametrize(
    ("settings", "summary", "detail"),
    [
        ('endpoint = "localhost:8080"', "endpoint", "must start with http://"),
        ('timeout = "never"', "timeout", "is not a duration"),
        ('ca_file = "/x.pem"\n insecure = true', "insecure", "drop one"),
    ],
)
def test_a_wrong_setting_of_the_provider(
    workspace: Workspace, settings: str, summary: str, detail: str
) -> None:
    workspace.write(f'provider "glowplug" {{\n {settings}\n }}\n' + configuration())
    [(said, why, where)] = workspace.errors()
    assert said == f"Invalid {summary}"
    assert detail in why
    assert where.startswith(summary)
