"""The replays behind bench/scaling.py: which traffic, with which policies.

A job is a function of its arguments alone, so that it may run in any process and in any order.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from random import Random
from time import perf_counter, process_time

from scaling_world import OURS, SPEC, Run, World

from scaler.idle import WAIT_WEIGHT
from scaler.outlook import Outlook
from scaler.simulate import seasonal
from scaler.simulate.foresight import Foresight
from scaler.simulate.glowplug import always
from scaler.simulate.traffic import Speeds, later, poisson, thinned
from scaler.traces import Trace, load_azure_llm

TRACES = {kind: f"AzureLLMInferenceTrace_{kind}.csv.gz" for kind in ("code", "conv")}

_HOUR_S, _DAY_S = 3600.0, 86_400.0
_FUNCTIONS, _ZIPF = 50, 1.2
_SEASON_STEP_S = 300.0
_TRAINED_S = seasonal.START_S + 3 * seasonal.WEEK_S
_UNTIL_S = seasonal.START_S + 4 * seasonal.WEEK_S


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the Azure traces are, and what a replica makes of their tokens."""

    folder: Path
    speeds: Speeds

    def world(
        self, part: str, kind: str, share: float, *, seed: int, starts_s: Sequence[float]
    ) -> World:
        """An hour of one trace, thinned into 50 functions."""
        return World(
            part=part,
            name=f"{kind} {share:.0%}",
            seed=seed,
            traffic=thinned(
                _trace(self.folder / TRACES[kind]),
                share=share,
                functions=_FUNCTIONS,
                zipf=_ZIPF,
                seed=f"{kind}/{share}/{seed}",
                speeds=self.speeds,
            ),
            starts_s=starts_s,
            until_s=_HOUR_S,
        )


@lru_cache
def _trace(path: Path) -> Trace:
    return load_azure_llm(path)


def azure(
    source: Source,
    kind: str,
    share: float,
    *,
    seed: int,
    starts_s: Sequence[float],
    costs_s: Sequence[float],
) -> list[Run]:
    """Every policy on one thinned trace; nothing is learned before the hour starts."""
    world = source.world("azure", kind, share, seed=seed, starts_s=starts_s)
    runs = [*world.simple(), world.instant(), world.hybrid()]
    nothing_ahead = always(Outlook(start_s=world.cautious_start_s))
    for cost_s in costs_s:
        runs += [
            world.ours(cost_s, nothing_ahead),
            world.last_value(cost_s),
            world.clairvoyant(cost_s),
        ]
    return runs


def curve(
    source: Source, kind: str, share: float, *, seed: int, starts_s: Sequence[float]
) -> list[tuple[float, list[Run]]]:
    """For each restore time: ours, where a cold start is worth WAIT_WEIGHT times it, and others."""
    found = []
    for start_s in starts_s:
        world = source.world("curve", kind, share, seed=seed, starts_s=(start_s,))
        ours = world.ours(None, always(Outlook(start_s=start_s)))
        found.append((start_s, [ours, *world.simple(), world.clairvoyant(WAIT_WEIGHT * start_s)]))
    return found


def seasonal_world(seed: int, functions: int, starts_s: Sequence[float]) -> World:
    """Four weeks, of which the last one counts."""
    return World(
        part="seasonal",
        name="4 weeks",
        seed=seed,
        traffic=seasonal.weeks(seed, functions),
        starts_s=starts_s,
        from_s=seasonal.START_S,
        until_s=_UNTIL_S,
        count_from_s=_TRAINED_S,
    )


def seasonal_others(
    seed: int, functions: int, *, starts_s: Sequence[float], costs_s: Sequence[float]
) -> list[Run]:
    """What others make of the weeks. Those that learn see all of them, the rest the last one and
    the day before."""
    world = seasonal_world(seed, functions, starts_s)
    from_s = _TRAINED_S - _DAY_S
    last = replace(world, traffic=later(world.traffic, from_s), from_s=from_s)
    rates = [_true_rates(seed, index) for index in range(functions)]
    runs = [*last.simple(), last.instant(), world.hybrid()]
    for cost_s in costs_s:
        runs += [
            world.last_value(cost_s),
            last.clairvoyant(cost_s),
            last.known_rate(rates, cost_s, step_s=_SEASON_STEP_S),
        ]
    return runs


def seasonal_ours(
    seed: int, functions: int, *, starts_s: Sequence[float], cost_s: float, predictive: str
) -> list[Run]:
    """The forecast is learned from what has come so far, and acted on from the third week on."""
    world = seasonal_world(seed, functions, starts_s)
    return [_foretold(world, cost_s, predictive, from_s=_TRAINED_S - seasonal.WEEK_S)]


def _foretold(world: World, cost_s: float, predictive: str, *, from_s: float) -> Run:
    spec = SPEC.model_copy(update={"cold_start_cost_s": cost_s, "predictive": predictive})
    foresight = Foresight(world.traffic, spec, start_s=world.cautious_start_s, from_s=from_s)
    name = OURS if predictive == "auto" else f"{OURS}, predictive {predictive}"
    return world.ours(cost_s, foresight, name=name)


def noise(
    cost_s: float,
    share: float,
    *,
    gaps: int,
    functions: int,
    seed: int,
    starts_s: Sequence[float],
    service_s: float,
) -> list[Run]:
    """Poisson noise at the rate share / cost: at 1 keeping and leaving cost the same."""
    rate = share / cost_s
    until_s = max(_DAY_S, gaps / rate)
    world = World(
        part="poisson",
        name=f"{share:g} calls per {cost_s:g} s",
        seed=seed,
        traffic=poisson(
            rate,
            functions=functions,
            until_s=until_s,
            seed=f"poisson/{cost_s}/{share}/{seed}",
            service_s=service_s,
        ),
        starts_s=starts_s,
        until_s=until_s,
    )
    ours = world.ours(cost_s, always(Outlook(start_s=world.cautious_start_s)))
    return [ours, *world.fixed(), world.clairvoyant(cost_s)]


def speed(
    seed: int, functions: int, *, starts_s: Sequence[float], predictive: str
) -> dict[str, float | str]:
    """How long a week of many functions takes on one core."""
    world = World(
        part="speed",
        name="a week",
        seed=seed,
        traffic=seasonal.weeks(seed, functions, weeks=1),
        starts_s=starts_s,
        from_s=seasonal.START_S,
        until_s=seasonal.START_S + seasonal.WEEK_S,
    )
    began, worked = perf_counter(), process_time()
    run = _foretold(world, 60.0, predictive, from_s=world.from_s)
    return {
        "functions": functions,
        "requests": run.requests,
        "predictive": predictive,
        "wall_s": round(perf_counter() - began, 2),
        "processor_s": round(process_time() - worked, 2),
    }


def _true_rates(seed: int, index: int) -> list[float]:
    """Of one function of the synthetic weeks, for every five minutes: listened to as they are
    drawn from."""
    heard: list[float] = []
    draw = seasonal._poisson

    def listening(rng: Random, hazards: Iterator[float]) -> Iterator[float]:
        heard.extend(hazards)
        return draw(rng, iter(heard))

    with _replaced(listening):
        seasonal._traffic(Random(f"{seed}/{index}"), index, 4)
    return [hazard / _SEASON_STEP_S for hazard in heard]


@contextmanager
def _replaced(draw: Callable[[Random, Iterator[float]], Iterator[float]]) -> Iterator[None]:
    before = seasonal._poisson
    seasonal._poisson = draw
    try:
        yield
    finally:
        seasonal._poisson = before
