"""Traces as minutes: checked against a count by hand at every moment that matters."""

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.minutes import Minute
from scaler.trace_minutes import DAY, WEEK, minutes_of, shifted
from scaler.traces import Trace


def trace_of(arrivals_s: list[float]) -> Trace:
    return Trace(
        arrivals_s=array("d", sorted(arrivals_s)),
        prompt_tokens=array("q"),
        generated_tokens=array("q"),
    )


def test_bursts_long_requests_and_an_offset_within_the_minute() -> None:
    trace = trace_of([0.0, 1.0, 2.5, 100.0])
    assert minutes_of(trace, start_s=50.0, service_s=2.0) == [
        Minute(minute=0, arrivals=3, peak=2, finished=3, service_s=6.0),
        Minute(minute=2, arrivals=1, peak=1, finished=1, service_s=2.0),
    ]
    assert minutes_of(trace_of([0.0, 1.0, 2.5]), start_s=600.0, service_s=150.0) == [
        Minute(minute=10, arrivals=3, peak=3),
        Minute(minute=11, peak=3),
        Minute(minute=12, peak=3, finished=3, service_s=450.0),
    ]
    assert minutes_of(trace_of([]), start_s=0.0, service_s=1.0) == []


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 900), max_size=40), st.integers(1, 400), st.integers(0, 130))
def test_minutes_are_those_of_a_count_at_every_second(
    arrivals: list[int], service: int, start: int
) -> None:
    """Requests begin at whole seconds and end at half ones: nothing changes in between."""
    service_s = service + 0.5
    minutes = minutes_of(trace_of(list(arrivals)), start_s=float(start), service_s=service_s)
    begun = [start + each for each in arrivals]
    expected: dict[int, dict[str, int]] = {}
    for half in range(2 * start, 2 * (start + 901 + service)):
        now = half / 2
        minute = expected.setdefault(half // 120, {"arrivals": 0, "peak": 0, "finished": 0})
        minute["arrivals"] += begun.count(now)
        minute["finished"] += begun.count(now - service_s)
        open_now = sum(each <= now < each + service_s for each in begun)
        minute["peak"] = max(minute["peak"], open_now)
    assert minutes == [
        Minute(minute=minute, **counts, service_s=service_s * counts["finished"])
        for minute, counts in sorted(expected.items())
        if any(counts.values())
    ]


@settings(derandomize=True)
@given(
    st.lists(st.integers(0, 50_000_000), min_size=1, max_size=5, unique=True),
    st.integers(0, 50_000_000),
    st.sampled_from([DAY, WEEK]),
)
def test_shifting_keeps_distances_and_the_place_in_the_step(
    minutes: list[int], newest: int, step: int
) -> None:
    before = [Minute(minute=each, arrivals=1) for each in sorted(minutes)]
    after = shifted(before, newest=newest, step=step)
    moved = {new.minute - old.minute for new, old in zip(after, before, strict=True)}
    assert len(moved) == 1
    assert moved.pop() % step == 0
    assert newest - step < after[-1].minute <= newest


def test_nothing_shifts_to_nothing() -> None:
    assert shifted([], newest=5, step=DAY) == []
