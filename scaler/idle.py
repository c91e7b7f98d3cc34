"""The idle policy: is a replica without requests worth its keep?

A fixed `idle_s` is a limit on idle time. Without one the limit is learned: a replica that waits one
more second costs one accelerator-second, and avoids a cold start, which is worth
`cold_start_cost_s` of them, with the probability that the next request comes in this second. So it
is kept exactly while

    cost of a cold start × rate of return > 1

with the rate of scaler/rates.py. A rate that only falls while nobody calls makes this the best rule
there is (optimal stopping).
"""

import math
from dataclasses import dataclass

from glowplug.explanation import rough
from glowplug.spec import FunctionSpec
from scaler.outlook import Outlook
from scaler.rates import AGES_S, Pattern, Shared, age_step

# Accelerator-seconds that a second of a caller's waiting is worth, where the function does not say.
WAIT_WEIGHT = 100.0

_SHORTEST_CHECK_S, _LONGEST_CHECK_S = 1.0, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What idleness says about one function now."""

    over: bool  # idle for long enough: the last replica may go
    limit_s: float | None = None  # of a fixed idle time
    rate: float = 0.0  # returns per second
    cost_s: float = 0.0  # of a cold start, in accelerator-seconds
    recheck_s: float = math.inf  # nothing changes by itself before that time from now


def cold_start_cost(spec: FunctionSpec, outlook: Outlook) -> float:
    """Accelerator-seconds that one cold start of the function is worth."""
    if spec.cold_start_cost_s is not None:
        return spec.cold_start_cost_s
    return WAIT_WEIGHT * outlook.start_s


def judge(
    now_s: float,
    spec: FunctionSpec,
    *,
    idle_s: float,
    running: bool,
    pattern: Pattern | None,
    shared: Shared,
    outlook: Outlook,
) -> Verdict:
    """The verdict for a function without a request since `idle_s` seconds; `pattern` is None until
    it was first called."""
    limit_s = spec.idle_s
    if limit_s is not None:
        over = idle_s >= limit_s
        return Verdict(over=over, limit_s=limit_s, recheck_s=math.inf if over else limit_s - idle_s)
    # A replica that goes at once and comes back at once would do nothing but start.
    shortest_s = max(1.0, 2 * outlook.start_s)
    if pattern is None:
        over = idle_s >= shortest_s
        return Verdict(over=over, recheck_s=math.inf if over else shortest_s - idle_s)
    cost_s = cold_start_cost(spec, outlook)
    ahead_s = now_s + outlook.start_s if outlook.season else now_s
    rate = pattern.rate(ahead_s, shared, outlook.season)
    worth = cost_s * rate
    step_s = _next_step(now_s - pattern.since_s)
    if outlook.season is not None:
        step_s = min(step_s, outlook.season.lasts_s(ahead_s))
    if running:
        over = idle_s >= shortest_s and worth <= 1.0
        check_s = min(max(idle_s * (worth - 1.0) / 4, _SHORTEST_CHECK_S), _LONGEST_CHECK_S)
        return Verdict(
            over=over,
            rate=rate,
            cost_s=cost_s,
            recheck_s=max(shortest_s - idle_s, min(check_s, step_s)) if not over else math.inf,
        )
    return Verdict(over=True, rate=rate, cost_s=cost_s, recheck_s=step_s)


def why_over(verdict: Verdict, idle_s: float) -> str:
    """For people: why the last replica goes."""
    if verdict.limit_s is not None:
        return f"idle for {idle_s:.1f} s (limit {verdict.limit_s:g} s)"
    if verdict.rate <= 0:
        return f"idle for {idle_s:.1f} s, and nothing is known of its calls"
    return (
        f"idle for {idle_s:.1f} s, the next call is expected in {rough(1 / verdict.rate)} and a "
        f"cold start costs only {verdict.cost_s:.3g} replica-seconds"
    )


def _next_step(idle_s: float) -> float:
    """Seconds until the idle time is another step old, for what is learned from it."""
    step = age_step(idle_s) + 1
    return AGES_S[step] - idle_s if step < len(AGES_S) else math.inf
