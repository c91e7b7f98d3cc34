"""What the commands show a person: tables and panels (rich)."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

if TYPE_CHECKING:
    from glowplug.client import Answer, Json
    from snapshot.adapter_store import CachedAdapter
    from snapshot.node_cache import CachedSnapshot

START_PREFIX = "start-"
STATE_STYLES = {
    "ready": "green",
    "starting": "yellow",
    "sealing": "yellow",
    "zero": "dim",
    "failed": "red",
}


def show(renderable: RenderableType) -> None:
    """Print to stdout; plain text where stdout is no terminal."""
    Console().print(renderable)


def function_table(functions: "Sequence[Json]") -> Table:
    """One row a function."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("NAME", "STATE", "REPLICAS", "IDLE", "MODEL", "INVOKE URL"):
        table.add_column(column, overflow="fold")
    for function in functions:
        spec = function["spec"]
        table.add_row(
            function["name"],
            _state(function["state"]),
            _replicas(function),
            "learned" if spec["idle_s"] is None else f"{spec['idle_s']:g}s",
            spec["model"],
            function["invoke_url"],
        )
    return table


def function_panel(function: "Json") -> Panel:
    """All of one function."""
    spec = function["spec"]
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for name, value in (
        ("state", _state(function["state"])),
        ("reason", escape(function["reason"] or "–")),
        ("replicas", f"{_replicas(function)}  ({escape(function['desired_reason']) or '–'})"),
        ("requests", f"{function['in_flight']} in flight, {function['queued']} queued"),
        ("model", escape(spec["model"])),
        ("revision", f"{function['revision']}, generation {function['generation']}"),
        ("snapshot", function["snapshot"] or "–"),
        ("context", _context(function)),
        *([("adapters", escape(", ".join(spec["adapters"])))] if spec["adapters"] else []),
        ("limits", _limits(spec)),
        ("invoke URL", function["invoke_url"]),
        ("OpenAI base URL", function["openai_base_url"]),
    ):
        facts.add_row(name, value)
    parts: list[RenderableType] = [facts]
    if function["last_start_ms"]:
        parts += ["", _stage_table("last start", function["last_start_ms"])]
    if function["prewarms"]:
        from glowplug.cli.prewarm_views import run_table

        parts += ["", run_table(function["prewarms"])]
    return Panel(Group(*parts), title=function["name"], title_align="left", expand=False)


def snapshot_table(
    snapshots: "Sequence[CachedSnapshot]", adapters: "Sequence[CachedAdapter]" = ()
) -> Table:
    """One row a snapshot, then one an adapter."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("SNAPSHOT", "MODEL", "WEIGHTS", "SIZE", "LAST USED", "STATE", "SOURCE"):
        table.add_column(column, overflow="fold")
    for snapshot in snapshots:
        table.add_row(
            snapshot.digest.removeprefix("sha256-")[:12],
            snapshot.architecture,
            snapshot.dtype if snapshot.quantization == "none" else snapshot.quantization,
            f"{snapshot.size_bytes / 2**20:.0f} MiB",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(snapshot.last_used_s)),
            ", ".join(_snapshot_states(snapshot)) or "–",
            escape(snapshot.source),
        )
    for adapter in adapters:
        table.add_row(
            adapter.digest.removeprefix("sha256-")[:12],
            "adapter",
            adapter.dtype,
            f"{adapter.size_bytes / 2**20:.0f} MiB",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(adapter.last_used_s)),
            ", ".join(_snapshot_states(adapter)) or "–",
            f"for {adapter.matrices} matrices",
        )
    return table


def _snapshot_states(snapshot: "CachedSnapshot | CachedAdapter") -> list[str]:
    return ["in use"] * bool(snapshot.users) + ["pinned"] * snapshot.pinned


def timing_table(columns: "Sequence[tuple[str, Answer]]") -> Table:
    """Where the time of each call went: the stages in order, then what the client saw.

    The stages of a start lie inside `assign` and `start`; all others follow each other.
    """
    answers = [answer for _, answer in columns]
    names = _in_order([list(answer.stages_ms) for answer in answers])
    table = Table(title="Where the time went (ms)", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("")
    for title, _ in columns:
        table.add_column(title, justify="right")
    table.add_row("replica found by", *(answer.start_kind for answer in answers))
    for name in names:
        if not name.startswith(START_PREFIX):
            table.add_row(name, *(_ms(answer.stages_ms.get(name)) for answer in answers))
        if name == "start" or (name == "assign" and "start" not in names):
            for part in names:
                if part.startswith(START_PREFIX):
                    cells = (_ms(answer.stages_ms.get(part)) for answer in answers)
                    table.add_row(f"  {part.removeprefix(START_PREFIX)}", *cells, style="dim")
    table.add_row("network, client", *(_ms(_rest_ms(answer)) for answer in answers))
    table.add_section()
    table.add_row("first token", *(_ms(answer.ttft_ms) for answer in answers), style="bold")
    table.add_row("whole answer", *(_ms(answer.total_ms) for answer in answers))
    table.add_row("tokens", *(str(answer.completion_tokens or "–") for answer in answers))
    table.add_row("tokens/s", *(_ms(answer.tokens_per_s) for answer in answers))
    return table


def _in_order(lists: Sequence[Sequence[str]]) -> list[str]:
    """All the names, each after the one that it follows in its own list."""
    merged: list[str] = []
    for names in lists:
        place = 0
        for name in names:
            if name not in merged:
                merged.insert(place, name)
            place = merged.index(name) + 1
    return merged


def _rest_ms(answer: "Answer") -> float | None:
    """What of the time to the first token no stage has."""
    if answer.ttft_ms is None:
        return None
    stages = answer.stages_ms.items()
    known_ms = sum(ms for name, ms in stages if not name.startswith(START_PREFIX))
    return max(0.0, answer.ttft_ms - known_ms)


def _stage_table(title: str, stages_ms: "Mapping[str, float]") -> Table:
    table = Table(title=f"{title} (ms)", title_justify="left", box=None, show_header=False)
    for name, ms in stages_ms.items():
        table.add_row(name, _ms(ms))
    table.add_row("sum", _ms(sum(stages_ms.values())), style="bold")
    table.columns[1].justify = "right"
    return table


def _context(function: "Json") -> str:
    """What a replica has said, else what is known before the first start."""
    if tokens := function["max_context"]:
        return f"{tokens} tokens"
    asked = function["spec"]["max_context"]
    return f"{asked} tokens at most" if asked else "the model's; known after the first start"


def _limits(spec: "Json") -> str:
    idle = "learned idle time" if spec["idle_s"] is None else f"idle after {spec['idle_s']:g} s"
    first = spec["activation_replicas"]
    return (
        f"{spec['min_replicas']} to {spec['max_replicas']} replicas, "
        f"{f'{first} at the first request, ' if first > 1 else ''}priority {spec['priority']}, "
        f"{idle}, {spec['max_seqs']} sequences, "
        f"{spec['queue']['max_requests']} queued, start {spec['start_timeout_s']:g} s, "
        f"request {spec['request_timeout_s']:g} s"
    )


def _replicas(function: "Json") -> str:
    counts = function["replicas"]
    asleep = f", {counts['sleeping']} asleep" if counts["sleeping"] else ""
    return f"{counts['ready']}/{counts['desired']}{asleep}"


def _state(state: str) -> str:
    return f"[{STATE_STYLES.get(state, 'default')}]{state}[/]"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
