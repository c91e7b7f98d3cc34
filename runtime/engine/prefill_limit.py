"""How much of a prompt a step may run beside decoding sequences, so that they hardly notice.

While sequences decode, a step that runs a piece of a prompt too makes all of them wait for it. The
piece is therefore as large as takes no longer than the decoding itself: a step, and so the time
between two tokens, at most doubles, and a long prompt gets half of the machine. Where more
sequences wait for their first token than decode, the waiting ones count for more: the share is in
proportion (fifteen that wait need not be spared for one that decodes). Where nothing decodes there
is no limit.

`PrefillCost` learns what a prompt's tokens cost from the steps themselves. Pure: no clock.
"""

import math
from collections.abc import Iterable

MARGIN = 0.9  # of the time allowed: predictions are a little off both ways
MIN_TOKENS = 8  # of a prompt in a step: fewer cost hardly less, as each step reads all its keys
_MEMORY = 0.9  # what a further step leaves of what is known
_PAIR = 0.5  # a thousand keys seen, in tokens without any
_HEAVIEST = 32.0  # tokens' worth: a large chunk says little of what small ones cost
_OUTLIER = 4.0  # times the prediction
_KEYS = 1000.0


class PrefillCost:
    """What a prompt's tokens take, in ms, as a share of the keys that they see: the time of the
    last steps over their tokens.

    How much dearer a token is after many others depends on kernel and model; one fixed guess is
    enough, because the context grows slowly from step to step and the average follows. A sum over
    sums is steady where single steps are not: one token's time drowns in the noise of a step.
    """

    def __init__(self) -> None:
        self._ms = self._tokens = 0.0  # sums that forget

    @property
    def each(self) -> float:
        """ms of a token that sees no others; 0 before anything is known."""
        return max(self._ms, 0.01) / self._tokens if self._tokens else 0.0

    @property
    def pair(self) -> float:
        """ms of a token for each thousand keys."""
        return _PAIR * self.each

    def observe(self, chunks: Iterable[tuple[int, int]], *, ms: float) -> None:
        """A step with these prompt chunks (start, tokens) took `ms` more than without them."""
        tokens = sum(
            count + _PAIR * keys for count, keys in (_features(*chunk) for chunk in chunks)
        )
        if predicted := self.each * tokens:
            ms = min(max(ms, -predicted), _OUTLIER * predicted)
        weight = min(1.0, _HEAVIEST / tokens)
        self._ms = _MEMORY * max(self._ms, 0.0) + weight * ms
        self._tokens = _MEMORY * self._tokens + weight * tokens

    def of(self, start: int, tokens: int) -> float:
        """Expected time of a chunk in ms."""
        count, keys = _features(start, tokens)
        return self.each * count + self.pair * keys

    def tokens_within(self, start: int, *, ms: float) -> int:
        """The largest chunk from `start` on that is expected to take at most `ms`."""
        square, linear = self.pair / (2 * _KEYS), self.each + self.pair * start / _KEYS
        if not linear:
            return 0
        root = math.sqrt(linear * linear + 4 * square * max(ms, 0.0))
        return math.floor(2 * max(ms, 0.0) / (linear + root) + 1e-9)


class PrefillLimit:
    """The time that one step may spend on prompts, dealt out chunk by chunk.

    The first chunk of a step gets MIN_TOKENS at least, so every step makes progress.
    """

    def __init__(self, cost: PrefillCost, *, ms: float) -> None:
        self._cost = cost
        self._left_ms = ms
        self._fresh = True

    @property
    def is_open(self) -> bool:
        """Whether another chunk may be run."""
        return self._fresh or self._left_ms >= self._cost.of(0, 1)

    def grant(self, start: int, wanted: int) -> int:
        """How many tokens from `start` on may be run; at least one while the limit is open."""
        if not self.is_open:
            return 0
        least = MIN_TOKENS if self._fresh else 1
        tokens = min(wanted, max(least, self._cost.tokens_within(start, ms=self._left_ms)))
        self._left_ms -= self._cost.of(start, tokens)
        self._fresh = False
        return tokens


def prefill_ms(*, decode_ms: float, decoding: int, entering: int) -> float:
    """What prompts may add to a step that takes `decode_ms` for its `decoding` sequences, while
    `entering` sequences lack their first token."""
    return MARGIN * decode_ms * max(1.0, entering / decoding)


def _features(start: int, tokens: int) -> tuple[float, float]:
    """Tokens, and the keys that they see in sum, in thousands."""
    return float(tokens), (tokens * start + tokens * tokens / 2) / _KEYS
