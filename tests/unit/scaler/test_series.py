"""The metrics of replicas that come and go, as one."""

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from glowplug.contracts import Replica, ReplicaState, StartKind
from scaler.fleets import series
from scaler.fleets.series import ReplicaSeries


def replica(name: str, function: str = "f", revision: str = "r") -> Replica:
    return Replica(
        id=name,
        function=function,
        revision=revision,
        state=ReplicaState.READY,
        url="",
        capacity=1,
        start_kind=StartKind.SNAPSHOT,
    )


def text(of: Replica, *, count: float, running: float = 0, usage: float = 0) -> str:
    labels = f'function="{of.function}",revision="{of.revision}"'
    return (
        "# HELP glowplug_tokens_total Tokens, of all kinds.\n"
        "# TYPE glowplug_tokens_total counter\n"
        f"glowplug_tokens_total{{{labels}}} {count}\n"
        "# HELP glowplug_running Now.\n"
        "# TYPE glowplug_running gauge\n"
        f"glowplug_running{{{labels}}} {running}\n"
        "# HELP glowplug_kv_cache_usage_perc Part.\n"
        "# TYPE glowplug_kv_cache_usage_perc gauge\n"
        f"glowplug_kv_cache_usage_perc{{{labels}}} {usage}\n"
        "# HELP glowplug_wait_seconds Wait.\n"
        "# TYPE glowplug_wait_seconds histogram\n"
        f'glowplug_wait_seconds_bucket{{{labels},le="1.0"}} {count}\n'
        f'glowplug_wait_seconds_bucket{{{labels},le="+Inf"}} {count}\n'
        f"glowplug_wait_seconds_count{{{labels}}} {count}\n"
        f"glowplug_wait_seconds_sum{{{labels}}} {count / 2}\n"
    )


def samples(page: str) -> dict[tuple[str, str, str], float]:
    """(sample, function, revision) → value, of the +Inf bucket only."""
    return {
        (sample.name, sample.labels["function"], sample.labels["revision"]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.labels.get("le", "+Inf") == "+Inf"
    }


def test_replicas_of_a_revision_are_added_up_and_outlive_their_end() -> None:
    all_of = ReplicaSeries()
    a, b = replica("a"), replica("b")
    all_of.take(a, text(a, count=3, running=2, usage=0.5))
    all_of.take(b, text(b, count=4, running=1, usage=0.25))
    seen = samples(all_of.text())
    assert seen["glowplug_tokens_total", "f", "r"] == 7
    assert seen["glowplug_running", "f", "r"] == 3
    assert seen["glowplug_kv_cache_usage_perc", "f", "r"] == 0.375
    all_of.take(a, text(a, count=5, running=0))
    all_of.ended(a)
    all_of.ended(b)
    all_of.ended(b)
    seen = samples(all_of.text())
    assert seen["glowplug_tokens_total", "f", "r"] == 9
    assert seen["glowplug_wait_seconds_bucket", "f", "r"] == 9
    assert seen["glowplug_wait_seconds_sum", "f", "r"] == 4.5
    assert ("glowplug_running", "f", "r") not in seen


def test_each_family_stands_in_one_place() -> None:
    all_of = ReplicaSeries()
    for function in ("f", "g"):
        one = replica(function, function)
        all_of.take(one, text(one, count=1))
    heads = [line for line in all_of.text().splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads)) == 4
    names = [line.split("{")[0] for line in all_of.text().splitlines() if line[0] != "#"]
    assert names[:2] == ["glowplug_tokens_total"] * 2


def test_what_is_remembered_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(series, "MAX_ENDED", 3)
    all_of = ReplicaSeries()
    for n in range(6):
        one = replica(f"r{n}", revision=str(n % 5))
        all_of.take(one, text(one, count=1))
        all_of.ended(one)
    revisions = {revision for _, _, revision in samples(all_of.text())}
    assert revisions == {"3", "4", "0"}


@settings(derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["count", "end"])), max_size=40))
def test_no_counter_is_lost_or_goes_backwards(events) -> None:
    """Four replica places, each of which is taken by one replica after another."""
    all_of = ReplicaSeries()
    lives, counts = [0] * 4, [0] * 4
    total, before = 0, 0.0
    for place, event in events:
        one = replica(f"{place}-{lives[place]}")
        if event == "count":
            counts[place] += 1
            total += 1
            all_of.take(one, text(one, count=counts[place]))
        else:
            all_of.ended(one)
            lives[place] += 1
            counts[place] = 0
        now = samples(all_of.text()).get(("glowplug_tokens_total", "f", "r"), 0.0)
        assert now == total >= before
        before = now
