"""The engine's thread: same tokens however requests are batched, and nothing left behind."""

import queue
import random

import pytest
import torch
from engine_runs import EOS, Running

from glowplug.errors import UnsupportedModel
from runtime.engine.kv_cache import KVCache
from runtime.engine.request import FinishReason


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
        assert "engine failed" in running.deltas["a"][-1].error
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
            for token, logprob in zip(delta.tokens, delta.logprobs, strict=True):
                assert logprob.token == token == logprob.top[0][0]
                total = sum(torch.tensor(value).exp() for _, value in logprob.top)
                assert 0 < total <= 1.0001


def test_a_cache_beyond_the_machine_is_refused(tiny_model):
    with pytest.raises(UnsupportedModel, match=r"kv_cache_bytes: .* cannot be reserved"):
        KVCache(tiny_model.config, blocks=1 << 34, block_size=16, dtype=torch.float32, device="cpu")


def test_a_cache_too_small_for_one_block_is_refused(tiny_model, tiny_tokenizer):
    with pytest.raises(Exception, match="kv_cache_bytes"):
        Running(tiny_model, tiny_tokenizer, kv_cache_bytes=10)


SPECULATED = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.9, "top_p": 0.9, "seed": 21},
    "penalties": {
        "temperature": 0.8,
        "seed": 5,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.1,
    },
    "bias": {"temperature": 0.0, "logit_bias": {3: 4.0, 9: -4.0}},
    "stop": {"temperature": 0.0, "stop": ("w18 w18",)},
}


@pytest.mark.parametrize("params", SPECULATED.values(), ids=SPECULATED)
@pytest.mark.parametrize("limits", [{}, {"kv_cache_bytes": 40 * 1024}], ids=["roomy", "preempted"])
def test_speculation_changes_nothing_but_the_number_of_steps(start, params, limits):
    """Eager drafting, so that many are wrong too; prompts repeat themselves, so that some match."""

    def run(speculation: bool, eager: pytest.MonkeyPatch | None = None):
        if eager:
            eager.setattr("runtime.engine.speculator.worthwhile", lambda **_: 5)
        with start(speculation=speculation, **limits) as running:
            for name, prompt in prompts(5).items():
                running.submit(name, (prompt * 4)[:30], max_tokens=40, ignore_eos=True, **params)
            running.finish(*prompts(5))
            stats = running.engine.stats()
            assert stats.free_blocks == stats.blocks
            ends = {name: running.deltas[name][-1].finish for name in prompts(5)}
            texts = {name: running.text(name) for name in prompts(5)}
            return {name: running.tokens(name) for name in prompts(5)}, texts, ends, stats

    *plain, plain_stats = run(False)
    with pytest.MonkeyPatch.context() as eager:
        *speculated, stats = run(True, eager)
    assert speculated == plain
    assert sum(plain_stats.drafts_proposed) == 0
    assert stats.drafts_proposed[0] > 0
    assert all(a <= p for a, p in zip(stats.drafts_accepted, stats.drafts_proposed, strict=True))


def test_a_repetition_is_made_in_fewer_steps(start, monkeypatch):
    monkeypatch.setattr("runtime.engine.speculator.worthwhile", lambda **_: 5)
    with start(speculation=False) as plain, start() as speculating:
        for running in (plain, speculating):
            running.submit("a", [60, 61], max_tokens=60, logit_bias={18: 100.0})
            running.finish("a")
        assert speculating.tokens("a") == plain.tokens("a")
        assert speculating.engine.stats().steps < 0.5 * plain.engine.stats().steps


def test_a_shared_beginning_is_computed_once(start):
    shared = list(range(1, 33))  # eight blocks
    with start() as running, start() as fresh:
        running.submit("first", [*shared, 40], max_tokens=4, ignore_eos=True)
        running.finish("first")
        running.submit("second", [*shared, 50, 51], max_tokens=4, ignore_eos=True)
        running.finish("second")
        assert running.deltas["first"][0].cached_tokens == 0
        assert running.deltas["second"][0].cached_tokens == 32
        stats = running.engine.stats()
        assert (stats.prefix_queries, stats.prefix_hits) == (33 + 34, 32)
        fresh.submit("second", [*shared, 50, 51], max_tokens=4, ignore_eos=True)
        fresh.finish("second")
        assert running.tokens("second") == fresh.tokens("second")


def test_a_prompt_that_is_all_cached_still_runs_its_last_token(start):
    prompt = list(range(1, 33))
    with start() as running:
        for name in ("first", "second"):
            running.submit(name, prompt, max_tokens=4, ignore_eos=True)
            running.finish(name)
        assert running.deltas["second"][0].cached_tokens == 28
        assert running.tokens("second") == running.tokens("first")


def test_salts_do_not_share(start):
    prompt = list(range(1, 33))
    with start() as running:
        for name, salt in (("a", "one"), ("b", "two"), ("c", ""), ("d", "two")):
            running.submit(name, prompt, max_tokens=2, ignore_eos=True, cache_salt=salt)
            running.finish(name)
        cached = {name: running.deltas[name][0].cached_tokens for name in "abcd"}
        assert cached == {"a": 0, "b": 0, "c": 0, "d": 28}


def test_no_end_before_min_tokens(start):
    """Without it the bias ends the sequence at once; drafts keep to it too."""
    ends = {"logit_bias": {EOS: 100.0, 7: 90.0}}
    with start() as running:
        running.submit("at once", [9], **ends)
        running.submit("later", [9], min_tokens=6, **ends)
        stop = {"stop_token_ids": frozenset({7}), "ignore_eos": True, "max_tokens": 9}
        running.submit("stop token", [9], min_tokens=6, logit_bias={7: 100.0}, **stop)
        running.finish("at once", "later", "stop token")
        assert running.tokens("at once") == [EOS]
        assert running.tokens("later") == [7] * 6 + [EOS]
        assert len(running.tokens("stop token")) == 7
        assert running.tokens("stop token").index(7) == 6


def test_min_tokens_with_speculation(start, monkeypatch):
    monkeypatch.setattr("runtime.engine.speculator.worthwhile", lambda **_: 5)
    with start() as running:
        bias = {EOS: 100.0, 7: 90.0}
        running.submit("a", [7, 7, 7, 7], min_tokens=20, max_tokens=40, logit_bias=bias)
        running.finish("a")
        assert running.tokens("a") == [7] * 20 + [EOS]
        assert sum(running.engine.stats().drafts_accepted) > 0
