"""A draft model's keys beside what else fills and empties blocks: it never guesses from another
text's. The draft model is the target itself here, so its keys are known: they are the target's."""

import random

import pytest
import torch
from engine_runs import Running

from runtime.engine.draft_policy import DraftPolicy
from runtime.engine.speculator import LookupProposer
from runtime.engine.stored_prefixes import FILE

SHARED = [random.Random(2).randrange(1, 64) for _ in range(24)]  # six blocks


@pytest.fixture
def eager(monkeypatch):
    """Drafts wherever there is room, by the draft model alone."""
    monkeypatch.setattr(DraftPolicy, "_count", lambda _, ask, *a, **k: min(4, ask.room))
    monkeypatch.setattr(LookupProposer, "propose", lambda _, candidates, **k: candidates)


def assert_known_keys_are_right(running: Running) -> int:
    """Of every block that the target holds too; how many there are."""
    engine = running.engine
    assert engine._draft is not None
    compared = 0
    for block, digest in engine._draft._written.items():
        if (held := engine._scheduler.pool.published.get(digest)) is not None:
            torch.testing.assert_close(
                engine._draft._kv.block(block), engine._kv.block(held), rtol=1e-3, atol=1e-3
            )
            compared += 1
    return compared


def test_what_an_earlier_replica_left_is_read_by_the_draft_model_itself(
    tiny_model, tiny_tokenizer, tmp_path, eager
):
    """Blocks that come from a file bring the target's keys and none of the draft model's."""
    kept = {"prefixes": tmp_path / FILE, "prefix_snapshot_bytes": 1 << 20}
    tokens = []
    for life in range(2):
        with Running(tiny_model, tiny_tokenizer, draft=tiny_model, **kept) as running:
            running.submit("a", [*SHARED, 7], max_tokens=20, ignore_eos=True)
            running.finish("a")
            tally = running.engine.stats().drafts_by_method["draft"]
        assert running.deltas["a"][0].cached_tokens == 24 * life
        assert sum(tally.proposed) > 0
        assert sum(tally.accepted) > 0.97 * sum(tally.proposed)
        assert assert_known_keys_are_right(running) > 6
        tokens.append(running.tokens("a"))
        made = tmp_path / "made"
        if running.engine.save_prefixes(made):
            made.replace(kept["prefixes"])
    assert tokens[0] == tokens[1]


def test_blocks_that_go_from_text_to_text(tiny_model, tiny_tokenizer, eager):
    """A small pool: blocks are overwritten, in part or whole, and get their old text again."""
    rng = random.Random(3)
    beginnings = [rng.choices(range(1, 64), k=8) for _ in range(4)]
    compared = 0
    with Running(
        tiny_model, tiny_tokenizer, draft=tiny_model, kv_cache_bytes=32 << 10, max_seqs=2
    ) as running:
        for n in range(150):
            prompt = rng.choice(beginnings)[: rng.choice([3, 5, 8])] + rng.choices(
                range(1, 64), k=rng.choice([0, 1, 4])
            )
            running.submit(f"{n}", prompt, max_tokens=rng.choice([1, 3, 9]), ignore_eos=True)
            running.finish(f"{n}")
            compared += assert_known_keys_are_right(running)
        tally = running.engine.stats().drafts_by_method["draft"]
    assert compared > 150
    assert sum(tally.accepted) > 0.97 * sum(tally.proposed)


def test_embeddings_and_scored_prompts_beside_drafts(tiny_model, tiny_tokenizer, eager):
    """They are never guessed for, and change nothing for those that are."""
    with Running(tiny_model, tiny_tokenizer, speculation=False) as plain:
        plain.submit("a", [*SHARED, 7], max_tokens=30, ignore_eos=True)
        plain.finish("a")
    with Running(tiny_model, tiny_tokenizer, draft=tiny_model, max_batch_tokens=12) as running:
        running.submit("a", [*SHARED, 7], max_tokens=30, ignore_eos=True)
        for n in range(4):
            running.submit(f"score{n}", SHARED[n:], max_tokens=0, prompt_logprobs=1)
            running.embed(f"embed{n}", SHARED[n:])
        names = [f"{kind}{n}" for kind in ("score", "embed") for n in range(4)]
        running.finish("a", *names)
        stats = running.engine.stats()
    assert running.tokens("a") == plain.tokens("a")
    assert all(running.deltas[f"embed{n}"][-1].embedding is not None for n in range(4))
    assert all(
        len(running.deltas[f"score{n}"][-1].prompt_logprobs or ()) == 23 - n for n in range(4)
    )
    assert sum(stats.drafts_accepted) > 0.97 * sum(stats.drafts_proposed) > 0
    assert stats.free_blocks == stats.blocks
