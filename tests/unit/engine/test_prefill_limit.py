"""How much of a prompt runs beside decoding sequences."""

import random

import pytest
from hypothesis import given, settings
from hypothesis.strategies import floats, integers

from runtime.engine.prefill_limit import MARGIN, PrefillCost, PrefillLimit, prefill_ms

EACH, PAIR = 1.2, 2.5  # ms a token, and for each thousand keys: SmolLM2 on two cores


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


def learned() -> PrefillCost:
    cost = PrefillCost()
    for start in [*range(0, 4000, 400)] * 20:
        cost.observe([(start, 64)], ms=true_ms(start, 64))
    return cost


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_long_prompt_at_most_doubles_the_time_between_tokens(noise):
    cost = PrefillCost()
    cost.observe([(0, 40)], ms=true_ms(0, 40))  # one short prompt was seen before
    ratios = sorted(enter(cost, prompt=4000, decode_ms=20.0, noise=noise))
    assert ratios[int(0.99 * len(ratios))] <= 2 + noise
    assert ratios[len(ratios) // 2] == pytest.approx(1 + MARGIN, rel=0.15)  # and is not too shy


def test_the_next_prompt_begins_fast_again():
    cost = PrefillCost()
    first = len(enter(cost, prompt=4000, decode_ms=20.0))
    second = len(enter(cost, prompt=4000, decode_ms=20.0))
    assert second <= 1.2 * first


def test_every_step_makes_progress_however_dear_a_token_is():
    ratios = enter(learned(), prompt=50, decode_ms=0.1)
    assert len(ratios) == 50


@given(integers(0, 8000), floats(0, 500))
@settings(derandomize=True, max_examples=200)
def test_a_chunk_fits_and_one_more_token_would_not(start, ms):
    cost = learned()
    tokens = cost.tokens_within(start, ms=ms)
    assert cost.of(start, tokens) <= ms * 1.001 + 1e-6
    assert cost.of(start, tokens + 1) > ms * 0.999


def test_the_estimates_are_those_of_the_machine():
    cost = learned()
    for start, tokens in ((0, 512), (1000, 64), (3900, 16)):
        assert cost.of(start, tokens) == pytest.approx(true_ms(start, tokens), rel=0.15)


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
    assert 0 < second < 60
    assert limit.grant(0, 1000) <= 1


def test_those_who_wait_count_for_more_where_they_are_more():
    alone = prefill_ms(decode_ms=10.0, decoding=4, entering=1)
    assert alone == prefill_ms(decode_ms=10.0, decoding=4, entering=4) == MARGIN * 10.0
    assert prefill_ms(decode_ms=10.0, decoding=1, entering=15) == pytest.approx(15 * alone)


def test_before_anything_is_known_a_step_takes_one_token():
    limit = PrefillLimit(PrefillCost(), ms=10.0)
    assert limit.grant(0, 100) == 1
