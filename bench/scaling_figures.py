"""From replays to figures: ratios of costs with intervals, and one row per setting and policy."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, geometric_mean

import numpy as np
from scaling_world import CLAIRVOYANT, FIXED, KNOWN_RATE, KPA, OURS, Run

_RESAMPLES = 1000
_LEAST_S = 1e-9  # of a cost, where a resample holds no function with traffic

Rivals = dict[str, tuple[str, ...]]  # what the best of which is compared with
RIVALS: Rivals = {
    "vs_kpa": (KPA,),
    "vs_best_fixed": FIXED,
    "vs_clairvoyant": (CLAIRVOYANT,),
}


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A geometric mean over settings of costs against the best rival's, chosen in hindsight for
    each setting; the interval is that of 95% of resamples of the functions (bootstrap)."""

    mean: float
    low: float
    high: float
    worst: float  # of the settings
    settings: int


@dataclass(frozen=True, kw_only=True)
class Row:
    """One policy in one setting, over all its seeds. Shares are of 1; a wake is a request that
    finds its function idle; waits are those of all requests."""

    part: str
    traffic: str
    cost_s: float
    policy: str
    seeds: int
    J: float  # mean over the seeds, in replica-seconds
    over_best_fixed: float | None  # geometric mean over the seeds
    cold_per_wake: float
    cold_per_request: float
    wait_p50_s: float
    wait_p95_s: float
    wait_p99_s: float
    wasted_s: float  # mean over the seeds, as the rest
    replica_s: float
    starts: float


class Table:
    """The replays of one part of the benchmark, by setting."""

    def __init__(self, runs: Iterable[Run], costs_s: Sequence[float]) -> None:
        self._runs: dict[tuple[str, int], dict[tuple[str, float | None], Run]] = defaultdict(dict)
        self._costs_s = costs_s
        for run in runs:
            self._runs[run.traffic, run.seed][run.policy, run.cost_s] = run

    def ratio(self, rivals: Sequence[str], *, policy: str = OURS) -> Ratio | None:
        """Of a policy; None where one of them was not replayed."""
        rng = np.random.default_rng(0)
        logs, resampled = [], []
        for runs in self._runs.values():
            weights = None
            for cost_s in self._costs_s:
                ours = _found(runs, policy, cost_s)
                others = [_found(runs, rival, cost_s) for rival in rivals]
                if ours is None or None in others:
                    continue
                costs = np.array([each.costs(cost_s) for each in (ours, *others) if each])
                if weights is None:  # the same functions at every cost
                    count = costs.shape[1]
                    weights = rng.multinomial(count, [1 / count] * count, size=_RESAMPLES).T
                logs.append(_log_ratio(costs.sum(axis=1, keepdims=True))[0])
                resampled.append(_log_ratio(costs @ weights))
        if not logs:
            return None
        low, high = np.exp(np.percentile(np.mean(resampled, axis=0), (2.5, 97.5)))
        return Ratio(
            mean=math.exp(fmean(logs)),
            low=float(low),
            high=float(high),
            worst=math.exp(max(logs)),
            settings=len(logs),
        )

    def rows(self) -> list[Row]:
        """In the order of the replays."""
        rows = []
        for traffic in dict.fromkeys(traffic for traffic, _ in self._runs):
            seeds = [runs for (name, _), runs in self._runs.items() if name == traffic]
            for cost_s in self._costs_s:
                if all(_found(runs, OURS, cost_s) is None for runs in seeds):
                    continue  # made for another cost
                for policy in dict.fromkeys(name for runs in seeds for name, _ in runs):
                    found = [_found(runs, policy, cost_s) for runs in seeds]
                    mine = [run for run in found if run is not None]
                    if mine:
                        best = [best_fixed(runs.values(), cost_s) for runs in seeds]
                        rows.append(_row(mine, best, cost_s))
        return sorted(rows, key=lambda row: (row.traffic, row.cost_s))


def best_fixed(runs: Iterable[Run], cost_s: float) -> Run | None:
    """The fixed keep-alive that costs the least, in hindsight."""
    fixed = [run for run in runs if run.policy in FIXED]
    return min(fixed, key=lambda run: sum(run.costs(cost_s)), default=None)


def known_rate(table: Table) -> dict[str, Ratio | None]:
    """What the unreachable policy reaches that knows the true rates."""
    ratios = {name: table.ratio(rivals, policy=KNOWN_RATE) for name, rivals in RIVALS.items()}
    return {name: ratio for name, ratio in ratios.items() if name != "vs_kpa"}


def curve_points(
    measured: Iterable[tuple[float, list[Run]]], weight: float
) -> list[dict[str, float]]:
    """J and cold starts per wake against the restore time; a cold start is worth `weight` times
    it."""
    by_start = defaultdict(list)
    for start_s, runs in measured:
        by_start[start_s].append(runs)
    points = []
    for start_s, settings in sorted(by_start.items()):
        cost_s = weight * start_s
        point = {"start_s": start_s, "cost_s": cost_s}
        for title, pick in (
            (OURS, lambda runs: _named(runs, OURS)),
            ("best_fixed", lambda runs, cost_s=cost_s: best_fixed(runs, cost_s)),
            (KPA, lambda runs: _named(runs, KPA)),
            ("clairvoyant", lambda runs: _named(runs, CLAIRVOYANT)),
        ):
            picked = [pick(runs) for runs in settings]
            point[f"{title}_J"] = fmean(sum(run.costs(cost_s)) for run in picked)
            point[f"{title}_cold_per_wake"] = sum(sum(run.cold_starts) for run in picked) / max(
                1, sum(run.wakes for run in picked)
            )
            point[f"{title}_wasted_s"] = fmean(sum(run.wasted_s) for run in picked)
        points.append(point)
    return points


def percentile(waits_s: Sequence[float], share: float, *, of: int) -> float:
    """Nearest rank among `of` requests, of which those not in `waits_s` (sorted) waited 0 s."""
    rank = max(1, math.ceil(share * of)) - (of - len(waits_s))
    return waits_s[min(rank, len(waits_s)) - 1] if rank > 0 else 0.0


def as_json(row: Row | Ratio) -> dict[str, object]:
    """With rounded figures."""
    return {
        name: round(value, 6) if isinstance(value, float) else value
        for name, value in asdict(row).items()
    }


def _row(runs: list[Run], best: Sequence[Run | None], cost_s: float) -> Row:
    waits_s = sorted(wait_s for run in runs for wait_s in run.waits_s)
    requests = sum(run.requests for run in runs)
    costs = [sum(run.costs(cost_s)) for run in runs]
    against = [sum(run.costs(cost_s)) for run in best if run is not None]
    over = None
    if len(against) == len(costs) and min(against) > 0 and min(costs) > 0:
        over = geometric_mean(a / b for a, b in zip(costs, against, strict=True))
    p50, p95, p99 = (percentile(waits_s, share, of=requests) for share in (0.5, 0.95, 0.99))
    return Row(
        part=runs[0].part,
        traffic=runs[0].traffic,
        cost_s=cost_s,
        policy=runs[0].policy,
        seeds=len(runs),
        J=fmean(costs),
        over_best_fixed=over,
        cold_per_wake=sum(sum(run.cold_starts) for run in runs)
        / max(1, sum(run.wakes for run in runs)),
        cold_per_request=sum(run.cold_requests for run in runs) / max(1, requests),
        wait_p50_s=p50,
        wait_p95_s=p95,
        wait_p99_s=p99,
        wasted_s=fmean(sum(run.wasted_s) for run in runs),
        replica_s=fmean(run.replica_s for run in runs),
        starts=fmean(run.starts for run in runs),
    )


def _log_ratio(costs: np.ndarray) -> np.ndarray:
    """Of the first row to the least of the others."""
    costs = np.maximum(costs, _LEAST_S)
    return np.log(costs[0] / costs[1:].min(axis=0))


def _found(runs: dict[tuple[str, float | None], Run], policy: str, cost_s: float) -> Run | None:
    return runs.get((policy, cost_s)) or runs.get((policy, None))


def _named(runs: Sequence[Run], policy: str) -> Run:
    return next(run for run in runs if run.policy == policy)
