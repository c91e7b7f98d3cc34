"""Demand reports: the edge, the arrivals between plans, restarts on either side."""

from glowplug.contracts import DemandReport
from scaler.demand import DemandTable
from scaler.plan import Demand


def make_report(
    *, reporter="a", sequence=0, in_flight=0, queued=0, arrivals=0, peak=0, last_active_s=5.0
):
    return DemandReport(
        function="f",
        reporter=reporter,
        sequence=sequence,
        peak=peak,
        in_flight=in_flight,
        queued=queued,
        oldest_wait_s=0.0,
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
