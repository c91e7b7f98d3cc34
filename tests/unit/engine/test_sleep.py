"""A sleeping engine holds no KV memory, and answers the same when it wakes."""

import queue
import resource
from pathlib import Path

import pytest
import torch

from runtime.engine.blocks import BlockPool
from runtime.engine.kv_cache import KVCache
from runtime.engine.limits import EngineLimits
from runtime.engine.loop import Engine
from runtime.engine.request import GenerationRequest, SamplingParams
from snapshot.model_config import ModelConfig

PROMPT = tuple(range(1, 20))


@pytest.fixture
def running(tiny_model, tiny_tokenizer):
    """An engine with what it emits and when it slept."""
    deltas: queue.Queue = queue.Queue()
    sleeps: queue.Queue = queue.Queue()
    engine = Engine(
        tiny_model,
        tiny_tokenizer,
        eos_token_ids=(0,),
        limits=EngineLimits(kv_cache_bytes=1 << 20, block_size=4),
        emit=deltas.put,
        on_sleep=sleeps.put,
    )
    engine.start()
    yield engine, deltas, sleeps
    engine.stop()


def generate(engine, deltas, name="a", max_tokens=12):
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    engine.submit(GenerationRequest(id=name, prompt=PROMPT, params=params))
    tokens, cached, finish = [], 0, None
    while finish is None:
        for _, delta in deltas.get(timeout=30):
            tokens += delta.tokens
            cached = max(cached, delta.cached_tokens)
            finish = delta.finish
    return tokens, cached


def test_it_wakes_for_the_next_request_and_answers_the_same(running):
    engine, deltas, sleeps = running
    first, _ = generate(engine, deltas)
    again, cached = generate(engine, deltas)
    assert (again, cached) == (first, 16)
    engine.sleep()
    assert sleeps.get(timeout=30) is True
    after, cached = generate(engine, deltas)
    assert sleeps.get(timeout=30) is False
    assert (after, cached) == (first, 0)  # what was cached is gone with the memory
    assert generate(engine, deltas) == (first, 16)


def test_it_does_not_sleep_at_work_nor_twice(running):
    engine, deltas, sleeps = running
    params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    engine.submit(GenerationRequest(id="a", prompt=PROMPT, params=params))
    engine.sleep()  # taken in with the request, or in the middle of its work
    finish = None
    while finish is None:
        finish = deltas.get(timeout=30)[-1][1].finish
    assert sleeps.empty()
    engine.sleep()
    engine.sleep()
    assert sleeps.get(timeout=30) is True
    engine.abort("nobody")
    generate(engine, deltas)
    assert sleeps.get(timeout=30) is False
    assert sleeps.empty()


def test_an_engine_that_cannot_wake_ends_with_an_error(tiny_model, tiny_tokenizer, monkeypatch):
    """As on a device whose memory others have taken meanwhile: its replica ends, another starts."""
    deltas: queue.Queue = queue.Queue()
    crashed: queue.Queue = queue.Queue()
    engine = Engine(
        tiny_model,
        tiny_tokenizer,
        eos_token_ids=(0,),
        limits=EngineLimits(kv_cache_bytes=1 << 20, block_size=4),
        emit=deltas.put,
        on_crash=lambda: crashed.put(True),
    )

    def no_memory(_cache):
        raise torch.OutOfMemoryError("taken")

    monkeypatch.setattr(KVCache, "take_again", no_memory)
    engine.start()
    engine.sleep()
    engine.submit(GenerationRequest(id="a", prompt=PROMPT, params=SamplingParams(max_tokens=2)))
    assert crashed.get(timeout=30)


@pytest.mark.parametrize("device", ["cpu", "cpu:0"], ids=["mapped", "allocated"])
def test_the_memory_is_given_back_and_zero_again(device):
    config = ModelConfig(
        family="llama",
        vocab_size=8,
        hidden_size=64,
        intermediate_size=8,
        num_layers=4,
        num_heads=4,
        num_kv_heads=4,
        head_dim=64,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
        max_positions=64,
        tie_embeddings=True,
    )
    cache = KVCache(config, blocks=1024, block_size=16, dtype=torch.float32, device=device)
    keys, values = cache.layer(3)

    def resident() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    size = 4 * 2 * 1024 * 16 * 4 * 64 * 4
    for layer in range(4):
        for part in cache.layer(layer):
            part.fill_(1.0)
    full = resident()
    cache.give_back()
    if device == "cpu":
        assert full - resident() > 0.9 * size
    else:  # what the allocator then does with it is its own affair
        assert keys.untyped_storage().nbytes() == 0
    cache.take_again()
    assert not keys.any()
    assert not values.any()
    keys[5] = 2.0
    assert cache.layer(3)[0][5].eq(2.0).all()


def test_a_pool_forgets_only_when_nobody_holds_a_block():
    pool = BlockPool(4)
    [block] = pool.allocate(1)
    pool.publish(block, b"hash")
    with pytest.raises(AssertionError, match="1 blocks are held"):
        pool.forget_free()
    pool.release([block])
    assert pool.find([b"hash"]) == [block]
    pool.forget_free()
    assert pool.find([b"hash"]) == []
    assert sorted(pool.allocate(4)) == [0, 1, 2, 3]
