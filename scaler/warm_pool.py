"""Warm pool: how many standbys to keep, from how many functions will start soon.

A standby that is taken is replaced in about a second, so what counts is how many different
functions at zero are called within a few: each by its rate of return, and those that a floor
launches. Enough are kept that in 95 of 100 such moments every start finds one.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from scaler.rates import Shared
from scaler.state import Tracked

HORIZON_S = 10.0  # to make a standby, on a busy machine
ENOUGH = 0.95
LOWER_AFTER_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Pool:
    """How many standbys a fleet keeps for one class of accelerator."""

    least: int
    most: int


class WarmPool:
    """How many standbys were asked for last: more at once, fewer after a minute."""

    def __init__(self, pool: Pool, *, now_s: float) -> None:
        self._pool = pool
        self._count = pool.least
        self._fewer_since_s = now_s

    def follow(self, at_zero: Iterable[Tracked], *, now_s: float, shared: Shared) -> int | None:
        """How many to keep from now on; None where that stays."""
        count = standbys_for(at_zero, now_s=now_s, shared=shared, pool=self._pool)
        if count >= self._count:
            self._fewer_since_s = now_s
        if count <= self._count and now_s - self._fewer_since_s <= LOWER_AFTER_S:
            return None
        self._count, self._fewer_since_s = count, now_s
        return count


def standbys_for(at_zero: Iterable[Tracked], *, now_s: float, shared: Shared, pool: Pool) -> int:
    """Enough for the starts of these functions, within the pool's bounds."""
    expected, launches = 0.0, 0
    for tracked in at_zero:
        if tracked.decision is None or tracked.decision.basis is None:
            continue
        outlook, pattern = tracked.decision.basis.outlook, tracked.decision.history.pattern
        if pattern is not None:
            rate = pattern.rate(now_s, shared, outlook.season)
            expected += -math.expm1(-rate * HORIZON_S)
        soon = (f.replicas for f in outlook.floors if now_s <= f.from_s < now_s + HORIZON_S)
        launches += max(soon, default=0)
    return max(pool.least, min(pool.most, enough(expected) + launches))


def enough(expected: float) -> int:
    """As many as starts come at most, ENOUGH of the time, where so many are expected. Their number
    is taken as Poisson: that of many independent rare ones (Le Cam's theorem)."""
    count, term = 0, math.exp(-expected)
    total = term
    while total < ENOUGH and term > 0:
        count += 1
        term *= expected / count
        total += term
    return count
