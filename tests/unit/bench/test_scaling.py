"""bench/scaling.py: its arithmetic, and what it says where it cannot run."""

import json
import math
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench"


@pytest.fixture
def figures(monkeypatch):
    """The modules of a script import each other by name."""
    monkeypatch.syspath_prepend(BENCH)
    import scaling_figures

    return scaling_figures


def make_run(figures, policy, wasted_s, cold_starts, *, cost_s=None, seed=0, waits_s=()):
    return figures.Run(
        part="azure",
        traffic="code 2%",
        seed=seed,
        policy=policy,
        cost_s=cost_s,
        wasted_s=wasted_s,
        cold_starts=cold_starts,
        wakes=10,
        requests=20,
        cold_requests=sum(cold_starts),
        starts=sum(cold_starts),
        replica_s=100.0,
        waits_s=array("d", waits_s),
    )


def test_ratios_are_geometric_means_over_settings(figures):
    runs = []
    for seed, ours in ((0, 50.0), (1, 200.0)):
        runs += [
            make_run(figures, "glowplug", [ours, 0.0], [0, 0], cost_s=30.0, seed=seed),
            make_run(figures, "KPA", [0.0, 40.0], [1, 1], seed=seed),  # J = 100
            make_run(figures, "fixed 0 s", [0.0, 0.0], [5, 5], seed=seed),  # J = 300
            make_run(figures, "fixed 30 s", [90.0, 80.0], [0, 1], seed=seed),  # J = 200
        ]
    table = figures.Table(runs, [30.0])
    kpa = table.ratio(("KPA",))
    assert (kpa.mean, kpa.worst, kpa.settings) == (pytest.approx(1), pytest.approx(2), 2)
    best = table.ratio(("fixed 0 s", "fixed 30 s"))
    assert best.mean == pytest.approx(0.5)
    assert best.low <= best.mean <= best.high
    assert table.ratio(("KEDA",)) is None
    ours = next(row for row in table.rows() if row.policy == "glowplug")
    assert (ours.seeds, ours.J, ours.over_best_fixed) == (2, 125.0, pytest.approx(0.5))


def test_an_interval_is_narrow_where_functions_are_alike_and_wide_where_not(figures):
    def interval(ours):
        runs = [
            make_run(figures, "glowplug", ours, [0] * 20, cost_s=30.0),
            make_run(figures, "KPA", [100.0] * 20, [0] * 20),
        ]
        ratio = figures.Table(runs, [30.0]).ratio(("KPA",))
        assert ratio.mean == pytest.approx(0.5)
        return ratio.high - ratio.low

    assert interval([50.0] * 20) == pytest.approx(0)
    assert interval([0.0, 100.0] * 10) > 0.3


@pytest.mark.parametrize(
    ("share", "wait_s"), [(0.5, 0.0), (0.9, 0.0), (0.91, 1.0), (0.95, 5.0), (0.99, 9.0), (1, 10)]
)
def test_percentiles_count_those_that_did_not_wait(figures, share, wait_s):
    waits_s = [float(wait_s) for wait_s in range(1, 11)]
    assert figures.percentile(waits_s, share, of=100) == wait_s


def scaling(*arguments):
    return subprocess.run(
        [sys.executable, str(BENCH / "scaling.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_without_the_traces_the_rest_still_runs(tmp_path):
    options = ("--quick", "--parts", "azure,curve", "--traces", str(tmp_path), "--json")
    done = scaling(*options)
    assert done.returncode == 0, done.stderr
    assert "AzureLLMInferenceTrace_code.csv.gz" in done.stderr
    assert "--traces" in done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--parts", "azur"), "azur"),
        (("--tier", "nowhere"), "standby_page_cache"),
        (("--plot", "plot.gif"), ".png"),
        (("--jobs", "0"), "--jobs"),
    ],
)
def test_bad_options_name_themselves(arguments, words):
    done = scaling(*arguments)
    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_the_start_times_are_as_the_cold_start_bench_writes_them():
    times = json.loads((BENCH / "start_times.json").read_text())
    assert "standby_page_cache" in times["tiers"]
    assert all(ms >= 0 and math.isfinite(ms) for tier in times["tiers"].values() for ms in tier)
