"""Tables: the order of stages, and what of the time no stage has."""

from rich.console import Console

from glowplug.cli.views import timing_table
from glowplug.client import Answer


def answer(timing: str, **seen: float) -> Answer:
    result = Answer({"server-timing": timing}, iter(()), 0.0)
    for name, value in seen.items():
        setattr(result, name, value)
    return result


def rows_of(*columns: tuple[str, Answer]) -> list[list[str]]:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(timing_table(columns))
    return [line.split() for line in capture.get().splitlines() if line.strip()]


def test_stages_of_all_columns_in_one_order() -> None:
    cold = answer("read;dur=1, assign;dur=2, start;dur=30, prefill;dur=40, start-map;dur=5")
    warm = answer("read;dur=1, queue;dur=2, prefill;dur=9")
    names = [row[0] for row in rows_of(("cold", cold), ("warm", warm))]
    assert [name for name in names if name in ("read", "queue", "assign", "start", "map")] == [
        "read",
        "queue",
        "assign",
        "start",
        "map",
    ]
    assert names.index("prefill") > names.index("map")


def test_what_no_stage_has_is_shown() -> None:
    cold = answer("read;dur=1, start;dur=30, start-map;dur=25", ttft_ms=50.0, total_ms=150.0)
    cold.completion_tokens = 11
    shown = {row[0]: row[-1] for row in rows_of(("cold", cold))}
    assert shown["network,"] == "19.0"  # the parts of a start are not counted twice
    assert shown["tokens/s"] == "100.0"


def test_a_stage_that_a_call_did_not_have() -> None:
    shown = {row[0]: row[1:] for row in rows_of(("a", answer("x;dur=1")), ("b", answer("y;dur=2")))}
    assert (shown["x"], shown["y"]) == (["1.0", "–"], ["–", "2.0"])
