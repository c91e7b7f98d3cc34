"""Prompt lookup and the choice of how much to guess."""

import pytest
from hypothesis import given, settings
from hypothesis.strategies import floats, integers, lists

from runtime.engine.speculation import MAX_DRAFTS, PromptLookup, StepCost, worthwhile


def naive(tokens: list[int], limit: int) -> tuple[int, ...]:
    """What followed the latest earlier occurrence of the longest matching tail, repeated."""
    for length in (4, 3, 2):
        if length >= len(tokens):
            continue
        for start in range(len(tokens) - 1, length - 1, -1):
            if tokens[start - length : start] == tokens[-length:]:
                return tuple((tokens[start:] * limit)[:limit])
    return ()


@given(lists(integers(0, 3), max_size=40), integers(0, 30), integers(1, MAX_DRAFTS))
@settings(derandomize=True, max_examples=300)
def test_lookup_finds_what_a_search_would(tokens, prompt, limit):
    growing = tokens[:prompt]
    lookup = PromptLookup(growing)
    assert lookup.propose(limit) == naive(growing, limit)
    for token in tokens[prompt:]:
        growing.append(token)
        assert lookup.propose(limit) == naive(growing, limit)


def test_rates_follow_what_happens_and_recover():
    lookup = PromptLookup([1, 2, 3, 1, 2, 3, 1, 2, 3])
    lookup.propose(4)
    first = lookup.rate
    for _ in range(20):
        lookup.observe(proposed=4, accepted=0)
    low = lookup.rate
    assert low < 0.1 < first
    for _ in range(200):
        lookup.passed_over()
    assert low < lookup.rate < first
    for _ in range(20):
        lookup.observe(proposed=4, accepted=4)
    assert lookup.rate > 0.95


@given(floats(5, 50), floats(0.05, 5), lists(integers(1, 40), min_size=60, max_size=60))
@settings(derandomize=True, max_examples=50)
def test_step_cost_learns_a_line(base, each, rows):
    cost = StepCost()
    for count in [1, 8, 16, *rows]:
        cost.observe(rows=count, ms=base + each * count)
    assert cost.at(8) == pytest.approx(base + each * 8, rel=0.25)
    assert 0 < cost.each <= 2 * each + 0.1 * base


def test_steps_of_one_size_say_nothing_about_rows():
    cost = StepCost()
    for _ in range(500):
        cost.observe(rows=1, ms=20.0)
    assert cost.at(1) == pytest.approx(20.0)
    assert cost.each == pytest.approx(1.2, rel=0.1)


def test_an_outlier_does_not_upset_the_estimate():
    cost = StepCost()
    for _ in range(50):
        cost.observe(rows=1, ms=10.0)
    cost.observe(rows=1, ms=5000.0)
    assert cost.at(1) < 11


@given(floats(0, 0.99), integers(1, 64), floats(1, 50), floats(0.1, 5))
@settings(derandomize=True, max_examples=200)
def test_more_company_never_means_more_drafts(rate, sequences, base, each):
    cost = StepCost()
    for count in (1, 2, 4, 8, 16, 32) * 5:
        cost.observe(rows=count, ms=base + each * count)
    few = worthwhile(rate=rate, sequences=sequences, cost=cost)
    more = worthwhile(rate=rate, sequences=sequences * 2, cost=cost)
    assert 0 <= more <= few <= MAX_DRAFTS


def test_drafts_that_are_never_right_or_too_dear_are_not_run():
    cheap, dear = StepCost(), StepCost()
    for count in (1, 4, 16) * 10:
        cheap.observe(rows=count, ms=20 + 0.1 * count)
        dear.observe(rows=count, ms=1.0 * count)
    assert worthwhile(rate=0.0, sequences=1, cost=cheap) == 0
    assert worthwhile(rate=0.9, sequences=1, cost=cheap) == MAX_DRAFTS
    assert worthwhile(rate=0.8, sequences=4, cost=dear) == 0
