"""What `glowplug why` shows a person."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from glowplug.explanation import rough

if TYPE_CHECKING:
    from glowplug.client import Json

_WIDTHS = {"WHEN": 14, "WHAT": 16}  # the same in each table, as --follow shows several
_STYLES = {
    "desired": "bold",
    "ready": "green",
    "start_failed": "red",
    "died": "red",
    "seal_failed": "red",
    "breaker_opened": "red",
}
_WORDS = {
    "starting": "start",
    "start_failed": "start failed",
    "seal_failed": "seal failed",
    "breaker_opened": "breaker opened",
    "server_started": "server started",
    "prewarm_launched": "prewarm begins",
    "prewarm_ended": "prewarm ends",
}


def event_lines(events: "Sequence[Json]") -> Table:
    """One row an event."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("WHEN", "WHAT", "WHY", "FROM"):
        table.add_column(column, min_width=_WIDTHS.get(column), overflow="fold")
    for event in events:
        table.add_row(
            local_time(event["at"]),
            f"[{_STYLES.get(event['event'], 'dim')}]{what(event)}[/]",
            escape(reason(event)),
            escape(inputs_text(event["inputs"])),
        )
    return table


def now_lines(now: "Json") -> Group:
    """How it is now and what is next."""
    lines = [Text(f"\nnow {now['desired']}: {now['verdict']}", style="bold")]
    if now["inputs"]:
        lines.append(Text(f"from {inputs_text(now['inputs'])}"))
    if change := now["next_change"]:
        lines.append(Text(f"next change: {local_time(change['at'])} → {change['desired']}"))
    if prewarm := now["next_prewarm"]:
        text = f"{prewarm['launch'].replace('T', ' ')} for '{prewarm['name']}'"
        lines.append(Text(f"next prewarm: {text}, {prewarm['replicas']} replicas"))
    return Group(*lines)


def what(event: "Json") -> str:
    """In a word or two."""
    if event["event"] == "desired":
        return f"{event['before']} → {event['after']}"
    kind: str = event["event"]
    return _WORDS.get(kind, kind)


def reason(event: "Json") -> str:
    """Why, and of which replica."""
    return ": ".join(part for part in (event["replica"], event["reason"]) if part)


def inputs_text(inputs: "Json | None") -> str:
    """What a decision was made from, without what says nothing."""
    if inputs is None:
        return ""
    parts = [
        f"{inputs[name]} {word}"
        for name, word in (
            ("in_flight", "in flight"),
            ("queued", "queued"),
            ("arrivals", "new"),
            ("ready", "ready"),
            ("starting", "starting"),
            ("outdated", "outdated"),
        )
        if inputs[name]
    ]
    if inputs["idle_s"]:
        parts.append(f"idle {inputs['idle_s']:.1f} s")
    if inputs["next_call_s"] is not None:
        parts.append(f"next call expected in {rough(inputs['next_call_s'])}")
    if inputs["cold_start_cost_s"] is not None:
        parts.append(f"a cold start costs {inputs['cold_start_cost_s']:.0f} s")
    parts += [f"at least {floor['replicas']}: {floor['reason']}" for floor in inputs["floors"]]
    if breaker := inputs["breaker"]:
        failures = breaker["failures"] or breaker["deaths"]
        state = "open" if breaker["open"] else "closed"
        parts.append(f"{failures} failures, breaker {state}")
    return ", ".join(parts) or "nothing to do"


def local_time(text: str) -> str:
    """The local time of a UTC time; the date only where it is not today's."""
    moment = datetime.fromisoformat(text).astimezone()
    is_today = moment.date() == datetime.now().astimezone().date()
    clock = moment.strftime("%H:%M:%S.%f")[:-5]
    return clock if is_today else f"{moment:%m-%d} {clock}"
