"""The rate model behind the idle policy: laws that hold for any stream of calls."""

import math
from itertools import pairwise
from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.rates import AGES_S, Pattern, Season, Shape, Shared, age_step

RATES = st.just(0.0) | st.floats(1e-9, 1)  # per second
GAPS_S = st.lists(st.floats(0, 50_000), min_size=1, max_size=30)
PROPERTY = settings(derandomize=True, deadline=None, max_examples=100)


def a_season(rates, step_s=300.0):
    sums = [0.0]
    for rate in rates:
        sums.append(sums[-1] + rate)
    return Season(start_s=0.0, step_s=step_s, rates=rates, sums=sums)


SEASONS = st.none() | st.lists(RATES, min_size=1, max_size=12).map(a_season)


class Stream:
    """One function's idle times, each learned from as plan() does: a piece at each step of age."""

    def __init__(self, season=None, *, at_s=0.0):
        self.season = season
        self.shared = Shared(since_s=at_s, at_s=at_s)
        self.pattern = Pattern(since_s=at_s, settled_s=at_s, settled_clock_s=0.0)

    def idle(self, since_s, gap_s, *, look=lambda now_s: None):
        """Idle from `since_s` for so long; `look` at every step of age."""
        self.pattern = self.pattern.idle_from(since_s, self.shared)
        for age_s in AGES_S[1:]:
            if age_s >= gap_s:
                break
            look(since_s + age_s)
            self._settle(since_s + age_s, ended=False)
        look(since_s + gap_s)
        self._settle(since_s + gap_s, ended=True)
        return since_s + gap_s

    def rate(self, now_s):
        return self.pattern.rate(now_s, self.shared, self.season)

    def _settle(self, now_s, *, ended):
        self.pattern, span = self.pattern.settle(now_s, self.shared, self.season, ended=ended)
        self.shared = self.shared.learn(now_s, span)


@PROPERTY
@given(gaps_s=GAPS_S, season=SEASONS)
def test_rates_are_finite_and_positive(gaps_s, season):
    stream, now_s = Stream(season), 0.0

    def look(at_s):
        rate = stream.rate(at_s)
        assert math.isfinite(rate) and rate >= 0
        assert rate > 0 or (season and season.at(at_s) == 0)

    for gap_s in gaps_s:
        now_s = stream.idle(now_s, gap_s, look=look)
    for later_s in (0, 1, 100, 1e5, 1e7):
        look(now_s + later_s)


# Where calls come every ten seconds the prior's 150 s weigh as much as the last 15 idle times.
@pytest.mark.parametrize(("rate", "within"), [(0.1, 0.2), (0.03, 0.1), (0.01, 0.1), (0.001, 0.1)])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_rate_of_a_poisson_stream_is_learned(rate, within, seed):
    # Over each idle time the rate that was foretold adds up to one call, on average.
    rng, stream, now_s, foretold = Random(seed), Stream(), 0.0, []
    for number in range(800):
        gap_s = rng.expovariate(rate)
        if number >= 300:
            at = stream.pattern.idle_from(now_s, stream.shared)
            looks_s = [now_s + gap_s * (k + 0.5) / 40 for k in range(40)]
            foretold.append(gap_s * fmean(at.rate(t, stream.shared, None) for t in looks_s))
        now_s = stream.idle(now_s, gap_s)
    assert fmean(foretold) == pytest.approx(1, abs=within)


@pytest.mark.parametrize("factor", [0.1, 10])
def test_a_rate_that_changed_is_learned_anew(factor):
    rng, stream, now_s = Random(3), Stream(), 0.0
    for _ in range(200):
        now_s = stream.idle(now_s, rng.expovariate(0.01))
    for _ in range(60):
        now_s = stream.idle(now_s, rng.expovariate(0.01 * factor))
    middle_s = now_s + 50 / factor
    rate = stream.pattern.idle_from(now_s, stream.shared).rate(middle_s, stream.shared, None)
    assert 1 / 3 < rate / (0.01 * factor) < 3


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    recent=st.floats(0, 3000),
    usual=st.floats(0, 100_000),
    looks_s=st.lists(st.floats(0, 4000), min_size=2, max_size=20),
)
def test_the_clock_of_the_pulse_never_runs_back(recent, usual, looks_s):
    shared = Shared(since_s=-1e6, at_s=0.0, recent=recent, usual=usual)
    clocks_s = [shared.clock(look_s) for look_s in sorted(looks_s)]
    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(clocks_s))


@PROPERTY
@given(gaps_s=GAPS_S)
def test_the_clock_of_the_pulse_goes_on_with_each_call(gaps_s):
    stream, now_s = Stream(), 0.0
    for gap_s in gaps_s:
        before_s = stream.shared.clock(now_s + gap_s)
        now_s = stream.idle(now_s, gap_s)
        assert stream.shared.clock(now_s) == pytest.approx(before_s)


@PROPERTY
@given(gaps_s=GAPS_S, cuts=st.lists(st.floats(0, 1), max_size=5), last_s=st.floats(1, 5000))
def test_settled_in_pieces_is_nearly_settled_at_once(gaps_s, cuts, last_s):
    stream, now_s = Stream(), 0.0
    for gap_s in gaps_s:
        now_s = stream.idle(now_s, gap_s)
    shared = stream.shared
    at_once, span = stream.pattern.settle(now_s + last_s, shared, None, ended=True)
    pieces, spans = stream.pattern, []
    for cut in sorted(cuts):
        pieces, piece = pieces.settle(now_s + cut * last_s, shared, None, ended=False)
        spans.append(piece)
    pieces, piece = pieces.settle(now_s + last_s, shared, None, ended=True)
    spans.append(piece)
    assert pieces.returns == at_once.returns
    assert pieces.since_s == at_once.since_s == now_s + last_s
    assert pieces.settled_clock_s == at_once.settled_clock_s
    # Each piece is weighed by the rate and shape known at its beginning, so they differ by what one
    # idle time teaches.
    assert pieces.idle_s == pytest.approx(at_once.idle_s, rel=0.35, abs=1)
    assert sum(at_once.shape.came) == pytest.approx(sum(pieces.shape.came))
    expected = sum(sum(piece.expected) for piece in spans)
    assert sum(span.expected) >= expected - 1e-9 or expected < 2 * sum(span.expected)


def test_regular_calls_make_a_shape():
    stream, now_s = Stream(), 0.0
    for _ in range(60):
        now_s = stream.idle(now_s, 600.0)
    # At ten minutes a call is far likelier than before.
    at = stream.pattern.idle_from(now_s, stream.shared)
    early, late = (at.rate(now_s + age_s, stream.shared, None) for age_s in (100, 600))
    assert late > 3 * early


@PROPERTY
@given(rates=st.lists(st.floats(0, 1), min_size=1, max_size=12), times=st.data())
def test_the_mean_of_a_season_is_that_of_its_steps(rates, times):
    season = a_season(rates, step_s=10.0)
    since_s = times.draw(st.integers(-300, 300))
    until_s = times.draw(st.integers(since_s + 1, since_s + 400))
    by_second = fmean(season.at(second + 0.5) for second in range(since_s, until_s))
    assert season.mean(since_s, until_s) == pytest.approx(by_second, abs=1e-9)


def test_the_steps_of_age():
    assert [age_step(age_s) for age_s in (-1, 0, 3.9, 4, 5.6, 5.7, 1e9)] == [
        *(0, 0, 0, 1, 1, 2),
        len(AGES_S) - 1,
    ]
    assert all(later > earlier for earlier, later in pairwise(AGES_S))
    assert all(age_step(age_s) == step for step, age_s in enumerate(AGES_S))


def test_a_shape_without_counts_changes_nothing():
    assert Shape().factor(3, 5.0) == 1.0
