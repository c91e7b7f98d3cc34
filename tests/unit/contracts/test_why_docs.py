"""docs/api.md and docs/operations.md name what `glowplug why` and its API say."""

import re
from dataclasses import fields

from activator.decisions import DEFAULT_LIMIT
from glowplug.cli.why_views import what
from glowplug.explanation import KEPT, BreakerInput, Cause, Event, EventKind, Inputs
from tests.unit.contracts.test_api_docs import API, DOCS, rows, section

OPERATIONS = (DOCS / "operations.md").read_text()


def documented(text: str, after: str) -> dict[str, str]:
    """Field → meaning, of the table with this head."""
    table = rows(text[text.index(f"| {after} |") :].split("\n\n", maxsplit=1)[0])
    return {name.strip(" `"): row[1] for row in table for name in row[0].split(",")}


def test_causes() -> None:
    assert list(documented(section(OPERATIONS, "Why"), "cause")) == list(Cause)


def test_events() -> None:
    shown = documented(section(API, "Decisions"), "field of an event")
    own = {field.name for field in fields(Event)} - {"at_s", "kind"} | {"at", "event"}
    assert shown.keys() == own
    assert set(re.findall(r"`(\w+)`", shown["event"])) == set(EventKind)


def test_inputs() -> None:
    shown = documented(section(API, "Decisions"), "field of `inputs`")
    assert list(shown) == [field.name for field in fields(Inputs)]
    of_breaker = re.findall(r'"(\w+)"', shown["breaker"])
    assert of_breaker == [field.name for field in fields(BreakerInput)]


def test_limits() -> None:
    assert f"`?limit={KEPT}` shows up to so many events, {DEFAULT_LIMIT} by default" in API


def test_every_kind_has_a_word() -> None:
    for kind in set(EventKind) - {EventKind.DESIRED}:
        assert "_" not in what({"event": kind.value})
