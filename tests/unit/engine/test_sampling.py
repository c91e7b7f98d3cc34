"""Sampling: exact for greedy, statistically right for the rest, and the same in any company."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import floats, integers

from runtime.engine.request import GenerationRequest, SamplingParams
from runtime.engine.sampling import Position, draw, sample, uniform_at
from runtime.engine.sequence import Sequence

VOCAB = 8
LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -2.0, 1.5, 0.2])


def sequence(*, prompt=(1, 2), output=(), choice=0, **params) -> Sequence:
    request = GenerationRequest(
        id="r", prompt=prompt, params=SamplingParams(max_tokens=9, **params), choice=choice
    )
    seq = Sequence(request, None, arrived_s=0.0)
    for token in output:
        seq.append(token)
    return seq


def one(logits: torch.Tensor, seq: Sequence) -> int:
    return sample(logits.clone()[None], [Position(seq)])[0].token


def distribution(params: SamplingParams, draws: int = 4000) -> list[float]:
    """How often each token is drawn, at evenly spread uniform numbers: no chance involved."""
    counts = Counter(draw(LOGITS, params, (n + 0.5) / draws) for n in range(draws))
    return [counts[token] / draws for token in range(VOCAB)]


def softmax(logits: torch.Tensor) -> torch.Tensor:
    return torch.softmax(logits.double(), dim=-1)


def test_greedy_takes_the_likeliest():
    assert one(LOGITS, sequence(temperature=0.0)) == 0
    assert one(LOGITS, sequence(temperature=1e-9)) == 0


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_temperature_shapes_the_distribution(temperature):
    params = SamplingParams(max_tokens=1, temperature=temperature)
    expected = softmax(LOGITS / temperature)
    assert distribution(params) == pytest.approx(expected.tolist(), abs=1e-3)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 1}, {0}),
        ({"top_k": 3}, {0, 6, 1}),
        ({"top_p": 0.5}, {0, 6}),
        ({"top_p": 0.0}, {0}),
        ({"min_p": 0.5}, {0, 6}),
        ({"min_p": 1.0}, {0}),
        ({"top_k": 3, "top_p": 0.6}, {0, 6}),
        ({"top_k": 100}, set(range(VOCAB))),
    ],
)
def test_truncation_keeps_the_right_tokens_in_proportion(params, kept):
    probabilities = softmax(LOGITS)
    total = sum(float(probabilities[token]) for token in kept)
    expected = [float(probabilities[t]) / total if t in kept else 0.0 for t in range(VOCAB)]
    assert distribution(SamplingParams(max_tokens=1, **params)) == pytest.approx(expected, abs=1e-3)


def test_top_p_beyond_the_first_candidates_sorts_the_whole_vocabulary():
    logits = -torch.arange(5000) / 5000  # nearly flat: the first 1024 hold a third of the mass
    kept = int((softmax(logits).cumsum(0) < 0.9).sum()) + 1
    params = SamplingParams(max_tokens=1, top_p=0.9)
    assert draw(logits, params, 1 - 1e-9) == pytest.approx(kept - 1, abs=1)
    assert draw(logits, params, 0.0) == 0


def test_chi_square_of_real_draws():
    seq = sequence(temperature=1.0, seed=11)
    draws = 3000
    counts = Counter()
    for _ in range(draws):
        counts[one(LOGITS, seq)] += 1
        seq.append(0)  # the next position has the next random number
    expected = softmax(LOGITS) * draws
    statistic = sum(
        (counts[token] - float(expected[token])) ** 2 / float(expected[token])
        for token in range(VOCAB)
    )
    assert statistic < 24.3  # 99.9% quantile with 7 degrees of freedom


def test_a_seed_repeats_and_choices_differ():
    flat = torch.zeros(1000)
    tokens = [one(flat, sequence(temperature=1.0, seed=5)) for _ in range(3)]
    assert len(set(tokens)) == 1
    choices = [one(flat, sequence(temperature=1.0, seed=5, choice=n)) for n in range(8)]
    assert len(set(choices)) == 8
    assert len({one(flat, sequence(temperature=1.0)) for _ in range(8)}) > 1


def test_company_does_not_change_a_draw():
    flat = torch.zeros(50)
    alone = one(flat, sequence(temperature=1.0, seed=3))
    mates = [sequence(temperature=0.0), sequence(temperature=1.0, seed=3), sequence(seed=9)]
    rows = torch.stack([LOGITS.new_zeros(50), flat, flat])
    together = sample(rows, [Position(mate) for mate in mates])
    assert together[1].token == alone


@given(integers(0, 2**64 - 1), integers(0, 15), integers(0, 10**6))
@settings(derandomize=True, max_examples=100)
def test_uniform_numbers_are_in_range(seed, choice, position):
    assert 0.0 <= uniform_at(seed, choice, position) < 1.0


def test_uniform_numbers_are_spread():
    numbers = [uniform_at(1, 0, n) for n in range(2000)]
    assert sum(numbers) / 2000 == pytest.approx(0.5, abs=0.02)
    assert len(set(numbers)) == 2000


@given(floats(0, 1, exclude_max=True))
@settings(derandomize=True, max_examples=50)
def test_forbidden_tokens_are_never_drawn(uniform):
    logits = LOGITS.clone()
    logits[[0, 7]] = -math.inf
    assert draw(logits, SamplingParams(max_tokens=1), uniform) not in {0, 7}


def test_penalties_and_bias():
    assert one(LOGITS, sequence(temperature=0.0, logit_bias={0: -100.0})) == 6
    assert one(LOGITS, sequence(temperature=0.0, logit_bias={5: 100.0})) == 5
    assert one(LOGITS, sequence(temperature=0.0, presence_penalty=0.6, output=[0])) == 6
    assert one(LOGITS, sequence(temperature=0.0, presence_penalty=0.6, prompt=(0,))) == 0
    assert one(LOGITS, sequence(temperature=0.0, frequency_penalty=0.2, output=[0, 0])) == 0
    assert one(LOGITS, sequence(temperature=0.0, frequency_penalty=0.2, output=[0, 0, 0])) == 6
    assert one(LOGITS, sequence(temperature=0.0, repetition_penalty=2.0, prompt=(0,))) == 6
    negative = -LOGITS.abs() - 1
    liked = int(negative.argmax())
    assert (
        one(negative, sequence(temperature=0.0, repetition_penalty=2.0, prompt=(liked,))) != liked
    )


def test_drafts_ahead_count_as_if_they_were_there():
    """A row that assumes drafts samples what the sequence would sample after those tokens."""
    flat = torch.zeros(200)
    settings_of = {
        "temperature": 1.0,
        "seed": 8,
        "presence_penalty": 1.5,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.3,
    }
    drafts = (17, 4, 17)
    assumed = sample(flat.clone()[None], [Position(sequence(**settings_of), drafts)])[0]
    assert assumed.token == one(flat, sequence(output=drafts, **settings_of))


def test_logprobs_are_the_models_own():
    seq = sequence(temperature=0.7, seed=1, logit_bias={3: 100.0}, logprobs=2)
    [sampled] = sample(LOGITS.clone()[None], [Position(seq)])
    expected = torch.log_softmax(LOGITS, dim=-1)
    assert sampled.token == 3
    assert sampled.logprob.logprob == pytest.approx(float(expected[3]))
    assert [token for token, _ in sampled.logprob.top] == [0, 6]
    bare_sequence = sequence(temperature=0.0, logprobs=0)
    [bare] = sample(LOGITS.clone()[None], [Position(bare_sequence)])
    assert bare.logprob.top == ()


def test_numbers_that_are_not_finite_fail_their_own_row_only():
    rows = torch.stack([LOGITS, torch.full((VOCAB,), math.nan), LOGITS])
    results = sample(rows, [Position(sequence(temperature=0.0)) for _ in range(3)])
    assert [bool(result.error) for result in results] == [False, True, False]
    assert results[2].token == 0
