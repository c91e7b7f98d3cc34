"""Prefix snapshots: what one engine leaves, the next one starts from, and never anything wrong."""

import queue
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.engine.kv_cache import KVCache
from runtime.engine.limits import EngineLimits
from runtime.engine.loop import Engine
from runtime.engine.request import GenerationRequest, SamplingParams
from runtime.engine.stored_prefixes import FILE, StoredPrefixes
from snapshot.model_config import ModelConfig

SYSTEM = [random.Random(1).randrange(1, 64) for _ in range(24)]  # six blocks of four
LIMITS = EngineLimits(kv_cache_bytes=1 << 20, block_size=4, prefix_snapshot_bytes=1 << 20)


class Life:
    """One engine from its start to its save."""

    def __init__(self, model, tokenizer, path: Path, limits=LIMITS) -> None:
        self._path = path
        self._deltas: queue.Queue = queue.Queue()
        self.saved: int | None = None
        self.engine = Engine(
            model,
            tokenizer,
            eos_token_ids=(0,),
            limits=limits,
            emit=self._deltas.put,
            prefixes=path,
        )

    def __enter__(self):
        self.engine.start()
        return self

    def __exit__(self, *_) -> None:
        self.engine.stop()
        made = self._path.with_name("made")
        self.saved = self.engine.save_prefixes(made)
        if self.saved:
            made.replace(self._path)

    def ask(self, *question: int, salt: str = "") -> tuple[list[int], int]:
        """Greedy tokens, and how much of the prompt was not computed."""
        self.engine.submit(
            GenerationRequest(
                id="a",
                prompt=(*SYSTEM, *question),
                params=SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True),
                cache_salt=salt,
            )
        )
        tokens, cached, finish = [], 0, None
        while finish is None:
            for _, delta in self._deltas.get(timeout=30):
                tokens += delta.tokens
                cached = max(cached, delta.cached_tokens)
                finish = delta.finish
        return tokens, cached


@pytest.fixture
def live(tiny_model, tiny_tokenizer, tmp_path):
    folder = tmp_path / "sha256-0"
    folder.mkdir()

    def start(limits=LIMITS, folder=folder):
        return Life(tiny_model, tiny_tokenizer, folder / FILE, limits)

    return start


def test_the_next_engine_starts_from_what_the_last_one_left(live):
    with live() as first:
        expected = [first.ask(7), first.ask(9)]
    assert expected[0][1] == 0
    assert first.saved
    with live() as second:
        assert second.ask(7) == (expected[0][0], 24)
        assert second.ask(9) == (expected[1][0], 24)
    assert second.saved == 0  # the same blocks as before


def test_tenants_do_not_share_stored_prefixes(live):
    with live() as first:
        expected, _ = first.ask(7, salt="one")
    with live() as second:
        assert second.ask(7, salt="two") == (expected, 0)
        assert second.ask(7, salt="") == (expected, 0)
        assert second.ask(7, salt="one") == (expected, 24)


@pytest.mark.parametrize("byte", [0, 9, 30, 200, 4096, 5000, -1])
def test_a_flipped_bit_costs_time_and_nothing_else(live, tmp_path, byte):
    with live() as first:
        expected, _ = first.ask(7)
    path = tmp_path / "sha256-0" / FILE
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)
    with live() as second:
        tokens, cached = second.ask(7)
    assert tokens == expected
    assert cached < 24 or byte == -1  # the last block's file end may be of the question's block


def test_every_damaged_block_is_found(live, tmp_path):
    with live() as first:
        expected, _ = first.ask(7)
    path = tmp_path / "sha256-0" / FILE
    whole = path.read_bytes()
    size = (len(whole) - 4096) // first.saved
    for n in range(first.saved):
        data = bytearray(whole)
        data[4096 + n * size + random.Random(n).randrange(size)] ^= 0x40
        path.write_bytes(data)
        with live() as second:
            tokens, cached = second.ask(7)
        assert (tokens, cached) == (expected, 4 * n)


@pytest.mark.parametrize("size", [0, 1, 23, 100, 4096, -1])
def test_a_file_that_is_cut_short_is_passed_over(live, tmp_path, size):
    with live() as first:
        expected, _ = first.ask(7)
    path = tmp_path / "sha256-0" / FILE
    path.write_bytes(path.read_bytes()[:size])
    with live() as second:
        assert second.ask(7) == (expected, 0)


def test_another_snapshot_does_not_take_it(live, tmp_path):
    with live() as first:
        expected, _ = first.ask(7)
    other = tmp_path / "sha256-1"
    other.mkdir()
    (other / FILE).write_bytes((tmp_path / "sha256-0" / FILE).read_bytes())
    with live(folder=other) as second:
        assert second.ask(7) == (expected, 0)


def test_it_is_no_larger_than_allowed(live, tmp_path):
    with live() as first:
        first.ask(7)
        block_bytes = first.engine._kv.block_bytes
    for blocks in (3, 1):
        limits = EngineLimits(
            kv_cache_bytes=1 << 20,
            block_size=4,
            prefix_snapshot_bytes=blocks * block_bytes + block_bytes // 2,
        )
        (tmp_path / "sha256-0" / FILE).unlink()
        with live(limits) as life:
            life.ask(7)
        assert life.saved == blocks
        with live(limits) as life:
            assert life.ask(7)[1] == 4 * blocks  # the first ones


def test_none_are_kept_where_they_are_not_wanted(live, tmp_path):
    with live(EngineLimits(kv_cache_bytes=1 << 20, block_size=4)) as first:
        first.ask(7)
    assert not (tmp_path / "sha256-0" / FILE).exists()


def test_with_less_memory_than_is_stored_it_still_answers(live):
    with live() as first:
        expected, _ = first.ask(7)
    few = EngineLimits(kv_cache_bytes=11 << 10, block_size=4, prefix_snapshot_bytes=1 << 20)
    with live(few) as second:
        assert second.ask(7)[0] == expected
        assert second.ask(9)[1] > 0


# Which blocks


CONFIG = ModelConfig(
    family="llama",
    vocab_size=8,
    hidden_size=8,
    intermediate_size=8,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=2,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    max_positions=64,
    tie_embeddings=True,
)


def chain(tokens: list[int]) -> list[bytes]:
    """A hash for each beginning."""
    return [bytes([n, *tokens[: n + 1]]) for n in range(len(tokens))]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    lives=st.lists(
        st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=8), max_size=4
    ),
    room=st.integers(0, 12),
)
def test_what_is_kept_is_the_most_used_and_complete(
    tmp_path_factory: pytest.TempPathFactory, lives: list[list[list[int]]], room: int
) -> None:
    folder = tmp_path_factory.mktemp("sha256")
    path = folder / FILE
    kv = KVCache(CONFIG, blocks=64, block_size=4, dtype=torch.float32, device="cpu")
    for prompts in lives:
        stored = StoredPrefixes(path, kv, kernels="k", max_bytes=room * kv.block_bytes)
        published: dict[bytes, int] = {}
        for prompt in prompts:
            hashes = chain(prompt)
            stored.note(hashes)
            blocks = [60 + n % 4 for n in range(len(hashes))]
            loaded = stored.load(hashes, blocks)
            for n in range(min(loaded, 4)):
                expected = float(sum(hashes[n]))
                if loaded <= 4:
                    assert kv.block(blocks[n]).eq(expected).all()
            for digest in hashes:
                block = published.setdefault(digest, len(published) % 60)
                kv.block(block).fill_(float(sum(digest)))
        made = folder / "made"
        if len(published) <= 60 and stored.save(published, made):
            made.replace(path)
        kept = set(StoredPrefixes(path, kv, kernels="k", max_bytes=1 << 20)._stored)
        assert len(kept) <= room
        for digest in kept:
            depth, tokens = digest[0], list(digest[1:])
            assert all(each in kept for each in chain(tokens)[:depth])
