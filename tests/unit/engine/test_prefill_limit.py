"""How much of a prompt runs beside decoding sequences."""

import random

import pytest
from hypothesis import given, settings
from hypothesis.strategies import floats, integers

from runtime.engine.prefill_limit import MARGIN, MIN_TOKENS, PrefillCost, PrefillLimit, prefill_ms

EACH, PAIR = 1.1, 0.4  # ms a token, and for each thousand keys: SmolLM2 on two cores


def true_ms(start: int, tokens: int) -> float:
    return EACH * tokens + PAIR * (tokens * start + tokens**2 / 2) / 1000


def enter(cost: PrefillCost, *, prompt: int, decode_ms: float, noise: float = 0.0, seed: int = 1):
    """Run a prompt beside one decoding sequence; the time of each step over the decoding's."""
    rng, start, ratios = random.Random(seed), 0, []
    while start < prompt:
        ms = prefill_ms(decode_ms=decode_ms, decoding=1, entering=1)
        tokens = PrefillLimit(cost, ms=ms).grant(start, prompt - start)
        took = true_ms(start, tokens) * (1 + noise * rng.uniform(-1, 1))
        cost.observe([(start, tokens)], ms=took)
        ratios.append((decode_ms + took) / decode_ms)
        start += tokens
    return ratios


def learned(start: int = 2000) -> PrefillCost:
    cost = PrefillCost()
    for _ in range(60):
        cost.observe([(start, 16)], ms=true_ms(start, 16))
    return cost


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_long_prompt_at_most_doubles_the_time_between_tokens(noise):
    cost = PrefillCost()
    cost.observe([(0, 40)], ms=true_ms(0, 40))  # one short prompt was seen before
    ratios = sorted(enter(cost, prompt=4000, decode_ms=40.0, noise=noise))
    assert ratios[int(0.99 * len(ratios))] <= 2.2 + noise
    assert ratios[len(ratios) // 2] == pytest.approx(1 + MARGIN, rel=0.15)  # and is not too shy


def test_the_next_prompt_begins_fast_again():
    cost = PrefillCost()
    first = len(enter(cost, prompt=4000, decode_ms=40.0))
    second = len(enter(cost, prompt=4000, decode_ms=40.0))
    assert second <= 1.2 * first


def test_every_step_makes_progress_however_dear_a_token_is():
    ratios = enter(learned(), prompt=50, decode_ms=0.1)
    assert len(ratios) == -(-50 // MIN_TOKENS)


@given(integers(0, 8000), floats(0, 500))
@settings(derandomize=True, max_examples=200)
def test_a_chunk_fits_and_one_more_token_would_not(start, ms):
    cost = learned()
    tokens = cost.tokens_within(start, ms=ms)
    assert cost.of(start, tokens) <= ms * 1.001 + 1e-6
    assert cost.of(start, tokens + 1) > ms * 0.999


@pytest.mark.parametrize("start", [0, 1000, 3900])
def test_the_estimate_is_right_where_the_prompt_is(start):
    cost = learned(start)
    for tokens in (1, 16, 40):
        assert cost.of(start + 50, tokens) == pytest.approx(true_ms(start + 50, tokens), rel=0.1)


def test_noise_of_the_step_is_not_taken_for_the_tokens():
    """A step varies by more than a token takes; the chunks must not shrink to nothing for it."""
    rng, cost, start, steps = random.Random(3), PrefillCost(), 0, 0
    cost.observe([(0, 40)], ms=true_ms(0, 40))
    while start < 2000:
        tokens = PrefillLimit(cost, ms=20.0).grant(start, 2000 - start)
        cost.observe([(start, tokens)], ms=true_ms(start, tokens) + rng.gauss(0, 15))
        start, steps = start + tokens, steps + 1
    without_noise = true_ms(0, 2000) / 20.0
    assert without_noise * 0.7 < steps < without_noise * 1.5


def test_an_outlier_does_not_upset_the_estimate():
    cost = learned()
    before = cost.of(2000, 10)
    cost.observe([(2000, 10)], ms=1e6)
    assert cost.of(2000, 10) <= 2 * before
    cost.observe([(2000, 10)], ms=-50.0)  # a decoding step was expected to take longer
    assert cost.of(2000, 10) > 0


def test_several_chunks_share_the_time():
    limit = PrefillLimit(learned(), ms=100.0)
    first = limit.grant(0, 30)
    second = limit.grant(0, 1000)
    assert first == 30
    assert 0 < second < 80
    assert limit.grant(0, 1000) <= 1


def test_those_who_wait_count_for_more_where_they_are_more():
    alone = prefill_ms(decode_ms=10.0, decoding=4, entering=1)
    assert alone == prefill_ms(decode_ms=10.0, decoding=4, entering=4) == MARGIN * 10.0
    assert prefill_ms(decode_ms=10.0, decoding=1, entering=15) == pytest.approx(15 * alone)


def test_before_anything_is_known_a_step_takes_the_least():
    limit = PrefillLimit(PrefillCost(), ms=10.0)
    assert limit.grant(0, 100) == MIN_TOKENS
