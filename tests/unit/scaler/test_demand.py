"""Demand reports: the edge, the arrivals between plans, several activators, restarts."""

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glowplug.contracts import DemandReport
from scaler.demand import SILENT_S, DemandTable
from scaler.load import NO_LOAD, average
from scaler.plan import Demand


def make_report(
    *,
    reporter="a",
    sequence=0,
    in_flight=0,
    queued=0,
    oldest_wait_s=0.0,
    arrivals=0,
    peak=0,
    last_active_s=5.0,
):
    return DemandReport(
        function="f",
        reporter=reporter,
        sequence=sequence,
        peak=peak,
        in_flight=in_flight,
        queued=queued,
        oldest_wait_s=oldest_wait_s,
        arrivals=arrivals,
        last_active_s=last_active_s,
    )


def test_the_edge_is_told_once_per_filling_of_the_queue():
    table, edges = DemandTable(), []
    table.subscribe(edges.append)
    table.report(make_report())
    assert edges == []
    table.report(make_report(queued=1, arrivals=1))
    table.report(make_report(queued=2, arrivals=2))
    assert edges == ["f"]
    table.report(make_report(in_flight=2, arrivals=2))
    table.report(make_report(in_flight=2, queued=1, arrivals=3))
    assert edges == ["f", "f"]


def test_who_listens_hears_when_a_function_turns_idle_or_busy():
    table, turns = DemandTable(), []
    table.subscribe_turns(turns.append)
    table.report(make_report())
    assert turns == []
    table.report(make_report(queued=1, arrivals=1))
    table.report(make_report(in_flight=1, arrivals=1))
    table.report(make_report(in_flight=1, queued=2, arrivals=3))
    assert len(turns) == 1
    table.report(make_report(reporter="b", in_flight=1, arrivals=1))
    table.report(make_report(arrivals=3))
    assert len(turns) == 1
    table.report(make_report(reporter="b", arrivals=1))
    assert turns == ["f", "f"]


def test_brief_demand_is_counted_until_taken():
    table = DemandTable()
    table.report(make_report(queued=1, arrivals=1))
    table.report(make_report(queued=0, arrivals=1))
    assert table.take("f").arrivals == 1
    assert table.take("f").arrivals == 0
    table.report(make_report(arrivals=4))
    assert table.take("f").arrivals == 3


def test_a_new_scaler_does_not_take_old_arrivals_for_demand():
    table = DemandTable()
    table.report(make_report(arrivals=5000))
    assert table.take("f") == Demand(last_active_s=5.0)


def test_a_new_activator_starts_to_count_again():
    table, edges = DemandTable(), []
    table.subscribe(edges.append)
    table.report(make_report(queued=3, arrivals=900))
    table.take("f")
    table.report(make_report(reporter="b", queued=2, arrivals=2))
    assert table.take("f").arrivals == 2
    assert len(edges) == 2


def test_a_forgotten_function_has_no_demand():
    table = DemandTable()
    table.report(make_report(queued=3, in_flight=2, arrivals=5))
    assert (table.in_flight("f"), table.queued("f")) == (2, 3)
    table.forget("f")
    assert table.take("f") == Demand()
    assert (table.in_flight("f"), table.queued("f")) == (0, 0)


def test_the_reports_of_several_activators_add_up():
    table, edges = DemandTable(), []
    table.subscribe(edges.append)
    table.report(
        make_report(
            reporter="a", in_flight=2, queued=1, oldest_wait_s=4.0, arrivals=1, last_active_s=3.0
        )
    )
    table.report(
        make_report(
            reporter="b", in_flight=4, queued=2, oldest_wait_s=1.0, arrivals=2, last_active_s=9.0
        )
    )
    assert edges == ["f", "f"]
    assert table.take("f") == Demand(
        in_flight=6, queued=3, arrivals=3, oldest_wait_s=4.0, last_active_s=9.0
    )
    table.report(make_report(reporter="a", in_flight=3, arrivals=6, last_active_s=4.0))
    assert table.take("f") == Demand(
        in_flight=7, queued=2, arrivals=5, oldest_wait_s=1.0, last_active_s=9.0
    )
    assert (table.in_flight("f"), table.queued("f")) == (7, 2)


def test_late_and_repeated_reports_change_nothing():
    table = DemandTable()
    early = make_report(sequence=1, in_flight=1, queued=5, arrivals=6)
    late = make_report(sequence=2, in_flight=2, arrivals=9)
    for report in (early, late):
        table.report(report)
    assert table.take("f").arrivals == 5 + 3
    for report in (early, late, early, late):
        table.report(report)
    assert table.take("f") == Demand(in_flight=2, arrivals=0, last_active_s=5.0)


def test_a_silent_activator_is_forgotten_and_its_arrivals_are_not():
    now_s = 100.0
    table = DemandTable(clock=lambda: now_s)

    def pass_(seconds):
        """While the other one reports on."""
        nonlocal now_s
        for _ in range(seconds):
            now_s += 1.0
            table.report(make_report(reporter="b", in_flight=1))

    table.report(make_report(reporter="a", in_flight=2, queued=1, arrivals=1))
    pass_(int(SILENT_S))
    assert table.take("f").in_flight == 3
    table.report(make_report(reporter="a", in_flight=2, queued=1, arrivals=4))
    pass_(int(SILENT_S) + 1)
    assert table.take("f") == Demand(in_flight=1, arrivals=3, last_active_s=5.0)
    assert (table.in_flight("f"), table.queued("f")) == (1, 0)
    table.report(make_report(reporter="a", in_flight=5, arrivals=5000))  # it was only cut off
    assert table.take("f") == Demand(in_flight=6, arrivals=0, last_active_s=5.0)


def test_a_pause_of_this_process_is_no_silence_of_the_others():
    now_s = 100.0
    table = DemandTable(clock=lambda: now_s)
    table.report(make_report(in_flight=2))
    now_s += 600.0  # stopped, or the machine was
    assert table.take("f").in_flight == 2


def test_reporters_of_functions_that_nobody_takes_do_not_pile_up():
    now_s = 100.0
    table = DemandTable(clock=lambda: now_s)
    for number in range(50):
        table.report(make_report(reporter=f"r{number}"))
        now_s += 2.0
    assert len(table._functions["f"].reporters) <= SILENT_S / 2.0 + 1


@pytest.mark.parametrize(
    ("own", "peak"),
    [
        ({"in_flight": 1, "queued": 1, "peak": 2}, 9),  # as it is now
        ({"in_flight": 1, "peak": 5}, 12),  # a burst since the last report
        ({}, 7),
    ],
)
def test_the_peak_is_that_of_all_activators_together(own, peak):
    recorded = []
    table = DemandTable(lambda report, peak: recorded.append(peak))
    table.report(make_report(reporter="b", in_flight=4, queued=3, peak=9))
    table.report(make_report(reporter="a", **own))
    assert recorded == [9, peak]


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.integers(0, 4), st.integers(0, 3)),
        max_size=40,
    )
)
def test_sums_are_those_of_the_last_reports(reports):
    table, sequence = DemandTable(), count(1)
    last, counts, before = {}, {}, 0
    for reporter, in_flight, queued, more in reports:
        if reporter not in last:  # it has counted `more` before, and those that still wait
            before += more
            counts[reporter] = queued
        counts[reporter] += more
        last[reporter] = (in_flight, queued)
        table.report(
            make_report(
                reporter=reporter,
                sequence=next(sequence),
                in_flight=in_flight,
                queued=queued,
                arrivals=counts[reporter],
            )
        )
    assert table.in_flight("f") == sum(each[0] for each in last.values())
    assert table.queued("f") == sum(each[1] for each in last.values())
    assert table.take("f").arrivals == sum(counts.values()) - before


def test_the_load_counts_reports_that_no_plan_saw():
    clock = [100.0]
    table = DemandTable(now=lambda: clock[0])
    assert table.load("f") == NO_LOAD
    for seconds, waiting in ((0.0, 0), (10.0, 30), (0.5, 0), (1.5, 0)):
        clock[0] += seconds
        table.report(make_report(reporter="a", queued=waiting, arrivals=50))
        table.report(make_report(reporter="b", queued=waiting * 2 // 3, arrivals=50))
    assert average(table.load("f"), clock[0], 2.0) == 12.5  # 50 requests for half a second of two
    clock[0] += 60
    assert average(table.load("f"), clock[0], 60.0) == 0.0
    table.forget("f")
    assert table.load("f") == NO_LOAD


def test_the_load_of_an_activator_that_is_gone_ends():
    clock = [100.0]
    table = DemandTable(now=lambda: clock[0], clock=lambda: clock[0])
    table.report(make_report(reporter="a", in_flight=40))
    for _ in range(30):
        clock[0] += 1
        table.take("f")
    assert average(table.load("f"), clock[0], 30.0) == pytest.approx(40 * 11 / 30)
    assert average(table.load("f"), clock[0], 6.0) == 0.0
