"""What the draft model is asked for, on a simulated machine: it pays, or costs next to nothing."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis.strategies import floats, integers, lists, tuples

from runtime.engine.draft_policy import CATCH_UP_ROWS, Ask, DraftPolicy, Record
from runtime.engine.speculation import MAX_DRAFTS, StepCost


@dataclass
class Machine:
    """Steps of target and draft model take base + rows · each ms; drafts are right by chance."""

    rate: float
    target: tuple[float, float] = (10.0, 0.5)
    draft: tuple[float, float] = (1.0, 0.1)
    seed: int = 1
    policy: DraftPolicy = field(default_factory=DraftPolicy)
    cost: StepCost = field(default_factory=StepCost)
    drafting_ms: float = 0.0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        for rows in (1, 2, 4, 8) * 5:
            self.cost.observe(rows=rows, ms=self._ms(self.target, rows))

    @staticmethod
    def _ms(line: tuple[float, float], rows: int) -> float:
        return line[0] + line[1] * rows

    def decode(self, *, sequences: int, tokens: int, prompt: int = 1) -> float:
        """Make so many tokens for each sequence; how much faster that is than without drafts."""
        lags = [prompt] * sequences
        records = [Record() for _ in range(sequences)]
        left = [tokens] * sequences
        took_ms = 0.0
        while live := [n for n in range(sequences) if left[n] > 0]:
            asks = [Ask(records[n], lags[n], min(MAX_DRAFTS, left[n]), left[n]) for n in live]
            shares = self.policy.plan(asks, decoding=len(live), cost=self.cost)
            spent = self._draft([share for share in shares if share.read])
            rows = len(live) + sum(share.drafts for share in shares)
            step = self._ms(self.target, rows)
            self.cost.observe(rows=rows, ms=step)
            took_ms += spent + step
            self.drafting_ms += spent + step - self._ms(self.target, len(live))
            for n, share in zip(live, shares, strict=True):
                accepted = self._accepted(share.drafts)
                left[n] -= accepted + 1
                lags[n] += 1 + accepted - share.read
                if share.drafts:
                    lags[n] -= min(accepted, share.drafts - 1)
                    self.policy.observe(records[n], proposed=share.drafts, accepted=accepted)
        plain_ms = tokens * self._ms(self.target, sequences)
        return plain_ms / took_ms

    def _draft(self, shares) -> float:
        if not shares:
            return 0.0
        sizes = [sum(share.read for share in shares)]
        sizes += [
            sum(share.drafts > n for share in shares)
            for n in range(1, max(share.drafts for share in shares))
        ]
        for rows in sizes:
            self.policy.cost.observe(rows=rows, ms=self._ms(self.draft, rows))
        return sum(self._ms(self.draft, rows) for rows in sizes)

    def _accepted(self, drafts: int) -> int:
        accepted = 0
        while accepted < drafts and self.rng.random() < self.rate:
            accepted += 1
        return accepted


@pytest.mark.parametrize(("rate", "at_least"), [(0.95, 3.0), (0.8, 1.8), (0.6, 1.25)])
def test_good_drafts_pay(rate, at_least):
    assert Machine(rate).decode(sequences=1, tokens=2000) > at_least


@pytest.mark.parametrize("draft", [(1.0, 0.1), (5.0, 0.5), (10.0, 1.0)], ids=str)
@pytest.mark.parametrize("sequences", [1, 4, 16])
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_a_draft_model_that_is_wrong_costs_at_most_three_percent(draft, sequences, rate):
    machine = Machine(rate, draft=draft)
    machine.decode(sequences=sequences, tokens=64, prompt=30)  # what it takes to find out
    ratios = [machine.decode(sequences=sequences, tokens=300, prompt=300) for _ in range(10)]
    assert sum(ratios) / len(ratios) > 0.97


def test_finding_out_takes_less_than_a_second_answer():
    assert Machine(0.0).decode(sequences=1, tokens=200, prompt=30) > 0.93


def test_a_large_batch_of_dear_rows_is_left_alone():
    """Rows are all that a step costs: whatever is drafted is a loss."""
    machine = Machine(0.9, target=(0.5, 1.0), draft=(1.0, 0.5))
    assert machine.decode(sequences=16, tokens=500) > 0.97


@pytest.mark.parametrize("rate", [0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("sequences", [1, 4, 16])
@pytest.mark.parametrize("draft", [(1.0, 0.1), (4.0, 0.5)], ids=str)
def test_it_is_never_a_loss_for_long(rate, sequences, draft):
    assert Machine(rate, draft=draft).decode(sequences=sequences, tokens=1000, prompt=100) > 0.97


def test_a_draft_model_that_becomes_good_is_noticed():
    machine = Machine(0.0)
    machine.decode(sequences=1, tokens=1000)
    machine.rate = 0.95
    machine.decode(sequences=1, tokens=3000)
    assert machine.decode(sequences=1, tokens=500) > 2.0


def test_a_sequence_is_judged_by_its_own_record():
    policy = DraftPolicy()
    good, bad = Record(), Record()
    for _ in range(20):
        policy.observe(good, proposed=4, accepted=4)
        policy.observe(bad, proposed=4, accepted=0)
    assert policy.rate(good) > 0.8 > 0.4 > policy.rate(bad)
    for _ in range(5000):
        bad.fade()
    assert policy.rate(bad) == pytest.approx(policy.rate(Record()), abs=0.01)


def test_a_short_answer_is_not_worth_reading_a_long_prompt_for():
    policy, cost = DraftPolicy(), StepCost()
    for rows in (1, 2, 4) * 10:
        cost.observe(rows=rows, ms=10 + 0.5 * rows)
        policy.cost.observe(rows=rows, ms=1 + 0.2 * rows)
    record = Record(9.0, 10.0)

    def reads(remaining: int) -> int:
        ask = Ask(record, 4000, min(MAX_DRAFTS, remaining), remaining)
        return policy.plan([ask], decoding=1, cost=cost)[0].read

    assert reads(20) == 0
    assert reads(2000) == CATCH_UP_ROWS


ASKS = lists(
    tuples(floats(0, 10), integers(1, 500), integers(1, MAX_DRAFTS), integers(1, 500)),
    min_size=1,
    max_size=16,
)


@given(ASKS, floats(0.1, 20), floats(0.01, 2), floats(0.1, 20), floats(0.01, 2))
@settings(derandomize=True, max_examples=200)
def test_any_plan_is_possible(asks, base, each, draft_base, draft_each):
    policy, cost = DraftPolicy(), StepCost()
    for rows in (1, 4, 16) * 5:
        cost.observe(rows=rows, ms=base + each * rows)
        policy.cost.observe(rows=rows, ms=draft_base + draft_each * rows)
    asked = [Ask(Record(right, 10.0), lag, room, remaining) for right, lag, room, remaining in asks]
    for _ in range(3):
        shares = policy.plan(asked, decoding=len(asked), cost=cost)
        assert len(shares) == len(asked)
        assert sum(share.read for share in shares) <= CATCH_UP_ROWS
        for ask, share in zip(asked, shares, strict=True):
            assert 0 <= share.read <= ask.lag
            assert 0 <= share.drafts <= ask.room
            assert not share.drafts or share.read == ask.lag
