"""The engine's thread: same tokens however requests are batched, and nothing left behind."""

import queue
import random
from collections import defaultdict

import pytest
import torch

from runtime.engine.loop import Engine, EngineLimits
from runtime.engine.request import Delta, FinishReason, GenerationRequest, SamplingParams

EOS = 0


class Running:
    """An engine and what it emits, by request."""

    def __init__(self, model, tokenizer, **limits) -> None:
        self._batches: queue.Queue[list[tuple[str, Delta]]] = queue.Queue()
        self.deltas: dict[str, list[Delta]] = defaultdict(list)
        self.engine = Engine(
            model,
            tokenizer,
            eos_token_ids=(EOS,),
            limits=EngineLimits(**({"kv_cache_bytes": 1 << 20, "block_size": 4} | limits)),
            emit=self._batches.put,
        )

    def __enter__(self):
        self.engine.start()
        return self

    def __exit__(self, *_):
        self.engine.stop()

    def submit(self, name, prompt, **params) -> None:
        sampling = SamplingParams(**({"max_tokens": 12, "temperature": 0.0} | params))
        self.engine.submit(GenerationRequest(id=name, prompt=tuple(prompt), params=sampling))

    def step(self) -> None:
        """Take in what one engine step emits."""
        for name, delta in self._batches.get(timeout=30):
            self.deltas[name].append(delta)

    def finish(self, *names) -> None:
        while not all(self.deltas[name] and self.deltas[name][-1].finish for name in names):
            self.step()

    def tokens(self, name) -> list[int]:
        return [token for delta in self.deltas[name] for token in delta.tokens]

    def text(self, name) -> str:
        return "".join(delta.text for delta in self.deltas[name])


@pytest.fixture
def start(tiny_model, tiny_tokenizer):
    return lambda **limits: Running(tiny_model, tiny_tokenizer, **limits)


def prompts(count: int) -> dict[str, list[int]]:
    rng = random.Random(7)
    return {f"p{n}": rng.choices(range(1, 64), k=rng.randint(1, 30)) for n in range(count)}


@pytest.fixture(scope="module")
def alone(tiny_model, tiny_tokenizer):
    """What each prompt gives when it runs by itself."""
    with Running(tiny_model, tiny_tokenizer) as running:
        for name, prompt in prompts(8).items():
            running.submit(name, prompt, ignore_eos=True)
            running.finish(name)
        return {name: running.tokens(name) for name in prompts(8)}


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"max_seqs": 3},
        {"max_batch_tokens": 5},
        {"kv_cache_bytes": 28 * 1024},  # room for about one and a half: sequences are preempted
        {"block_size": 1, "max_batch_tokens": 7},
    ],
    ids=["batched", "few at once", "chunked", "preempted", "single-token blocks"],
)
def test_the_same_tokens_however_requests_are_batched(start, alone, limits):
    with start(**limits) as running:
        for name, prompt in prompts(8).items():
            running.submit(name, prompt, ignore_eos=True)
        running.finish(*prompts(8))
        assert {name: running.tokens(name) for name in prompts(8)} == alone
        stats = running.engine.stats()
        assert stats.free_blocks == stats.blocks
        if limits.get("kv_cache_bytes"):
            assert stats.preemptions > 0


def test_seeded_sampling_is_the_same_alone_batched_and_preempted(start):
    def sampled(limits, company):
        with start(**limits) as running:
            for name in company:
                running.submit(name, prompts(8)[name], temperature=1.0, seed=4, ignore_eos=True)
            running.finish(*company)
            return running.tokens("p3")

    assert sampled({}, ["p3"]) == sampled({}, list(prompts(8)))
    assert sampled({}, ["p3"]) == sampled({"kv_cache_bytes": 28 * 1024}, list(prompts(8)))


def test_stop_token_stop_string_and_length(start, alone):
    first, second, third = alone["p0"][:3]
    assert third not in (first, second)
    with start() as running:
        prompt = prompts(8)["p0"]
        running.submit("id", prompt, ignore_eos=True, stop_token_ids=frozenset({third}))
        running.submit("string", prompt, ignore_eos=True, stop=(f"w{third}",))
        running.submit("length", prompt, ignore_eos=True, max_tokens=2)
        running.finish("id", "string", "length")
        shown = f" w{first} w{second}"
        assert running.text("id") == shown
        assert running.tokens("id") == [first, second, third]
        assert running.text("string") == shown + " "
        assert running.text("length") == shown
        ends = {name: running.deltas[name][-1].finish for name in ("id", "string", "length")}
        assert ends == {
            "id": FinishReason.STOP,
            "string": FinishReason.STOP,
            "length": FinishReason.LENGTH,
        }


def test_the_context_bounds_a_sequence(start):
    with start(max_context=20) as running:
        assert running.engine.max_context == 20
        running.submit("a", range(1, 16), max_tokens=1000, ignore_eos=True)
        running.finish("a")
        assert len(running.tokens("a")) == 5
        assert running.deltas["a"][-1].finish is FinishReason.LENGTH


def test_abort_frees_memory_and_the_others_go_on(start, alone):
    with start() as running:
        running.submit("gone", prompts(8)["p1"], max_tokens=60, ignore_eos=True)
        running.submit("p2", prompts(8)["p2"], ignore_eos=True)
        running.step()
        running.engine.abort("gone")
        running.engine.abort("never there")
        running.finish("p2")
        assert running.tokens("p2") == alone["p2"]
        stats = running.engine.stats()
        assert (stats.running, stats.waiting, stats.free_blocks) == (0, 0, stats.blocks)
        assert len(running.tokens("gone")) < 60


def test_stop_ends_what_is_unfinished(start):
    with start() as running:
        running.submit("a", [1, 2], max_tokens=90, ignore_eos=True)
        running.step()
    running.finish("a")
    assert running.deltas["a"][-1].finish is FinishReason.ABORT


def test_a_failing_step_fails_its_requests_and_not_the_engine(start, alone, monkeypatch):
    with start() as running:
        forward = running.engine._model.forward
        monkeypatch.setattr(running.engine._model, "forward", lambda *_: 1 / 0)
        running.submit("a", [1, 2])
        running.finish("a")
        assert running.deltas["a"][-1].finish is FinishReason.ERROR
        assert "ZeroDivisionError" in running.deltas["a"][-1].error
        monkeypatch.setattr(running.engine._model, "forward", forward)
        running.submit("p0", prompts(8)["p0"], ignore_eos=True)
        running.finish("p0")
        assert running.tokens("p0") == alone["p0"]
        assert running.engine.stats().free_blocks == running.engine.stats().blocks


def test_a_request_without_finite_numbers_leaves_none_behind(start, alone, monkeypatch):
    """Its blocks go to others, whose attention masks what they have not written themselves."""
    with start(kv_cache_bytes=16 * 1024) as running:
        engine = running.engine
        embed = engine._model.embed.clone()
        embed[5] = float("nan")
        monkeypatch.setattr(engine._model, "embed", embed)
        running.submit("bad", [5] * 60)
        running.finish("bad")
        assert running.deltas["bad"][-1].finish is FinishReason.ERROR
        monkeypatch.undo()
        names = [name for name, prompt in prompts(8).items() if len(prompt) < 24][:4]
        for name in names:
            running.submit(name, prompts(8)[name], ignore_eos=True)
        running.finish(*names)
        assert {name: running.tokens(name) for name in names} == {n: alone[n] for n in names}


def test_a_broken_loop_is_reported(tiny_model, tiny_tokenizer, monkeypatch):
    running = Running(tiny_model, tiny_tokenizer)
    crashed = queue.Queue()
    running.engine._on_crash = lambda: crashed.put(True)
    monkeypatch.setattr(running.engine._scheduler, "schedule", lambda: 1 / 0)
    running.engine.start()
    running.submit("a", [1])
    assert crashed.get(timeout=10)
    running.finish("a")
    assert running.deltas["a"][-1].finish is FinishReason.ERROR


def test_the_first_delta_says_where_the_time_went(start):
    with start() as running:
        running.submit("a", [1, 2, 3], ignore_eos=True)
        running.finish("a")
        first, *rest = running.deltas["a"]
        assert set(first.stages_ms) == {"queue", "prefill"}
        assert all(value >= 0 for value in first.stages_ms.values())
        assert all(delta.stages_ms is None for delta in rest)


def test_logprobs_sum_to_at_most_one(start):
    with start() as running:
        running.submit("a", [1, 2, 3], ignore_eos=True, logprobs=5)
        running.finish("a")
        for delta in running.deltas["a"]:
            [logprob] = delta.logprobs
            assert logprob.token == delta.tokens[0] == logprob.top[0][0]
            total = sum(torch.tensor(value).exp() for _, value in logprob.top)
            assert 0 < total <= 1.0001


def test_a_cache_too_small_for_one_block_is_refused(tiny_model, tiny_tokenizer):
    with pytest.raises(Exception, match="kv_cache_bytes"):
        Running(tiny_model, tiny_tokenizer, kv_cache_bytes=10)
