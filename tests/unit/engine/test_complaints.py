"""Complaints about other engines (tests/research_complaints.md) that no other test here covers."""

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import tokenizers
import torch

from runtime.engine.output import OutputText
from runtime.engine.prefix import extend_hashes
from runtime.engine.request import FinishReason, GenerationRequest, SamplingParams
from runtime.engine.sampling import Position, sample
from runtime.engine.sequence import Sequence
from tests.unit.engine.test_loop import Running, prompts
from tests.unit.server.conftest import make_tokenizer


@pytest.fixture
def start(tiny_model, tiny_tokenizer):
    return lambda **limits: Running(tiny_model, tiny_tokenizer, **limits)


def test_6_threads_share_the_tokenizer_without_locks() -> None:
    """The server encodes, on its loop and in a thread, while the engine's thread decodes. Nothing
    may change the tokenizer (truncation, padding) or errors like "Already borrowed" come of it."""
    tokenizer: tokenizers.Tokenizer = make_tokenizer()
    texts = [f"the quick brown fox {n} jumps over é the lazy dog " * 20 for n in range(40)]
    ids = [tokenizer.encode(text).ids for text in texts]

    def encode(n: int) -> list[int]:
        return list(tokenizer.encode(texts[n]).ids)

    def decode(n: int) -> str:
        text = OutputText(tokenizer, prompt=(), stops=())
        pieces = [text.push(token)[0] for token in ids[n]]
        return "".join(pieces) + text.flush()[0]

    with ThreadPoolExecutor(max_workers=4) as threads:
        encoded = threads.map(encode, range(40))
        decoded = threads.map(decode, range(40))
        assert list(encoded) == ids
        assert list(decoded) == texts


def sequence(**params: float) -> Sequence:
    request = GenerationRequest(
        id="a", prompt=(1,), params=SamplingParams(**({"max_tokens": 4, "seed": 1} | params))
    )
    return Sequence(request, object(), arrived_s=0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1e-9, 1e-4, 0.01])
@pytest.mark.parametrize("top_p", [0.0, 0.5, 1.0])
def test_8_temperatures_near_0_and_rows_with_minus_infinity(temperature, top_p) -> None:
    logits = torch.full((3, 64), -math.inf)
    logits[0, 9] = 500.0
    logits[1, :] = torch.linspace(-80, 80, 64)
    logits[1, 63] = -math.inf
    logits[2, 3], logits[2, 5] = -1e4, -2e4
    rows = [Position(sequence(temperature=temperature, top_p=top_p)) for _ in range(3)]
    sampled = sample(logits, rows)
    assert [(one.token, one.error) for one in sampled] == [(9, None), (62, None), (3, None)]


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 3}])
def test_12_logprobs_with_speculation_are_the_models(start, params, monkeypatch) -> None:
    monkeypatch.setattr("runtime.engine.speculator.worthwhile", lambda **_: 5)
    seen = []
    for speculation in (False, True):
        with start(speculation=speculation) as running:
            running.submit("a", [5, 6, 7] * 6, max_tokens=40, ignore_eos=True, logprobs=3, **params)
            running.finish("a")
            seen.append([one for delta in running.deltas["a"] for one in delta.logprobs])
            drafts = sum(running.engine.stats().drafts_proposed)
            assert bool(drafts) == speculation
    plain, speculated = seen
    assert [one.token for one in plain] == [one.token for one in speculated]
    for one, other in zip(plain, speculated, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]


def hashes(tokens: list[int], salt: str = "") -> list[bytes]:
    request = GenerationRequest(
        id="a", prompt=tuple(tokens), params=SamplingParams(max_tokens=1), cache_salt=salt
    )
    made = Sequence(request, object(), arrived_s=0.0)  # type: ignore[arg-type]
    extend_hashes(made, tokens=len(tokens), block_size=4)
    return made.hashes


def test_18_a_salt_never_looks_like_tokens() -> None:
    """Strong hashes, over parts that cannot be taken for each other: a tenant that chooses its name
    cannot make its blocks another's."""
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    own = hashes(tokens)
    assert all(len(digest) == 32 for digest in own)
    # What a block of tokens is, as bytes, for a salt
    forged = own[0].decode("latin-1") + "".join(f"{chr(token)}{chr(0) * 7}" for token in tokens[4:])
    others = [hashes(tokens, salt) for salt in ("a", "b", forged, "\0", "1", "glowplug kv block 1")]
    everything = Counter(digest for each in (own, *others) for digest in each)
    assert max(everything.values()) == 1


def test_19_hits_and_misses_in_one_batch(start) -> None:
    shared = list(range(1, 25))
    asked = {"hit": [*shared, 40, 41], "miss": [50, *shared], "part": [*shared[:12], 60, 61, 62]}
    alone = {}
    for name, prompt in asked.items():
        with start() as running:
            running.submit(name, prompt, ignore_eos=True)
            running.finish(name)
            alone[name] = running.tokens(name)
    with start(max_batch_tokens=16) as running:
        running.submit("first", shared)
        running.finish("first")
        for name, prompt in asked.items():
            running.submit(name, prompt, ignore_eos=True)
        running.finish(*asked)
        assert {name: running.tokens(name) for name in asked} == alone
        cached = {name: running.deltas[name][0].cached_tokens for name in asked}
    assert cached == {"hit": 24, "miss": 0, "part": 12}


def test_19_a_history_that_was_rewritten_finds_nothing_stale(start) -> None:
    """A turn in the middle is edited: all after it is another text, though its tokens are not."""
    history = [*range(1, 9), *range(20, 28), *range(30, 46)]
    edited = [*history[:8], 50, *history[9:]]
    with start() as fresh:
        fresh.submit("a", edited, ignore_eos=True)
        fresh.finish("a")
        expected = fresh.tokens("a")
    with start() as running:
        for prompt in (history, [*history, 11, 12, 13, 14, 15]):
            name = f"turn{len(prompt)}"
            running.submit(name, prompt, ignore_eos=True)
            running.finish(name)
        running.submit("a", edited, ignore_eos=True)
        running.finish("a")
        assert running.deltas["a"][0].cached_tokens == 8
        assert running.tokens("a") == expected


def test_24_an_abort_beside_a_prefill_in_flight(start) -> None:
    """Aborts of a sequence in the middle of its prompt's chunks, and of one beside it."""
    with start(max_batch_tokens=4) as running:
        running.submit("stays", prompts(8)["p3"], ignore_eos=True)
        for n in range(20):
            running.submit(f"goes{n}", list(range(1, 60)), ignore_eos=True)
            running.engine.abort(f"goes{n}")
            running.submit(f"midway{n}", list(range(2, 60)), ignore_eos=True)
            if n % 3 == 0:
                running.step()  # so that some of its chunks run
            running.engine.abort(f"midway{n}")
        running.submit("last", [1, 2, 3], max_tokens=1)
        running.finish("stays", "last")
        assert running.deltas["stays"][-1].finish is FinishReason.LENGTH
        stats = running.engine.stats()
        assert (stats.running, stats.waiting, stats.free_blocks) == (0, 0, stats.blocks)
