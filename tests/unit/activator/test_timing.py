"""Laps: the stages follow each other without gap or overlap."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activator.timing import Laps

MOMENTS = st.lists(
    st.tuples(st.sampled_from(["read", "queue", "start"]), st.floats(0, 100)), max_size=20
)


@settings(max_examples=200, derandomize=True)
@given(MOMENTS)
def test_stages_add_up_to_the_whole(moments: list[tuple[str, float]]) -> None:
    laps = Laps(10.0)
    for stage, when_s in moments:
        laps.until(stage, when_s)
    end_s = max([10.0, *(when_s for _, when_s in moments)])
    assert sum(laps.stages.values()) == pytest.approx((end_s - 10.0) * 1e3, abs=1e-6)
    assert all(ms > 0 for ms in laps.stages.values())


def test_the_replicas_stages_are_taken_out_of_upstream() -> None:
    laps = Laps(0.0)
    laps.until("connect", 0.001)
    laps.until("upstream", 0.101)
    laps.split_upstream({"tokenize": 2.0, "queue": 3.0, "prefill": 80.0})
    assert laps.stages == pytest.approx(
        {"connect": 1.0, "tokenize": 2.0, "engine-queue": 3.0, "prefill": 80.0, "upstream": 15.0}
    )


def test_a_replica_that_claims_more_than_there_was_leaves_nothing_negative() -> None:
    laps = Laps(0.0)
    laps.until("upstream", 0.010)
    laps.split_upstream({"prefill": 50.0})
    assert laps.stages == {"prefill": 50.0, "upstream": 0.0}


def test_sum_over_some_stages() -> None:
    laps = Laps(0.0)
    laps.until("assign", 0.25)
    assert laps.sum_ms("assign", "start") == 250.0
