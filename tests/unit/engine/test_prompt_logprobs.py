"""Log probabilities of a prompt: the same however it is run, with a bound on the logits at once."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.engine import loop, prompt_logprobs
from runtime.engine.blocks import BlockPool
from runtime.engine.request import FinishReason, GenerationRequest, SamplingParams, TokenLogprob
from runtime.engine.scheduler import Scheduler
from runtime.engine.sequence import Phase, Sequence
from tests.unit.engine.test_loop import Running, prompts

PROMPT = [5, 9, 13, 2, 2, 40, 7, 7, 31, 8, 60, 1, 3, 22, 17, 9, 5, 33]


@pytest.fixture
def start(tiny_model, tiny_tokenizer):
    return lambda **limits: Running(tiny_model, tiny_tokenizer, **limits)


def scores(running: Running, name: str) -> list[TokenLogprob]:
    given = [
        delta.prompt_logprobs for delta in running.deltas[name] if delta.prompt_logprobs is not None
    ]
    assert len(given) == 1  # once, with the first token
    assert running.deltas[name][0].prompt_logprobs is given[0]
    return list(given[0])


@pytest.fixture(scope="module")
def alone(tiny_model, tiny_tokenizer) -> dict[str, list[TokenLogprob]]:
    """Each prompt's, run by itself."""
    with Running(tiny_model, tiny_tokenizer) as running:
        for name, prompt in prompts(8).items():
            running.submit(name, prompt, prompt_logprobs=2)
            running.finish(name)
        return {name: scores(running, name) for name in prompts(8)}


def assert_alike(one: list[TokenLogprob], other: list[TokenLogprob]) -> None:
    assert [score.token for score in one] == [score.token for score in other]
    for mine, theirs in zip(one, other, strict=True):
        assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]


def test_they_are_what_generating_the_same_text_would_say(start):
    """A token's score in the prompt is its log probability as the next token after what is before
    it, among all 64."""
    with start() as running:
        running.submit("whole", PROMPT, prompt_logprobs=64)
        running.finish("whole")
        whole = scores(running, "whole")
        assert [score.token for score in whole] == PROMPT[1:]
        for place in range(1, len(PROMPT)):
            name = f"next{place}"
            running.submit(name, PROMPT[:place], logprobs=64, max_tokens=1)
            running.finish(name)
            following = dict(running.deltas[name][0].logprobs[0].top)
            assert whole[place - 1].logprob == pytest.approx(following[PROMPT[place]], abs=1e-4)
            assert sum(math.exp(value) for _, value in whole[place - 1].top) == pytest.approx(1)


@pytest.mark.parametrize(
    "limits",
    [{}, {"max_batch_tokens": 5}, {"kv_cache_bytes": 28 * 1024}, {"max_seqs": 2}],
    ids=["batched", "chunked", "preempted", "few at once"],
)
@pytest.mark.parametrize("at_once", [1000, 3], ids=["no bound", "three rows a step"])
def test_the_same_however_they_are_run(start, alone, limits, at_once, monkeypatch):
    monkeypatch.setattr(loop, "scored_tokens_limit", lambda vocab_size: at_once)
    with start(**limits) as running:
        for name, prompt in prompts(8).items():
            running.submit(name, prompt, prompt_logprobs=2, ignore_eos=True)
        running.finish(*prompts(8))
        for name in prompts(8):
            assert_alike(scores(running, name), alone[name])
        stats = running.engine.stats()
        assert stats.free_blocks == stats.blocks
        if "kv_cache_bytes" in limits:
            assert stats.preemptions > 0


def test_a_prompt_that_is_cached_is_run_again_for_them(start):
    with start() as running:
        running.submit("first", PROMPT)
        running.finish("first")
        running.submit("cached", PROMPT)
        running.finish("cached")
        assert running.deltas["cached"][0].cached_tokens == 16
        running.submit("scored", PROMPT, prompt_logprobs=0)
        running.finish("scored")
        assert running.deltas["scored"][0].cached_tokens == 0
        assert len(scores(running, "scored")) == len(PROMPT) - 1
        assert running.tokens("scored") == running.tokens("first")
        running.submit("after", PROMPT)  # and what it computed serves others
        running.finish("after")
        assert running.deltas["after"][0].cached_tokens == 16


def test_nothing_is_generated_with_max_tokens_0(start):
    with start() as running:
        running.submit("a", PROMPT, max_tokens=0, prompt_logprobs=1)
        running.submit("b", [7], max_tokens=0, prompt_logprobs=1)
        running.submit("c", PROMPT, max_tokens=0)
        running.finish("a", "b", "c")
        for name in "abc":
            (delta,) = running.deltas[name]
            assert (delta.tokens, delta.text, delta.finish) == ((), "", FinishReason.LENGTH)
        assert len(scores(running, "a")) == len(PROMPT) - 1
        assert scores(running, "b") == []
        assert running.deltas["c"][0].prompt_logprobs is None
        stats = running.engine.stats()
        assert stats.free_blocks == stats.blocks


def test_others_do_not_change_beside_them(start):
    with start() as running:
        running.submit("plain", PROMPT[:9], ignore_eos=True)
        running.finish("plain")
        expected = running.tokens("plain")
    with start(max_batch_tokens=6) as running:
        running.submit("scored", PROMPT, prompt_logprobs=3)
        running.submit("plain", PROMPT[:9], ignore_eos=True)
        running.finish("scored", "plain")
        assert running.tokens("plain") == expected


def test_a_step_never_makes_more_logits_than_its_bound(start, tiny_model, monkeypatch):
    monkeypatch.setattr(loop, "scored_tokens_limit", lambda vocab_size: 7)
    rows = []
    forward = type(tiny_model).forward

    def counted(model, batch, kv):
        logits = forward(model, batch, kv)
        rows.append(logits.shape[0])
        return logits

    monkeypatch.setattr(type(tiny_model), "forward", counted)
    with start() as running:
        for n in range(4):
            running.submit(f"s{n}", [*PROMPT, *PROMPT, *PROMPT], prompt_logprobs=0, max_tokens=0)
        running.finish("s0", "s1", "s2", "s3")
    assert sum(rows) == 4 * 54
    assert max(rows) <= 7 + 4  # and one to sample for each sequence


@pytest.mark.parametrize(("vocab_size", "limit"), [(49_152, 341), (262_144, 64), (10**7, 16)])
def test_the_bound_is_64_mib(vocab_size, limit):
    assert prompt_logprobs.scored_tokens_limit(vocab_size) == limit


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.booleans(), st.integers(0, 12)), max_size=7),
    st.integers(1, 9),
)
def test_every_place_is_scored_once_within_the_bound(asked, bound):
    """Through preemptions (there are few blocks), chunks and any company."""
    sched = Scheduler(
        BlockPool(12), block_size=4, max_seqs=5, max_batch_tokens=16, max_scored_tokens=bound
    )
    live = []
    for n, (length, scored, max_tokens) in enumerate(asked):
        params = SamplingParams(max_tokens=max_tokens, prompt_logprobs=0 if scored else None)
        prompt = tuple(range(1, length + 1))
        request = GenerationRequest(id=str(n), prompt=prompt, params=params)
        live.append(Sequence(request, object(), arrived_s=0.0))
        sched.add(live[-1])
    for _ in range(2000):
        if not sched.has_work:
            break
        chunks = sched.schedule().chunks
        assert chunks
        assert all(chunk.count for chunk in chunks)
        assert sum(len(chunk.scored) for chunk in chunks) <= bound
        for chunk in chunks:
            sequence = chunk.sequence
            for place in chunk.scored:
                assert place == len(sequence.prompt_logprobs)
                token = sequence.request.prompt[place + 1]
                sequence.prompt_logprobs.append(TokenLogprob(token, -1.0, ()))
            if chunk.samples and sequence.request.params.max_tokens:
                sequence.append(7)
            sched.commit(chunk)
            if chunk.samples and sequence.generated >= sequence.request.params.max_tokens:
                assert not sequence.unscored
                sched.finish(sequence)
    assert all(sequence.phase is Phase.FINISHED for sequence in live)
    assert sched.pool.free_count == 12
