"""Traffic for many functions: a trace thinned into what rarely used models see, and plain noise.

Pure and seeded. Weeks with seasons are in scaler/simulate/seasonal.py.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random

from scaler.minutes import Minute
from scaler.simulate.replay import FunctionTraffic
from scaler.traces import Trace


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """What one replica does for one request: how its tokens become seconds."""

    prefill_tokens_per_s: float = 8000.0
    decode_tokens_per_s: float = 50.0

    def service_s(self, prompt_tokens: int, generated_tokens: int) -> float:
        """Of a request that does not wait."""
        prefill_s = prompt_tokens / self.prefill_tokens_per_s
        return prefill_s + generated_tokens / self.decode_tokens_per_s


def thinned(
    trace: Trace, *, share: float, functions: int, zipf: float, seed: str, speeds: Speeds
) -> list[FunctionTraffic]:
    """Keep each request with probability `share`, and give it to a function: the one of rank k gets
    a share proportional to k^-zipf."""
    rng = Random(seed)  # noqa: S311 - no secret
    weights = list(accumulate((rank + 1) ** -zipf for rank in range(functions)))
    every = [
        FunctionTraffic(name=f"rank-{rank + 1}", arrivals_s=array("d"), service_s=array("d"))
        for rank in range(functions)
    ]
    rows = zip(trace.arrivals_s, trace.prompt_tokens, trace.generated_tokens, strict=True)
    for arrival_s, prompt_tokens, generated_tokens in rows:
        if rng.random() < share:
            each = every[rng.choices(range(functions), cum_weights=weights)[0]]
            each.arrivals_s.append(arrival_s)
            each.service_s.append(speeds.service_s(prompt_tokens, generated_tokens))
    return every


def poisson(
    rate: float, *, functions: int, until_s: float, seed: str, service_s: float
) -> list[FunctionTraffic]:
    """Homogeneous Poisson processes of `rate` per second, independent of each other; each request
    takes `service_s` on average, exponentially distributed."""
    return [
        _poisson(Random(f"{seed}/{index}"), index, rate, until_s, service_s)  # noqa: S311
        for index in range(functions)
    ]


def later(traffic: Sequence[FunctionTraffic], since_s: float) -> list[FunctionTraffic]:
    """What arrives from then on."""
    firsts = [bisect_left(each.arrivals_s, since_s) for each in traffic]
    return [
        replace(each, arrivals_s=each.arrivals_s[first:], service_s=each.service_s[first:])
        for each, first in zip(traffic, firsts, strict=True)
    ]


def minutes_of(requests: Iterable[tuple[float, float]]) -> list[Minute]:
    """The history that requests (arrival in Unix time, seconds it takes) leave where each is served
    at once."""
    arrivals: Counter[int] = Counter()
    moves: list[tuple[float, int]] = []
    for at_s, service_s in requests:
        arrivals[int(at_s // 60)] += 1
        moves += [(at_s, 1), (at_s + service_s, -1)]
    peaks: Counter[int] = Counter()
    running, last = 0, 0
    for at_s, move in sorted(moves):
        minute = int(at_s // 60)
        if running:
            for between in range(last, minute + 1):
                peaks[between] = max(peaks[between], running)
        running, last = running + move, minute
        peaks[minute] = max(peaks[minute], running)
    return [
        Minute(minute=minute, arrivals=arrivals[minute], peak=peaks[minute])
        for minute in sorted(peaks)
    ]


def _poisson(
    rng: Random, index: int, rate: float, until_s: float, service_s: float
) -> FunctionTraffic:
    arrivals, service = array("d"), array("d")
    at_s = rng.expovariate(rate)
    while at_s < until_s:
        arrivals.append(at_s)
        service.append(rng.expovariate(1 / service_s))
        at_s += rng.expovariate(rate)
    return FunctionTraffic(name=f"poisson-{index}", arrivals_s=arrivals, service_s=service)
