"""Embeddings from a decoder's engine: chunked, batched, preempted or cached, the same vector."""

import itertools
import queue
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE

from runtime.engine.batch import build_batch
from runtime.engine.limits import EngineLimits
from runtime.engine.loop import Engine
from runtime.engine.pooling import pooled_rows, unit_length
from runtime.engine.request import Delta, FinishReason, GenerationRequest, SamplingParams

RNG = random.Random(5)
PROMPTS = [RNG.choices(range(1, 64), k=length) for length in (1, 2, 5, 16, 17, 30, 41)]


class Running:
    """An engine that embeds and generates; `deltas` by request."""

    def __init__(self, model, tokenizer, **limits) -> None:
        self.emitted: queue.Queue[list[tuple[str, Delta]]] = queue.Queue()
        self.deltas: dict[str, list[Delta]] = {}
        self.engine = Engine(
            model,
            tokenizer,
            eos_token_ids=(0,),
            limits=EngineLimits(**({"kv_cache_bytes": 1 << 20, "block_size": 4} | limits)),
            emit=self.emitted.put,
        )

    def __enter__(self):
        self.engine.start()
        return self

    def __exit__(self, *_):
        self.engine.stop()

    def embed(self, name, prompt, pooling, salt="") -> None:
        self.submit(
            GenerationRequest(
                id=name,
                prompt=tuple(prompt),
                params=SamplingParams(max_tokens=0),
                pooling=pooling,
                cache_salt=salt,
            )
        )

    def generate(self, name, prompt) -> None:
        params = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
        self.submit(GenerationRequest(id=name, prompt=tuple(prompt), params=params))

    def submit(self, request) -> None:
        self.deltas[request.id] = []
        self.engine.submit(request)

    def finish(self) -> None:
        while not all(deltas and deltas[-1].finish for deltas in self.deltas.values()):
            for name, delta in self.emitted.get(timeout=30):
                self.deltas[name].append(delta)

    def vector(self, name) -> np.ndarray:
        [delta] = self.deltas[name]
        assert delta.finish is FinishReason.STOP
        assert delta.tokens == ()
        assert delta.text == ""
        return delta.embedding

    def tokens(self, name) -> list[int]:
        return [token for delta in self.deltas[name] for token in delta.tokens]


@pytest.fixture
def start(tiny_model, tiny_tokenizer):
    return lambda **limits: Running(tiny_model, tiny_tokenizer, **limits)


def by_hand(model, prompt, pooling) -> np.ndarray:
    """The definition, from the whole sequence's hidden states in one step."""
    from runtime.engine.blocks import BlockPool
    from runtime.engine.kv_cache import KVCache
    from runtime.engine.output import OutputText
    from runtime.engine.scheduler import Scheduler
    from runtime.engine.sequence import Sequence

    cache = KVCache(model.config, blocks=16, block_size=4, dtype=model.dtype, device="cpu")
    scheduler = Scheduler(BlockPool(16), block_size=4, max_seqs=1, max_batch_tokens=512)
    request = GenerationRequest(
        id="x", prompt=tuple(prompt), params=SamplingParams(max_tokens=0), pooling="mean"
    )
    scheduler.add(
        Sequence(request, OutputText(Tokenizer(BPE()), prompt=(), stops=()), arrived_s=0.0)
    )
    batch = build_batch(scheduler.schedule(), block_size=4, device="cpu")
    with torch.inference_mode():
        logits = model.forward(batch, cache)
    assert logits.shape[0] == 0
    hidden = batch.pooled.hidden.double()
    rows = {"mean": hidden.mean(0), "last": hidden[-1], "cls": hidden[0]}
    return (rows[pooling] / rows[pooling].norm()).numpy()


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"max_batch_tokens": 5},
        {"max_batch_tokens": 1},
        {"max_seqs": 2},
        {"kv_cache_bytes": 28 * 1024, "max_batch_tokens": 7},  # room for one and a half
        {"block_size": 1, "max_batch_tokens": 6},
    ],
    ids=["whole", "chunked", "token by token", "few at once", "preempted", "single-token blocks"],
)
def test_the_same_vector_however_it_is_scheduled(start, tiny_model, pooling, limits):
    with start(**limits) as running:
        for n, prompt in enumerate(PROMPTS):
            running.embed(f"e{n}", prompt, pooling)
            running.generate(f"g{n}", prompt)
        running.finish()
        for n, prompt in enumerate(PROMPTS):
            expected = by_hand(tiny_model, prompt, pooling)
            np.testing.assert_allclose(running.vector(f"e{n}"), expected, atol=2e-6)
        stats = running.engine.stats()
        assert stats.free_blocks == stats.blocks
        if limits.get("kv_cache_bytes"):
            assert stats.preemptions > 0


def test_generation_beside_embeddings_is_undisturbed(start):
    def generated(embed: bool) -> list[list[int]]:
        with start(max_batch_tokens=16) as running:
            for n, prompt in enumerate(PROMPTS):
                running.generate(f"g{n}", prompt)
                if embed:
                    running.embed(f"m{n}", [*prompt, 9, 9], "mean")
                    running.embed(f"l{n}", prompt, "last")
            running.finish()
            return [running.tokens(f"g{n}") for n in range(len(PROMPTS))]

    assert generated(True) == generated(False)


@pytest.mark.parametrize(("pooling", "cached"), [("mean", 0), ("cls", 0), ("last", 40)])
def test_only_last_token_pooling_starts_from_a_cached_prefix(start, pooling, cached):
    prompt = PROMPTS[-1]
    with start() as running:
        running.generate("before", prompt)
        running.finish()
        running.embed("cached", prompt, pooling)
        running.embed("other", prompt, pooling, salt="another tenant")
        running.finish()
        assert running.deltas["cached"][0].cached_tokens == cached
        assert running.deltas["other"][0].cached_tokens == 0
        np.testing.assert_allclose(running.vector("cached"), running.vector("other"), atol=2e-6)


def test_generation_starts_from_what_an_embedding_computed(start):
    prompt = PROMPTS[-1]
    with start() as running:
        running.embed("first", prompt, "mean")
        running.finish()
        running.generate("second", prompt)
        running.finish()
        assert running.deltas["second"][0].cached_tokens == 40


def test_numbers_that_are_not_finite_fail_this_request_only(start, tiny_model):
    forward = tiny_model.forward

    def spoiled(batch, kv):
        logits = forward(batch, kv)
        if batch.pooled is not None:
            batch.pooled.hidden[-1] = float("nan")
        return logits

    with start() as running, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_model, "forward", spoiled)
        running.embed("bad", PROMPTS[3], "mean")
        running.generate("good", PROMPTS[4])
        running.finish()
        assert running.deltas["bad"][-1].finish is FinishReason.ERROR
        assert "not finite" in running.deltas["bad"][-1].error
        assert len(running.tokens("good")) == 20
        assert running.engine.stats().free_blocks == running.engine.stats().blocks


def test_an_aborted_embedding_leaves_nothing_behind(start):
    with start(max_batch_tokens=1) as running:
        running.embed("gone", PROMPTS[-1], "mean")
        running.engine.abort("gone")
        del running.deltas["gone"]
        running.generate("after", PROMPTS[0])
        running.finish()
        assert running.engine.stats().free_blocks == running.engine.stats().blocks


@given(
    length=st.integers(1, 60),
    cuts=st.sets(st.integers(1, 59)),
    pooling=st.sampled_from(["mean", "last", "cls"]),
)
def test_chunks_pool_the_same_rows_as_the_whole(length, cuts, pooling):
    edges = [0, *sorted(cut for cut in cuts if cut < length), length]
    chunked = [
        row
        for start, end in itertools.pairwise(edges)
        for row in pooled_rows(pooling, start=start, end=end, length=length)
    ]
    whole = {"mean": list(range(length)), "last": [length - 1], "cls": [0]}
    assert chunked == whole[pooling]


def test_unit_length():
    assert unit_length(np.array([3.0, 4.0])).tolist() == pytest.approx([0.6, 0.8])
    assert unit_length(np.zeros(2)).tolist() == [0.0, 0.0]
    assert unit_length(np.array([1e30, 0.0], dtype=np.float32)).tolist() == [1.0, 0.0]
