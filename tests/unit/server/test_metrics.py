"""The replica's metrics: what becomes of sequences is counted, and timed by the steps' clock."""

from prometheus_client.parser import text_string_to_metric_families

from runtime.engine.limits import EngineStats
from runtime.engine.request import Delta, FinishReason, GenerationRequest, SamplingParams
from runtime.engine.step_sizes import BOUNDS, StepSizes
from runtime.pod.child_wire import MAX_PACKET_BYTES
from runtime.server.metrics import ReplicaMetrics

LABELS = {"function": "f", "revision": "r"}


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def stats(**changes: object) -> EngineStats:
    figures = {
        "running": 2,
        "waiting": 1,
        "blocks": 10,
        "free_blocks": 4,
        "preemptions": 3,
        "steps": 5,
        "prefix_queries": 50,
        "prefix_hits": 16,
        "drafts_proposed": (5, 4, 1),
        "drafts_accepted": (4, 2, 0),
        "drafts_by_method": {},
        "step_tokens": 12,
        "step_sizes": (1, 0, 2, *[0] * 11),
    }
    return EngineStats(**(figures | changes))  # type: ignore[arg-type]


def request(name: str, prompt_tokens: int = 7) -> GenerationRequest:
    params = SamplingParams(max_tokens=8)
    return GenerationRequest(id=name, prompt=(1,) * prompt_tokens, params=params)


def make(function: str = "f") -> tuple[ReplicaMetrics, Clock]:
    clock = Clock()
    return ReplicaMetrics(function=function, revision="r", now=clock), clock


def value(metrics: ReplicaMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"glowplug_{name}", LABELS | labels)


def test_a_sequence_from_its_arrival_to_its_end() -> None:
    metrics, _ = make()
    metrics.submitted(request("a"))
    first = Delta(text="x", tokens=(5,), stages_ms={"queue": 20.0, "prefill": 180.0})
    metrics.step([("a", first)], at_s=100.25)
    metrics.step([("a", Delta(tokens=(6,)))], at_s=100.3125)
    metrics.step([("a", Delta(tokens=(7, 8), finish=FinishReason.LENGTH))], at_s=100.50)
    assert value(metrics, "prompt_tokens_total") == 7
    assert value(metrics, "generation_tokens_total") == 4
    assert value(metrics, "time_to_first_token_seconds_sum") == 0.25
    assert value(metrics, "request_queue_time_seconds_sum") == 0.02
    assert value(metrics, "request_prefill_time_seconds_sum") == 0.18
    assert value(metrics, "e2e_request_latency_seconds_sum") == 0.5
    assert value(metrics, "request_decode_time_seconds_sum") == 0.25
    assert value(metrics, "request_success_total", finished_reason="length") == 1
    assert value(metrics, "request_success_total", finished_reason="stop") == 0
    # one gap of 62 ms, and one of 188 ms that two tokens share
    assert value(metrics, "inter_token_latency_seconds_count") == 3
    assert value(metrics, "inter_token_latency_seconds_bucket", le="0.075") == 1
    assert value(metrics, "inter_token_latency_seconds_bucket", le="0.1") == 3


def test_aborts_and_errors_are_no_success() -> None:
    metrics, _ = make()
    for name in ("gone", "bad", "shut", "good"):
        metrics.submitted(request(name))
    metrics.dropped("gone")
    metrics.dropped("gone")
    metrics.step([("gone", Delta(tokens=(1,)))], at_s=101.0)  # it was being made meanwhile
    metrics.step([("bad", Delta(finish=FinishReason.ERROR, error="x"))], at_s=101.0)
    metrics.step([("shut", Delta(finish=FinishReason.ABORT))], at_s=101.0)
    metrics.step([("good", Delta(tokens=(1,), finish=FinishReason.STOP, stages_ms={}))], at_s=101.0)
    metrics.dropped("good")  # it has ended: that is no abort
    assert value(metrics, "request_aborts_total") == 2
    assert value(metrics, "request_errors_total") == 1
    assert value(metrics, "request_success_total", finished_reason="stop") == 1
    assert value(metrics, "generation_tokens_total") == 1


def test_the_engines_own_figures() -> None:
    metrics, _ = make()
    assert value(metrics, "num_requests_running") is None
    metrics.connect(stats)
    assert value(metrics, "num_requests_running") == 2
    assert value(metrics, "num_requests_waiting") == 1
    assert value(metrics, "kv_cache_usage_perc") == 0.6
    assert value(metrics, "num_preemptions_total") == 3
    assert value(metrics, "prefix_cache_queries_total") == 50
    assert value(metrics, "prefix_cache_hits_total") == 16
    assert value(metrics, "spec_decode_num_drafts_total") == 5
    assert value(metrics, "spec_decode_num_draft_tokens_total") == 10
    assert value(metrics, "spec_decode_num_accepted_tokens_total") == 6
    assert value(metrics, "spec_decode_num_accepted_tokens_per_pos_total", position="1") == 2
    assert value(metrics, "iteration_tokens_total_sum") == 12
    assert value(metrics, "iteration_tokens_total_bucket", le="1.0") == 1
    assert value(metrics, "iteration_tokens_total_bucket", le="4.0") == 3
    assert value(metrics, "iteration_tokens_total_bucket", le="+Inf") == 3


def test_step_sizes_fall_into_their_classes() -> None:
    sizes = StepSizes()
    for tokens in (1, 2, 3, 4, 5, 4096, 4097, 10**6):
        sizes.add(tokens)
    assert sizes.counts[:4] == [1, 1, 2, 1]
    assert sizes.counts[BOUNDS.index(4096) :] == [1, 2]
    assert sizes.tokens == sum((1, 2, 3, 4, 5, 4096, 4097, 10**6))


def test_each_change_is_told() -> None:
    metrics, _ = make()
    told = []
    metrics.on_change = lambda: told.append(1)
    metrics.submitted(request("a"))
    metrics.step([("a", Delta(tokens=(1,), stages_ms={}))], at_s=101.0)
    metrics.dropped("a")
    metrics.dropped("a")
    assert len(told) == 3


def test_the_text_is_prometheus_and_fits_a_packet_of_the_pod() -> None:
    metrics, _ = make(function="f" * 63)
    metrics.connect(lambda: stats(drafts_proposed=(10**9,) * 12, drafts_accepted=(10**9,) * 12))
    text = metrics.text()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(families) > 15
    assert all(name.startswith("glowplug_") for name in families)
    for family in families.values():
        for sample in family.samples:
            assert sample.labels["function"] == "f" * 63
            assert sample.labels.keys() <= {
                "function",
                "revision",
                "le",
                "finished_reason",
                "position",
            }
    assert len(text) * 1.2 < MAX_PACKET_BYTES  # JSON escapes quotes and newlines
