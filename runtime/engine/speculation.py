"""Speculative decoding: guess the next tokens, run them in one step, keep those that are right.

Exactness costs nothing here. Every output position has its own random number (sampling.py), so the
token sampled at a position is a function of the tokens before it alone. A step that runs k drafts
samples k + 1 positions, each as if its drafts were true; the tokens up to and including the first
that differs from its draft are what the sequence would have had without speculation, for greedy
and for any sampling. (A draft x is thus kept with the target's probability of x, which is the best
any rule can do for proposals without randomness of their own: Leviathan et al. 2023, arXiv
2211.17192. A draft model that draws with the position's own random number is right more often.)

Proposals come from prompt lookup: where the last few tokens have occurred before, what followed
them then is proposed now (Saxena 2023); or from a draft model (drafting.py). speculator.py asks one
after the other.

Whether a guess pays depends on the machine and on the company: a step's time grows with its rows.
`StepCost` learns that from the steps themselves, and `worthwhile` weighs it against the chance that
the guess is right.
"""

MAX_DRAFTS = 12
_LENGTHS = (4, 3, 2)  # tokens that must match, longest first
_FIRST_RATES = {4: 0.8, 3: 0.6, 2: 0.3}  # how often a draft is right, before anything is known
_RATE_MEMORY = 0.85
_COST_WEIGHT = 0.03
_FIRST_ROW_COST = 0.06  # of a step
_GUESS_WEIGHT = 0.3  # in squared rows
_FORGIVENESS = 0.002  # an unused match moves a rate this much back to its first value


class PromptLookup:
    """Finds earlier occurrences of a sequence's last tokens, in constant time a token."""

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens  # the sequence's own, growing list
        self._follows: dict[tuple[int, ...], int] = {}  # n-gram → where its continuation starts
        self._indexed = 0
        self._rates = dict(_FIRST_RATES)
        self._matched = _LENGTHS[0]

    def _index(self) -> None:
        """Take in the tokens that were appended: every n-gram that now has a continuation."""
        tokens = self._tokens
        for at in range(max(self._indexed, 1), len(tokens)):
            for length in _LENGTHS:
                if length <= at:
                    self._follows[tuple(tokens[at - length : at])] = at
        self._indexed = len(tokens)

    def propose(self, limit: int) -> tuple[int, ...]:
        """`limit` tokens: what followed the longest match, repeated if it is short; or none."""
        self._index()
        tokens = self._tokens
        for length in _LENGTHS:
            start = self._follows.get(tuple(tokens[-length:])) if length < len(tokens) else None
            if start is not None:
                self._matched = length
                period = len(tokens) - start
                return tuple(tokens[start + n % period] for n in range(limit))
        return ()

    @property
    def rate(self) -> float:
        """How often a draft of the last match's length has been right."""
        return self._rates[self._matched]

    def observe(self, *, proposed: int, accepted: int) -> None:
        """Learn from a verified proposal; the drafts after the first wrong one say nothing."""
        tried = min(proposed, accepted + 1)
        for n in range(tried):
            right = 1.0 if n < accepted else 0.0
            self._rates[self._matched] *= _RATE_MEMORY
            self._rates[self._matched] += (1 - _RATE_MEMORY) * right

    def passed_over(self) -> None:
        """A match was not worth trying: let its rate recover, or it would never be tried again."""
        first = _FIRST_RATES[self._matched]
        self._rates[self._matched] += _FORGIVENESS * (first - self._rates[self._matched])


class StepCost:
    """Time of a decoding step as `base + rows · each`, in ms: least squares that forget.

    Steps of always the same size say nothing about `each`; it then drifts back to the first guess,
    a small part of a step's time.
    """

    def __init__(self) -> None:
        self._rows = self._rows2 = self._ms = self._rows_ms = 0.0  # means, forgetting
        self._seen = 0

    def observe(self, *, rows: int, ms: float) -> None:
        """Add one decode-only step. An outlier (the machine was busy) counts as a slow step."""
        if self._seen:
            ms = min(ms, 3 * self._ms)
        self._seen += 1
        weight = max(_COST_WEIGHT, 1 / self._seen)
        self._rows += weight * (rows - self._rows)
        self._rows2 += weight * (rows * rows - self._rows2)
        self._ms += weight * (ms - self._ms)
        self._rows_ms += weight * (rows * ms - self._rows_ms)

    @property
    def each(self) -> float:
        """What a row adds; never less than a hundredth of a step."""
        variance = self._rows2 - self._rows**2
        covariance = self._rows_ms - self._rows * self._ms
        guess = _FIRST_ROW_COST * self._ms
        slope = (covariance + _GUESS_WEIGHT * guess) / (variance + _GUESS_WEIGHT)
        return max(slope, 0.01 * self._ms)

    def at(self, rows: int) -> float:
        """Expected time of a step."""
        return max(self._ms + self.each * (rows - self._rows), self.each * rows)


def worthwhile(*, rate: float, sequences: int, cost: StepCost, guess_ms: float = 0.0) -> int:
    """How many drafts of one sequence to run in a step of `sequences` decoding sequences.

    Draft number j is right with probability rate^j; it is worth its row, and the `guess_ms` that it
    takes to make it, if it gains tokens faster than the step makes them without it.
    """
    row_cost = (cost.each + guess_ms) * sequences  # in tokens that a plain step makes meanwhile,
    step_ms = cost.at(sequences)  # times the step's time
    count, chance = 0, rate
    while count < MAX_DRAFTS and chance * step_ms > row_cost:
        count += 1
        chance *= rate
    return count
