"""How likely is the next request of an idle function? The rate model behind the idle policy.

The rate of return of an idle function (its hazard: returns per second of idleness) has two parts,
by how long the function has been idle:

    going on:  own rate × shape of all × own shape × pulse      after less than a minute
    beginning: season × own onset factor                        after more than four
    between:   their geometric mean

- own rate: the function's last hundred or so idle times (older ones fade), Gamma-Poisson;
- shape: how the rate depends on how long the function has been idle already (follow-ups come soon,
  regular jobs late), one learned over all functions and one of its own;
- pulse: how busy all functions together are in these seconds beside their last hour: functions that
  share users wake together, and what one learns serves all;
- season: its rate at this time of the week (scaler/forecast.py), corrected by how often it was
  right of late. Without a season the first part stands for all of it.

Each factor is a count of what happened over what the other factors made expect, shrunk towards 1 by
a few pseudo-counts (a Gamma prior on a Poisson rate), as in a generalised additive model that is
fitted backwards: they do not claim the same effect twice. Values only: no clock, no I/O.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

# Chosen on seeds of the simulator (bench/scaling.py) that are not among the reported ones.
_PRIOR_RETURNS = 0.5
_PRIOR_IDLE_S = 150.0
_FADE = 0.99  # of what was learned, per idle time
_SHAPE_FADE_ALL = 0.9995
_SHAPE_FADE_OWN = 0.98
_SHAPE_PRIOR_ALL = 60.0
_SHAPE_PRIOR_OWN = 30.0
_PULSE_S = 30.0
_USUAL_S = 3600.0
_PULSE_PRIOR = 10.0
_PULSE_POWER = 0.7

# Idle seconds at which the steps of a shape begin: 0, then from 4 s on a factor of √2 each.
AGES_S = (0.0, *(4.0 * 2 ** (k / 2) for k in range(23)))

# How far a call after such an idle time begins something new, which the season foretells, and does
# not follow on what went on before, which the own rate foretells.
_ONSET = tuple(0.0 if age < 64 else 0.5 if age < 256 else 1.0 for age in AGES_S)
_ONSET_PRIOR = 5.0
_ONSET_FADE = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class Season:
    """Calls of an idle function per second by time, constant in steps of `step_s`, repeating."""

    start_s: float  # of the first step, on plan's clock
    step_s: float
    rates: Sequence[float]
    sums: Sequence[float]  # of the rates before each step, and all of them at the end

    def at(self, now_s: float) -> float:
        """The rate now."""
        return self.rates[int((now_s - self.start_s) // self.step_s) % len(self.rates)]

    def lasts_s(self, now_s: float) -> float:
        """Seconds until the next step."""
        return self.step_s - (now_s - self.start_s) % self.step_s

    def mean(self, since_s: float, until_s: float) -> float:
        """Of the rates between two times."""
        return (self._sum(until_s) - self._sum(since_s)) / (until_s - since_s)

    def _sum(self, now_s: float) -> float:
        position = (now_s - self.start_s) / self.step_s
        rounds, position = divmod(position, len(self.rates))
        step = min(int(position), len(self.rates) - 1)
        steps = rounds * self.sums[-1] + self.sums[step]
        return (steps + (position - step) * self.rates[step]) * self.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """By idle time: returns that came, and that the other factors made expect."""

    came: tuple[float, ...] = (0.0,) * len(AGES_S)
    expected: tuple[float, ...] = (0.0,) * len(AGES_S)

    def factor(self, age: int, prior: float) -> float:
        """Around the step with this index, from the one before it to the two behind it: what single
        steps say is too noisy to let a replica go by."""
        around = slice(max(0, age - 1), age + 3)
        return (prior + sum(self.came[around])) / (prior + sum(self.expected[around]))

    def learn(self, span: "Span", *, fade: float, scale: Sequence[float] | None = None) -> "Shape":
        """With one more span; `scale` multiplies its expectations. Old counts fade with returns."""
        came, expected = list(self.came), list(self.expected)
        for step, value in enumerate(span.expected):
            expected[span.first + step] += value * scale[step] if scale else value
        if span.ended:
            came[span.first + len(span.expected) - 1] += 1
            came = [fade * value for value in came]
            expected = [fade * value for value in expected]
        return Shape(came=tuple(came), expected=tuple(expected))


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A part of an idle time: the returns that were to be expected in it without the shapes."""

    first: int  # the age step in which it begins
    expected: tuple[float, ...]  # for that step and the following ones
    ended: bool  # by a call


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What is learned over all functions."""

    since_s: float  # when the learning began
    at_s: float  # of the last return
    recent: float = 0.0  # returns, fading over _PULSE_S, at `at_s`
    usual: float = 0.0  # returns, fading over _USUAL_S, at `at_s`
    clock_s: float = 0.0  # the pulse's clock at `at_s`
    shape: Shape = Shape()

    def pulse(self, now_s: float) -> float:
        """How busy all are, beside their usual."""
        passed_s, learned_s = now_s - self.at_s, now_s - self.since_s
        usual_s = _USUAL_S * -math.expm1(-learned_s / _USUAL_S) + 30.0
        usual = (self.usual * math.exp(-passed_s / _USUAL_S) + 1.0) / usual_s
        recent = self.recent * math.exp(-passed_s / _PULSE_S)
        recent_s = _PULSE_S * -math.expm1(-learned_s / _PULSE_S)
        ratio = (recent + _PULSE_PRIOR) / (recent_s * usual + _PULSE_PRIOR)
        return float(ratio**_PULSE_POWER)

    def clock(self, now_s: float) -> float:
        """Time on a clock that runs faster the higher the pulse is, in seconds."""
        passed_s = now_s - self.at_s
        soon_s = min(passed_s, 2 * _PULSE_S)
        clock_s = self.clock_s + soon_s * self.pulse(self.at_s + _PULSE_S / 2)
        if passed_s > soon_s:
            clock_s += (passed_s - soon_s) * self.pulse(self.at_s + 2 * _PULSE_S)
        return clock_s

    def learn(self, now_s: float, span: Span) -> "Shared":
        """A function was idle for this span until now."""
        shape = self.shape.learn(span, fade=_SHAPE_FADE_ALL)
        if not span.ended:
            return replace(self, shape=shape)
        passed_s = now_s - self.at_s
        return Shared(
            since_s=self.since_s,
            at_s=now_s,
            recent=self.recent * math.exp(-passed_s / _PULSE_S) + 1.0,
            usual=self.usual * math.exp(-passed_s / _USUAL_S) + 1.0,
            clock_s=self.clock(now_s),
            shape=shape,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """What is learned of one function, and since when it has been idle (or busy)."""

    since_s: float
    settled_s: float  # idleness up to here is learned from
    settled_clock_s: float  # the pulse's clock then
    returns: float = 0.0  # idle times that ended, fading
    idle_s: float = 0.0  # idle seconds on the clock of the other factors, fading
    shape: Shape = Shape()
    onsets: float = 0.0  # calls after a long idle time, fading
    onsets_expected: float = 0.0  # by the season

    def rate(self, now_s: float, shared: Shared, season: Season | None) -> float:
        """Returns per second, if it is idle since `since_s` and still is."""
        passed_s = shared.clock(now_s) - self.settled_clock_s
        base = (_PRIOR_RETURNS + self.returns) / (_PRIOR_IDLE_S + self.idle_s + passed_s)
        age = age_step(now_s - self.since_s)
        shape = shared.shape.factor(age, _SHAPE_PRIOR_ALL) * self.shape.factor(
            age, _SHAPE_PRIOR_OWN
        )
        going_on = base * shape * shared.pulse(now_s)
        if season is None or not (onset := _ONSET[age]):
            return going_on
        begins = season.at(now_s) * self._onset_factor
        return float(going_on ** (1 - onset) * begins**onset)

    def idle_from(self, now_s: float, shared: Shared) -> "Pattern":
        """Its last request has ended."""
        clock_s = shared.clock(now_s)
        return replace(self, since_s=now_s, settled_s=now_s, settled_clock_s=clock_s)

    def due(self, now_s: float) -> bool:
        """Idle for another step of age since `settle`."""
        settled = age_step(self.settled_s - self.since_s)
        return age_step(now_s - self.since_s) > settled

    def settle(
        self, now_s: float, shared: Shared, season: Season | None, *, ended: bool
    ) -> tuple["Pattern", Span]:
        """Learn from its idleness up to now, `ended` by a call or not; the span is for `shared`."""
        rate = (_PRIOR_RETURNS + self.returns) / (_PRIOR_IDLE_S + self.idle_s)
        length_s, clock_s = now_s - self.settled_s, shared.clock(now_s)
        per_s = rate * (clock_s - self.settled_clock_s) / length_s if length_s > 0 else 0.0
        from_s, until_s = self.settled_s - self.since_s, now_s - self.since_s
        first, last = age_step(from_s), age_step(until_s)
        steps = range(first, last + 1)
        edges = [from_s, *AGES_S[first + 1 : last + 1], until_s]
        span = Span(
            first=first,
            expected=tuple(per_s * (until - since) for since, until in pairwise(edges)),
            ended=ended,
        )
        of_all = [shared.shape.factor(step, _SHAPE_PRIOR_ALL) for step in steps]
        own = [self.shape.factor(step, _SHAPE_PRIOR_OWN) for step in steps]
        onset = [_ONSET[step] if season else 0.0 for step in steps]
        shaped = sum(
            (1 - o) * e * f * g
            for o, e, f, g in zip(onset, span.expected, of_all, own, strict=True)
        )
        returns, idle_s = self.returns, self.idle_s + shaped / rate
        onsets, onsets_expected = self.onsets, self.onsets_expected
        if season and onset[-1] and length_s > 0:
            spans = zip(onset, pairwise(edges), strict=True)
            begun_s = sum(o * (until - since) for o, (since, until) in spans)
            onsets_expected += season.mean(self.settled_s, now_s) * begun_s
        if ended:
            returns, idle_s = _FADE * returns + 1.0 - onset[-1], _FADE * idle_s
            fade = _ONSET_FADE ** onset[-1]
            onsets, onsets_expected = fade * onsets + onset[-1], fade * onsets_expected
        pattern = Pattern(
            since_s=now_s if ended else self.since_s,
            settled_s=now_s,
            settled_clock_s=clock_s,
            returns=returns,
            idle_s=idle_s,
            onsets=onsets,
            onsets_expected=onsets_expected,
            shape=self.shape.learn(span, fade=_SHAPE_FADE_OWN, scale=of_all),
        )
        return pattern, span

    @property
    def _onset_factor(self) -> float:
        return (_ONSET_PRIOR + self.onsets) / (_ONSET_PRIOR + self.onsets_expected)


def age_step(idle_s: float) -> int:
    """The index in AGES_S of the step that holds this idle time."""
    return bisect_right(AGES_S, idle_s) - 1 if idle_s > 0 else 0
