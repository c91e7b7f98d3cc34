"""A draft model beside the target: the same tokens, in fewer steps where it is right."""

import itertools
import random
from collections import Counter

import pytest
import torch
from engine_runs import Running

from runtime.engine.draft_policy import NOTHING, DraftPolicy
from runtime.engine.request import FinishReason
from runtime.engine.speculator import LookupProposer
from runtime.models.registry import build_model
from snapshot.layout import tensor_shapes

KINDS = ("same", "noisy", "unrelated")


def random_model(config, *, seed: int, noise: float = 0.0, like=None):
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.randn(shape, generator=generator) * (0.4 if len(shape) == 2 else 0.1)
        + (0.0 if len(shape) == 2 else 1.0)
        for name, shape in tensor_shapes(config).items()
    }
    if like is not None:
        tensors = {name: like[name] + noise * tensors[name] for name in tensors}
    return build_model(config, tensors)


@pytest.fixture(scope="module")
def drafts(tiny_model, tiny_tensors):
    """Draft models by how much they have to do with the target."""
    config = tiny_model.config
    small = config.model_copy(update={"num_layers": 1, "num_kv_heads": 4})
    return {
        "same": tiny_model,
        "noisy": random_model(config, seed=11, noise=0.05, like=tiny_tensors),
        "unrelated": random_model(small, seed=12),
    }


@pytest.fixture
def eager(monkeypatch):
    """Drafts wherever there is room, four at a time, by the draft model alone."""
    monkeypatch.setattr(DraftPolicy, "_count", lambda _, ask, *a, **k: min(4, ask.room))
    monkeypatch.setattr(LookupProposer, "propose", lambda _, candidates, **k: candidates)


@pytest.fixture
def start(tiny_model, tiny_tokenizer):
    return lambda **limits: Running(tiny_model, tiny_tokenizer, **limits)


def prompts(count: int, *, length: int = 30) -> dict[str, list[int]]:
    rng = random.Random(7)
    return {f"p{n}": rng.choices(range(1, 64), k=rng.randint(1, length)) for n in range(count)}


PARAMS = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.9, "top_p": 0.9, "seed": 21},
    "truncated": {"temperature": 1.3, "top_k": 7, "min_p": 0.02, "seed": 3},
    "penalties": {
        "temperature": 0.8,
        "seed": 5,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.1,
    },
    "bias": {"temperature": 0.0, "logit_bias": {3: 4.0, 9: -4.0}},
    "stop": {"temperature": 0.0, "stop": ("w18 w18", "w5")},
    "logprobs": {"temperature": 0.0, "logprobs": 2},
}
LIMITS = {
    "roomy": {},
    "preempted": {"kv_cache_bytes": 80 * 1024},
    "chunked": {"max_batch_tokens": 6},
    "single-token blocks": {"block_size": 1, "kv_cache_bytes": 80 * 1024},
}


def run_all(running: Running, **params):
    with running:
        for name, prompt in prompts(5).items():
            running.submit(name, prompt, max_tokens=40, ignore_eos=True, **params)
        running.finish(*prompts(5))
        stats = running.engine.stats()
        assert stats.free_blocks == stats.blocks
        results = {
            name: (running.tokens(name), running.text(name), running.deltas[name][-1].finish)
            for name in prompts(5)
        }
        return results, stats


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_model_changes_no_token(start, eager, drafts, kind, params):
    plain, _ = run_all(start(speculation=False), **params)
    drafted, stats = run_all(start(draft=drafts[kind]), **params)
    assert drafted == plain
    assert stats.drafts_by_method["draft"].proposed[3] > 0


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("kind", KINDS)
def test_nor_does_it_when_memory_or_the_batch_is_small(start, eager, drafts, kind, limits):
    plain, _ = run_all(start(speculation=False, **limits), temperature=0.0)
    drafted, stats = run_all(start(draft=drafts[kind], **limits), temperature=0.0)
    assert drafted == plain
    if kind != "same" or not limits.get("kv_cache_bytes"):
        assert stats.drafts_by_method["draft"].proposed[0] > 0
    if limits.get("kv_cache_bytes") and "block_size" not in limits:
        assert stats.preemptions > 0


def test_with_prompt_lookup_the_two_share_the_work(start, drafts, monkeypatch):
    monkeypatch.setattr(DraftPolicy, "_count", lambda _, ask, *a, **k: min(4, ask.room))
    monkeypatch.setattr("runtime.engine.speculator.worthwhile", lambda **_: 3)

    def repeat(running):
        with running:
            running.submit("a", [5, 6, 7, 8] * 5, max_tokens=40, ignore_eos=True)
            running.submit("b", prompts(2)["p1"], max_tokens=40, ignore_eos=True)
            running.finish("a", "b")
            return [running.tokens(name) for name in "ab"], running.engine.stats()

    plain, _ = repeat(start(speculation=False))
    both, stats = repeat(start(draft=drafts["noisy"]))
    assert both == plain
    tallies = stats.drafts_by_method
    assert tallies["lookup"].proposed[0] > 0
    assert tallies["draft"].proposed[0] > 0
    total = [
        a + b for a, b in zip(tallies["lookup"].proposed, tallies["draft"].proposed, strict=True)
    ]
    assert stats.drafts_proposed == tuple(total)


@pytest.mark.parametrize("params", [PARAMS["greedy"], PARAMS["sampled"], PARAMS["penalties"]])
def test_a_draft_model_that_is_the_target_is_right(start, eager, drafts, params):
    """Also where tokens are sampled: both draw with the position's own random number."""
    _, plain = run_all(start(speculation=False), **params)
    _, stats = run_all(start(draft=drafts["same"]), **params)
    tally = stats.drafts_by_method["draft"]
    assert sum(tally.accepted) > 0.97 * sum(tally.proposed)
    assert stats.steps < 0.35 * plain.steps


def test_how_right_it_is_depends_on_how_like_the_target_it_is(start, eager, drafts):
    rates = []
    for kind in KINDS:
        tally = run_all(start(draft=drafts[kind]), temperature=0.0)[1].drafts_by_method["draft"]
        rates.append(tally.accepted[0] / tally.proposed[0])
    assert rates[0] > 0.97 > rates[1] > 0.4 > rates[2]


class Rows:
    """Counts the tokens that a draft model reads."""

    def __init__(self, model) -> None:
        self._model = model
        self.config, self.dtype, self.device = model.config, model.dtype, model.device
        self.read = 0

    def forward(self, batch, kv):
        self.read += len(batch.tokens)
        return self._model.forward(batch, kv)


SHARED = list(range(1, 33))  # eight blocks


def test_a_hit_in_the_prefix_cache_brings_the_draft_models_keys_too(start, eager, drafts):
    draft = Rows(drafts["same"])
    with start(draft=draft) as running:
        running.submit("first", [*SHARED, 40], max_tokens=9, ignore_eos=True)
        running.finish("first")
        assert draft.read >= 33
        draft.read = 0
        running.submit("second", [*SHARED, 50, 51], max_tokens=9, ignore_eos=True)
        running.finish("second")
        assert running.deltas["second"][0].cached_tokens == 32
        assert draft.read < 20  # what follows the shared beginning, and the drafts
        tally = running.engine.stats().drafts_by_method["draft"]
        assert sum(tally.accepted) > 0.97 * sum(tally.proposed)


def test_a_hit_on_what_the_draft_model_has_not_read_does_not_starve_it(start, drafts, monkeypatch):
    """The first request ran while drafting did not pay."""
    monkeypatch.setattr(LookupProposer, "propose", lambda _, candidates, **k: candidates)
    draft = Rows(drafts["same"])
    counts = {"now": 0}
    monkeypatch.setattr(DraftPolicy, "_count", lambda _, ask, *a, **k: min(counts["now"], ask.room))
    monkeypatch.setattr(DraftPolicy, "_try", lambda _, asks, **k: [NOTHING] * len(asks))
    with start(draft=draft) as running:
        running.submit("first", [*SHARED, 40], max_tokens=9, ignore_eos=True)
        running.finish("first")
        assert draft.read == 0
        counts["now"] = 4
        running.submit("second", [*SHARED, 50, 51], max_tokens=20, ignore_eos=True)
        running.finish("second")
        assert running.deltas["second"][0].cached_tokens == 32
        assert draft.read >= 34  # the shared beginning too
        tally = running.engine.stats().drafts_by_method["draft"]
        assert tally.proposed[0] > 0
        assert sum(tally.accepted) > 0.97 * sum(tally.proposed)


def test_a_long_prompt_is_read_in_pieces(start, eager, drafts, monkeypatch):
    monkeypatch.setattr("runtime.engine.draft_policy.CATCH_UP_ROWS", 8)
    sizes = []

    class Sizes(Rows):
        def forward(self, batch, kv):
            sizes.append(len(batch.tokens))
            return super().forward(batch, kv)

    with start(draft=Sizes(drafts["same"])) as running:
        running.submit("a", [*SHARED, *SHARED], max_tokens=25, ignore_eos=True)
        running.finish("a")
        tally = running.engine.stats().drafts_by_method["draft"]
    assert max(sizes) == 8
    assert tally.accepted[0] > 0


def test_an_abort_frees_the_blocks_that_were_reserved_for_drafts(start, eager, drafts):
    with start(draft=drafts["noisy"]) as running:
        running.submit("gone", prompts(2)["p1"], max_tokens=60, ignore_eos=True)
        running.submit("kept", prompts(3)["p2"], ignore_eos=True)
        running.step()
        running.step()
        running.engine.abort("gone")
        running.finish("kept")
        stats = running.engine.stats()
        assert (stats.running, stats.waiting, stats.free_blocks) == (0, 0, stats.blocks)


def test_a_draft_model_that_fails_fails_no_request(start, eager, drafts, tiny_model, caplog):
    class Broken(Rows):
        def forward(self, batch, kv):
            raise RuntimeError("no such kernel")

    plain, _ = run_all(start(speculation=False), temperature=0.0)
    drafted, stats = run_all(start(draft=Broken(tiny_model)), temperature=0.0)
    assert drafted == plain
    assert sum(stats.drafts_proposed) == 0
    assert caplog.text.count("the draft model failed") == 1


def test_a_draft_model_without_finite_numbers_guesses_nothing(start, eager, drafts, tiny_model):
    class Infinite(Rows):
        def forward(self, batch, kv):
            return super().forward(batch, kv) * float("nan")

    plain, _ = run_all(start(speculation=False), temperature=0.0)
    drafted, stats = run_all(start(draft=Infinite(tiny_model)), temperature=0.0)
    assert drafted == plain
    assert sum(stats.drafts_proposed) == 0


def test_both_caches_share_the_memory(start, drafts, tiny_model):
    with (
        start() as alone,
        start(draft=drafts["same"]) as both,
        start(draft=drafts["same"], speculation=False) as unused,
    ):
        blocks = [each.engine.stats().blocks for each in (alone, both, unused)]
    assert blocks == [blocks[0], blocks[0] // 2, blocks[0]]


@pytest.mark.parametrize("kind", ["noisy", "unrelated"])
def test_sampling_keeps_the_targets_distribution(start, eager, drafts, kind, tiny_model):
    """Chi-square of the second and third token, given those before, over many seeds."""
    count, bias = 1500, dict.fromkeys((3, 9, 18, 27), 100.0)  # four tokens only
    with start(draft=drafts[kind], max_seqs=64, kv_cache_bytes=1 << 22) as running:
        names = [f"s{seed}" for seed in range(count)]
        for seed, name in enumerate(names):
            running.submit(
                name, [60, 61], max_tokens=4, temperature=1.5, seed=seed, logit_bias=bias
            )
        running.finish(*names)
        seen = Counter(tuple(running.tokens(name))[:3] for name in names)
        tally = running.engine.stats().drafts_by_method["draft"]
        assert 0 < tally.accepted[0] < tally.proposed[0]
    with start(speculation=False, max_seqs=64) as exact:
        # The distribution after each beginning, from the model's own log probabilities.
        statistic, freedom = 0.0, 0
        for beginning in {tokens[:2] for tokens in seen}:
            expected = distribution(exact, [60, 61, *beginning], bias)
            total = sum(n for tokens, n in seen.items() if tokens[:2] == beginning)
            if total * min(expected.values()) < 5:
                continue
            for token, probability in expected.items():
                observed = seen[(*beginning, token)]
                statistic += (observed - total * probability) ** 2 / (total * probability)
            freedom += len(expected) - 1
    assert freedom >= 9
    # 99.99% of the chi-square distribution by Wilson and Hilferty
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.72 * (2 / (9 * freedom)) ** 0.5) ** 3


_names = itertools.count()


def distribution(running: Running, prompt: list[int], bias: dict[int, float]) -> dict[int, float]:
    name = f"d{next(_names)}"
    running.submit(name, prompt, max_tokens=1, temperature=0.0, logprobs=63, ignore_eos=True)
    running.finish(name)
    [entry] = running.deltas[name][0].logprobs
    logits = {token: value for token, value in entry.top if token in bias}
    weights = {token: torch.tensor(value / 1.5).exp().item() for token, value in logits.items()}
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


def test_a_draft_past_the_end_is_not_made(start, eager, drafts):
    with start(draft=drafts["same"]) as running:
        running.submit("a", [9], logit_bias={0: 100.0}, max_tokens=20)
        running.finish("a")
        assert running.tokens("a") == [0]
        assert running.deltas["a"][-1].finish is FinishReason.STOP


def test_after_a_sleep_it_knows_that_its_keys_are_gone(start, eager, drafts):
    with start(draft=drafts["same"]) as running:
        for name in ("before", "after"):
            running.submit(name, [*SHARED, 40], max_tokens=9, ignore_eos=True)
            running.finish(name)
            running.engine.sleep()
        assert running.tokens("after") == running.tokens("before")
        tally = running.engine.stats().drafts_by_method["draft"]
        assert sum(tally.accepted) > 0.97 * sum(tally.proposed)
