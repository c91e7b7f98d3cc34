"""The replica's metrics, under the names that vLLM's users know: `glowplug_` for `vllm:`.

All is counted on the event loop: times of sequences from the deltas, stamped on the engine thread
as they are made; gauges and the engine's own counters when the metrics are read. The engine itself
pays for one addition a step. A sequence's time begins when the engine gets it, tokenised.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import Counter, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from glowplug.metrics import SECONDS, new_registry, text_of
from runtime.engine.limits import EngineStats
from runtime.engine.request import Delta, FinishReason, GenerationRequest
from runtime.engine.step_sizes import BOUNDS

_LABELS = ("function", "revision")
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)


@dataclass(slots=True)
class _Running:
    """A sequence that has not finished; times are time.perf_counter()."""

    prompt_tokens: int
    submitted_s: float
    first_s: float = 0.0  # of its first token
    last_s: float = 0.0  # of its last token so far


class ReplicaMetrics:
    """Implements runtime.server.engine_client.Observer. Made before the engine, then connected."""

    def __init__(self, *, function: str, revision: str, now: Callable[[], float]) -> None:
        """`now` is the clock of the steps, time.perf_counter. `on_change` is called after each
        change that the text would show."""
        self.on_change: Callable[[], None] = lambda: None
        self.registry = new_registry()
        self._now = now
        self._labels = (function, revision)
        self._running: dict[str, _Running] = {}

        self._prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts.")
        self._generation_tokens = self._counter("generation_tokens", "Generated tokens.")
        self._aborts = self._counter("request_aborts", "Sequences whose client went away.")
        self._errors = self._counter("request_errors", "Sequences that the engine failed on.")
        success = Counter(
            "glowplug_request_success",
            "Finished sequences.",
            (*_LABELS, "finished_reason"),
            registry=self.registry,
        )
        self._finished = {
            reason: success.labels(*self._labels, reason.value)
            for reason in (FinishReason.STOP, FinishReason.LENGTH)
        }
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "From a sequence's arrival to its first token."
        )
        self._inter_token = self._histogram(
            "inter_token_latency_seconds",
            "From one token to the next; the tokens of one step share its time.",
            _TOKEN_SECONDS,
        )
        self._e2e = self._histogram(
            "e2e_request_latency_seconds", "From a sequence's arrival to its end."
        )
        self._queue = self._histogram(
            "request_queue_time_seconds", "From a sequence's arrival to its first step."
        )
        self._prefill = self._histogram(
            "request_prefill_time_seconds", "From a sequence's first step to its first token."
        )
        self._decode = self._histogram(
            "request_decode_time_seconds", "From a sequence's first token to its end."
        )

    def connect(self, stats: Callable[[], EngineStats]) -> None:
        """From now on the engine's own figures are there too."""
        self.registry.register(EngineCollector(stats, self._labels))

    def text(self) -> str:
        """All metrics in Prometheus' text format."""
        return text_of(self.registry)

    def submitted(self, request: GenerationRequest) -> None:
        """See Observer."""
        self._running[request.id] = _Running(len(request.prompt), self._now())
        self.on_change()

    def step(self, batch: Sequence[tuple[str, Delta]], *, at_s: float) -> None:
        """See Observer."""
        generated = 0
        for request_id, delta in batch:
            running = self._running.get(request_id)
            if running is None:  # dropped while the step ran
                continue
            if delta.stages_ms is not None:
                self._began(running, delta.stages_ms, at_s)
            if delta.tokens:
                generated += len(delta.tokens)
                self._spaced(running, len(delta.tokens), at_s)
            if delta.finish is not None:
                del self._running[request_id]
                self._ended(running, delta.finish, at_s)
        if generated:
            self._generation_tokens.inc(generated)
        self.on_change()

    def dropped(self, request_id: str) -> None:
        """See Observer."""
        if self._running.pop(request_id, None) is not None:
            self._aborts.inc()
            self.on_change()

    def _began(self, running: _Running, stages_ms: Mapping[str, float], at_s: float) -> None:
        running.first_s = running.last_s = at_s
        self._prompt_tokens.inc(running.prompt_tokens)
        self._first_token.observe(max(0.0, at_s - running.submitted_s))
        self._queue.observe(stages_ms.get("queue", 0.0) / 1e3)
        self._prefill.observe(stages_ms.get("prefill", 0.0) / 1e3)

    def _spaced(self, running: _Running, tokens: int, at_s: float) -> None:
        if at_s > running.last_s:
            each_s = (at_s - running.last_s) / tokens
            for _ in range(tokens):
                self._inter_token.observe(each_s)
            running.last_s = at_s

    def _ended(self, running: _Running, finish: FinishReason, at_s: float) -> None:
        if finish is FinishReason.ERROR:
            self._errors.inc()
        elif finish is FinishReason.ABORT:
            self._aborts.inc()
        else:
            self._finished[finish].inc()
            self._e2e.observe(max(0.0, at_s - running.submitted_s))
            if running.first_s:  # else it had no token: an embedding
                self._decode.observe(at_s - running.first_s)

    def _counter(self, name: str, text: str) -> Counter:
        metric = Counter(f"glowplug_{name}", text, _LABELS, registry=self.registry)
        return metric.labels(*self._labels)

    def _histogram(self, name: str, text: str, bounds: tuple[float, ...] = SECONDS) -> Histogram:
        metric = Histogram(
            f"glowplug_{name}", text, _LABELS, buckets=bounds, registry=self.registry
        )
        return metric.labels(*self._labels)


class EngineCollector(Collector):
    """The engine's gauges and counters, read when the metrics are."""

    def __init__(self, stats: Callable[[], EngineStats], labels: tuple[str, str]) -> None:
        self._stats = stats
        self._labels = labels

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client."""
        stats = self._stats()
        yield self._gauge("num_requests_running", "Sequences in the batch.", stats.running)
        yield self._gauge("num_requests_waiting", "Sequences that wait for room.", stats.waiting)
        used = 1 - stats.free_blocks / stats.blocks
        yield self._gauge("kv_cache_usage_perc", "Part of the KV cache in use, 0 to 1.", used)
        yield self._counter(
            "num_preemptions", "Sequences put off for want of KV blocks.", stats.preemptions
        )
        yield self._counter(
            "prefix_cache_queries",
            "Prompt tokens looked up in the prefix cache.",
            stats.prefix_queries,
        )
        yield self._counter("prefix_cache_hits", "And found there.", stats.prefix_hits)
        yield self._step_tokens(stats)
        proposed, accepted = stats.drafts_proposed, stats.drafts_accepted
        yield self._counter(
            "spec_decode_num_drafts", "Guesses at what follows, of one token or more.", proposed[0]
        )
        yield self._counter("spec_decode_num_draft_tokens", "Tokens in them.", sum(proposed))
        yield self._counter("spec_decode_num_accepted_tokens", "And right.", sum(accepted))
        by_position = CounterMetricFamily(
            "glowplug_spec_decode_num_accepted_tokens_per_pos",
            "Right tokens by their place in the guess.",
            labels=(*_LABELS, "position"),
        )
        for position, count in enumerate(accepted):
            by_position.add_metric((*self._labels, str(position)), count)
        yield by_position

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"glowplug_{name}", text, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"glowplug_{name}", text, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _step_tokens(self, stats: EngineStats) -> Metric:
        family = HistogramMetricFamily(
            "glowplug_iteration_tokens_total", "Tokens that an engine step runs.", labels=_LABELS
        )
        bounds = [*(f"{float(bound)}" for bound in BOUNDS), "+Inf"]
        counts = itertools.accumulate(stats.step_sizes)
        family.add_metric(
            self._labels, list(zip(bounds, counts, strict=True)), sum_value=stats.step_tokens
        )
        return family
