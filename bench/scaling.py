"""The scaling policy replayed on traffic, beside what others do and what cannot be done better.

    python bench/scaling.py [--quick] [--jobs 2] [--parts azure,seasonal,poisson,curve,speed]
        [--traces DIR] [--tier standby_page_cache] [--plot FILE.png|FILE.html] [--json]

The cost of a policy is J = wasted replica-seconds + λ × cold starts; in virtual time, through the
same plan() that runs in production, with start times drawn from measured ones (start_times.json).

- azure: an hour of the Azure LLM traces of 2023 (code, conv) thinned to 2% and to 10% into 50
  functions by Zipf(1.2), seeds 0 to 19, λ 30, 60 and 300; nothing is known before the hour starts.
  The policy's constants were chosen on seeds 100 to 119.
- seasonal: four synthetic weeks of 9 functions, seeds 0 to 2 (chosen on: 100); the last week
  counts. `known rate*` knows the true rate of every five minutes, which nobody can.
- poisson: noise at rates around 1/λ, where keeping and leaving cost about the same.
- curve: what a fast restore is worth: J and cold starts against restore time.
- speed: how long a week of 200 functions takes.

`--json` prints the details as one object on the last line but one, and the geometric means of the
ratios of J on the last.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import scaling_jobs as jobs
import scaling_plot
import scaling_tables as tables
from scaling_figures import RIVALS, Table, as_json, curve_points, known_rate

from scaler.idle import WAIT_WEIGHT
from scaler.simulate.traffic import Speeds

PARTS = ("azure", "seasonal", "poisson", "curve", "speed")
_HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is replayed."""

    azure_seeds: int = 20
    costs_s: tuple[float, ...] = (30.0, 60.0, 300.0)
    weeks_seeds: tuple[int, ...] = (0, 1, 2)
    weeks_functions: int = 9
    noise_shares: tuple[float, ...] = (0.1, 0.3, 0.5, 0.8, 1.0, 1.3, 2.0, 3.0, 10.0)
    noise_gaps: int = 1000
    noise_functions: int = 5
    curve_seeds: int = 5
    curve_starts_s: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
    week_functions: int = 200


QUICK = Size(
    azure_seeds=2,
    weeks_seeds=(0,),
    weeks_functions=5,
    noise_shares=(0.5, 1.0, 2.0),
    noise_gaps=300,
    curve_seeds=1,
    curve_starts_s=(0.1, 1.0, 10.0),
    week_functions=20,
)

Task = tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def main() -> None:
    options = _options()
    if options.plot:
        scaling_plot.check(options.plot)
    size = QUICK if options.quick else Size()
    starts_s = _start_times(options.start_times, options.tier)
    parts = _parts(options)
    tasks = list(_tasks(parts, size, starts_s, _source(options)))
    found = _run(tasks, jobs_at_once=options.jobs)

    measured = {
        part: Table(chain(*found.get(part, [])), size.costs_s)
        for part in ("azure", "seasonal", "poisson")
        if part in found
    }
    ratios = {
        part: {
            name: ratio
            for name, rivals in RIVALS.items()
            if (ratio := table.ratio(rivals)) is not None
        }
        for part, table in measured.items()
    }
    if "poisson" in ratios:  # its bar is the fixed keep-alive
        ratios["poisson"].pop("vs_clairvoyant", None)
    if "seasonal" in ratios:
        ratios["seasonal"].pop("vs_kpa", None)
    bound = known_rate(measured["seasonal"]) if "seasonal" in measured else {}
    points = curve_points(chain(*found.get("curve", [])), WAIT_WEIGHT)
    rows = [row for table in measured.values() for row in table.rows()]
    speed = found.get("speed", [])

    tables.show(rows, ratios, bound, points, speed)
    if options.plot:
        drawn = [row for row in rows if row.part != "poisson"]
        scaling_plot.draw(options.plot, drawn, points)
        print(f"drawn to {options.plot}")
    if options.json:
        details = {
            "tier": options.tier,
            "start_s": starts_s,
            "rows": [as_json(row) for row in rows],
            "ratios": {
                part: {name: as_json(ratio) for name, ratio in each.items()}
                for part, each in ratios.items()
            },
            "seasonal_known_rate_bound": {
                name: as_json(ratio) for name, ratio in bound.items() if ratio
            },
            "curve": points,
            "speed": speed,
        }
        print(json.dumps(details))
        print(
            json.dumps(
                {
                    part: {name: round(ratio.mean, 4) for name, ratio in each.items()}
                    for part, each in ratios.items()
                }
            )
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a minute's worth")
    parser.add_argument("--parts", default=",".join(PARTS), help="only these, separated by commas")
    parser.add_argument("--jobs", type=int, default=2, help="processes; the figures do not change")
    parser.add_argument("--traces", type=Path, default=Path("/work/shared/traces"))
    parser.add_argument("--start-times", type=Path, default=_HERE / "start_times.json")
    parser.add_argument("--tier", default="standby_page_cache", help="of the start times")
    parser.add_argument("--prefill-speed", type=float, default=8000.0, metavar="TOKENS_PER_S")
    parser.add_argument("--decode-speed", type=float, default=50.0, metavar="TOKENS_PER_S")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="FILE.png or FILE.html")
    parser.add_argument("--json", action="store_true", help="two JSON objects on the last lines")
    options = parser.parse_args()
    if unknown := set(options.parts.split(",")) - set(PARTS):
        parser.error(f"--parts: no such part: {', '.join(sorted(unknown))}")
    if options.jobs < 1:
        parser.error("--jobs: at least 1")
    if min(options.prefill_speed, options.decode_speed) <= 0:
        parser.error("--prefill-speed, --decode-speed: more than 0")
    return options


def _parts(options: argparse.Namespace) -> list[str]:
    """Those asked for that can be replayed here."""
    parts = [part for part in PARTS if part in options.parts.split(",")]
    files = [options.traces / name for name in jobs.TRACES.values()]
    missing = [file.name for file in files if not file.is_file()]
    if missing and {"azure", "curve"} & set(parts):
        print(
            f"azure and curve are left out: {options.traces} has no {' and no '.join(missing)} "
            "(Azure LLM inference trace 2023, github.com/Azure/AzurePublicDataset, gzipped or "
            "not); say where with --traces DIR",
            file=sys.stderr,
        )
        parts = [part for part in parts if part not in ("azure", "curve")]
    return parts


def _source(options: argparse.Namespace) -> jobs.Source:
    speeds = Speeds(
        prefill_tokens_per_s=options.prefill_speed, decode_tokens_per_s=options.decode_speed
    )
    return jobs.Source(folder=options.traces, speeds=speeds)


def _start_times(path: Path, tier: str) -> tuple[float, ...]:
    """Measured ones of a tier, in seconds."""
    try:
        tiers = json.loads(path.read_text())["tiers"]
        return tuple(ms / 1e3 for ms in tiers[tier])
    except OSError as error:
        raise SystemExit(f"--start-times {path}: {error.strerror}") from None
    except KeyError:
        raise SystemExit(f"--tier: {path} has {', '.join(tiers)}; not {tier!r}") from None


def _tasks(
    parts: Sequence[str], size: Size, starts_s: Sequence[float], source: jobs.Source
) -> Iterator[Task]:
    """What there is to replay, the longest first."""
    if "seasonal" in parts:
        for seed in size.weeks_seeds:
            args = seed, size.weeks_functions
            for cost_s in size.costs_s:
                for predictive in ("auto", "off", "on"):
                    options = {
                        "starts_s": starts_s,
                        "cost_s": cost_s,
                        "predictive": predictive,
                    }
                    yield "seasonal", jobs.seasonal_ours, args, options
            options = {"starts_s": starts_s, "costs_s": size.costs_s}
            yield "seasonal", jobs.seasonal_others, args, options
    if "poisson" in parts:
        for cost_s in size.costs_s:
            for share in size.noise_shares:
                yield (
                    "poisson",
                    jobs.noise,
                    (cost_s, share),
                    {
                        "gaps": size.noise_gaps,
                        "functions": size.noise_functions,
                        "seed": 0,
                        "starts_s": starts_s,
                        "service_s": 1.0,
                    },
                )
    for kind in jobs.TRACES:
        for share in (0.1, 0.02):
            if "curve" in parts:
                for seed in range(size.curve_seeds):
                    options = {"seed": seed, "starts_s": size.curve_starts_s}
                    yield "curve", jobs.curve, (source, kind, share), options
            if "azure" in parts:
                for seed in range(size.azure_seeds):
                    options = {"seed": seed, "starts_s": starts_s, "costs_s": size.costs_s}
                    yield "azure", jobs.azure, (source, kind, share), options
    if "speed" in parts:
        for predictive in ("off", "auto"):
            options = {"starts_s": starts_s, "predictive": predictive}
            yield "speed", jobs.speed, (0, size.week_functions), options


def _run(tasks: Sequence[Task], *, jobs_at_once: int) -> dict[str, list[Any]]:
    """The results of every part, in the order of its tasks. The speed is measured alone."""
    found: dict[str, list[Any]] = {}
    together = [task for task in tasks if task[0] != "speed"]
    with ProcessPoolExecutor(jobs_at_once) as pool:
        done = pool.map(_call, together) if jobs_at_once > 1 else map(_call, together)
        for count, (task, result) in enumerate(zip(together, done, strict=True), 1):
            found.setdefault(task[0], []).append(result)
            if sys.stderr.isatty():
                print(f"\r{count} of {len(together)} replays", end="", file=sys.stderr)
    for task in tasks:
        if task[0] == "speed":
            found.setdefault("speed", []).append(_call(task))
    return found


def _call(task: Task) -> Any:
    _, function, args, options = task
    return function(*args, **options)


if __name__ == "__main__":
    main()
