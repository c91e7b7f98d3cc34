"""Stages: the stopwatch books all of the time, and Server-Timing carries it unchanged."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glowplug.stages import Stopwatch, from_server_timing, to_server_timing

names = st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True)
stages = st.dictionaries(names, st.floats(0, 1e9), max_size=8)


@settings(derandomize=True)
@given(stages)
def test_server_timing_round_trip(times_ms: dict[str, float]) -> None:
    parsed = from_server_timing(to_server_timing(times_ms))
    assert list(parsed) == list(times_ms)
    assert parsed == pytest.approx(times_ms, abs=0.006)


@settings(derandomize=True)
@given(st.text(max_size=60))
def test_any_header_value_is_survived(value: str) -> None:
    assert all(ms >= 0 for ms in from_server_timing(value).values())


def test_entries_of_others_are_passed_over() -> None:
    value = 'cache;desc="hit", queue ; dur=1.50, db;dur=1.2.3, , prefill;dur=7'
    assert from_server_timing(value) == {"queue": 1.5, "prefill": 7.0}


def test_laps_add_up_to_the_whole_time() -> None:
    start_s = time.perf_counter()
    watch = Stopwatch()
    watch.lap("a")
    watch.lap("b")
    watch.lap("a")
    whole_ms = (time.perf_counter() - start_s) * 1e3
    assert list(watch.stages) == ["a", "b"]
    assert 0 < sum(watch.stages.values()) <= whole_ms


def test_a_stage_is_booked_even_when_it_fails() -> None:
    watch = Stopwatch()
    with pytest.raises(RuntimeError), watch.stage("broken"):
        raise RuntimeError
    assert watch.stages["broken"] >= 0
