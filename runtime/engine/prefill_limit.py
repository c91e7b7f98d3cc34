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
_LEARNING_RATE = 0.3
_FIRST_EACH = 0.06  # of a decoding step
_FIRST_PAIR = 0.5  # of a token's, for a thousand keys
_OUTLIER = 4.0  # times the prediction
_KEYS = 1000.0  # the unit of `pair`


class PrefillCost:
    """Time of a prompt's tokens as `each · tokens + pair · keys seen`, in ms.

    The normalised least-mean-squares rule: each observation moves the two estimates along its own
    features until they explain a part of the error. It follows a slow change within some steps,
    and stays stable where the features do not tell the two apart (one prompt, the same chunks).
    """

    def __init__(self) -> None:
        self.each = 0.0  # ms of a token, without attention to earlier ones
        self.pair = 0.0  # ms of a token for each thousand keys that it sees

    def observe(self, chunks: Iterable[tuple[int, int]], *, ms: float) -> None:
        """A step with these prompt chunks (start, tokens) took `ms` more than without them."""
        sizes = [_features(start, tokens) for start, tokens in chunks]
        tokens, keys = sum(size[0] for size in sizes), sum(size[1] for size in sizes)
        if not self.each:
            self.each = max(ms, 0.0) / (tokens + _FIRST_PAIR * keys)
            self.pair = _FIRST_PAIR * self.each
            return
        predicted = self.each * tokens + self.pair * keys
        error = min(ms, _OUTLIER * predicted) - predicted
        step = _LEARNING_RATE * error / (tokens**2 + keys**2)
        floor = 0.01 * self.each
        self.each = max(self.each + step * tokens, floor)
        self.pair = max(self.pair + step * keys, 0.0)

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

    The first chunk of a step gets one token at least, so every step makes progress.
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
        tokens = min(wanted, max(1, self._cost.tokens_within(start, ms=self._left_ms)))
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
