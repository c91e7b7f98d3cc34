"""Time to the first token from every tier, stage by stage, beside llama.cpp and transformers.

    python bench/coldstart.py [--runs 10] [--quantization int4] [--large] [--prefix]
        [--peer llama-cpp=ENVIRONMENT] [--peer transformers] [--start-times FILE] [--json]

One function on several `glowplug serve`: one keeps a standby, one does not, one lets its replica
sleep, one has its snapshot only in S3 (moto's server on loopback, which needs the dev extra). Each
round measures every tier (bench/tiers.py) once, in turn, each followed by a warm call. Times are
the client's, from just before the request is sent to the first piece of content.

The *limit* of a start is its bytes over the bandwidth with which this machine reads the weights
sequentially, from memory, disk or S3, measured in the same run; the *ratio* is what the start takes
over a warm call, over that limit. Peers get the same prompt and the same GGUF file; a peer's
process is ready when its imports are done. `--large` takes random weights of 1.2 GB, not SmolLM2.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import reading
import store
from first_token import measure_peers
from large_model import large_model
from prefix import TOKENS as PREFIX_TOKENS
from prefix import measure_prefix
from servers import MODEL, deploy, glowplug, model_file
from tiers import (
    FUNCTION,
    PROMPT,
    SERVERS,
    TIERS,
    House,
    Samples,
    Server,
    Tier,
    measure,
    percentile,
    summary,
)

from snapshot.s3_location import S3Location

_SEAL_LIMIT_S = 600.0


def main() -> None:
    options = _options()
    with contextlib.ExitStack() as stack:
        model = str(large_model()) if options.large else MODEL
        wanted = options.tiers.split(",") if options.tiers else [tier.name for tier in TIERS]
        tiers = tuple(tier for tier in TIERS if tier.name in wanted)
        skipped = {}
        if (why := store.why_no_store()) is not None:
            skipped = {tier.name: why for tier in tiers if SERVERS[tier.server].store}
            tiers = tuple(tier for tier in tiers if tier.name not in skipped)
        if not tiers:
            raise SystemExit(f"no tier can be measured: {why or 'none has such a name'}")
        location = None
        if any(SERVERS[tier.server].store for tier in tiers):
            location = stack.enter_context(store.s3_on_loopback())
        houses = {
            name: _house(stack, model, options.quantization, SERVERS[name], location)
            for name in dict.fromkeys(tier.server for tier in tiers)
        }
        weights = next(iter(houses.values())).weights
        bandwidths = {"disk": reading.disk_bytes_per_s(weights)}
        reading.warm([weights])
        bandwidths["memory"] = reading.memory_bytes_per_s(weights)
        size = weights.stat().st_size
        if location is not None:
            digest = weights.parent.name  # all servers seal the same
            bandwidths["s3"] = store.s3_bytes_per_s(location, digest, size)
        samples = measure(houses, tiers, runs=options.runs)
        prefix = None
        if options.prefix:
            spec = {"model": model, "quantization": options.quantization}
            prefix = measure_prefix(next(iter(houses.values())), spec, runs=options.runs)
    peers = measure_peers(
        options.peer, model_file(), prompt=PROMPT, runs=options.peer_runs or options.runs
    )
    result = _result(samples, tiers, size=size, bandwidths=bandwidths)
    result["peers"] = peers
    if skipped:
        result["skipped"] = skipped
    if prefix is not None:
        result["prefix"] = prefix
    _show(result, samples, tiers)
    if options.start_times:
        _write_start_times(options.start_times, samples)
    if options.json:
        print(json.dumps(result))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--quantization", choices=("none", "int8", "int4"), default="none")
    parser.add_argument("--large", action="store_true", help="a random model of 1.2 GB")
    parser.add_argument("--prefix", action="store_true", help="a long system prompt from zero too")
    parser.add_argument("--tiers", help="only these, by name, separated by commas")
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="KIND[=ENVIRONMENT]",
        help="llama-cpp or transformers, from a virtual environment (default: this one)",
    )
    parser.add_argument("--peer-runs", type=int, help="default: as --runs")
    parser.add_argument(
        "--start-times", type=Path, metavar="FILE", help="write each start's time, for scaling.py"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    return parser.parse_args()


def _house(
    stack: contextlib.ExitStack,
    model: str,
    quantization: str,
    server: Server,
    location: S3Location | None,
) -> House:
    data = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    options: list[str] = []
    if server.store and location is not None:
        options = ["--store", str(location), "--store-endpoint", str(location.endpoint_url)]
    client = stack.enter_context(glowplug(data, *options, standbys=server.standbys))
    spec = {"name": FUNCTION, "model": model, "quantization": quantization, **server.spec}
    function = deploy(client, spec, limit_s=_SEAL_LIMIT_S)
    digest = str(function["snapshot"])
    if server.store and location is not None:
        store.wait_until_pushed(location, digest)
    return House(client=client, data=data, snapshot=data / "cache" / digest)


def _result(
    samples: dict[str, Samples],
    tiers: tuple[Tier, ...],
    *,
    size: int,
    bandwidths: dict[str, float],
) -> dict[str, object]:
    """The JSON. The first five keys are those of a start from a standby in the page cache."""
    result: dict[str, object] = {}
    if {"warm", "standby_page_cache"} <= samples.keys():
        cold, warm = samples["standby_page_cache"], samples["warm"]
        result = {
            "n": len(cold.ttft),
            "warm_ttft_ms": statistics.median(warm.ttft),
            "cold_ttft_ms": statistics.median(cold.ttft),
            "cold_over_warm_ms": statistics.median(cold.over_warm),
            "stages_ms": {name: statistics.median(cold.stage(name)) for name in cold.stage_names()},
        }
    return result | {
        "weights_bytes": size,
        "bytes_per_s": {name: round(speed) for name, speed in bandwidths.items()},
        "tiers": {
            tier.name: summary(
                samples[tier.name], tier, limit_ms=size / bandwidths[tier.bytes_from] * 1e3
            )
            for tier in tiers
        },
        "load_average": os.getloadavg()[0],
    }


def _write_start_times(path: Path, samples: dict[str, Samples]) -> None:
    """What bench/scaling.py draws from: each start over the warm call after it."""
    times = {
        "unit": "ms over a warm call",
        "made": f"python bench/coldstart.py, load average {os.getloadavg()[0]:.1f}",
        "tiers": {
            name: [round(max(0.0, ms), 2) for ms in each.over_warm]
            for name, each in samples.items()
            if name != "warm"
        },
    }
    path.write_text(json.dumps(times, indent=2) + "\n")


def _show(result: dict, samples: dict[str, Samples], tiers: tuple[Tier, ...]) -> None:
    speeds = ", ".join(
        f"{name} {bps / 1e9:.2f} GB/s" for name, bps in result["bytes_per_s"].items()
    )
    print(
        f"{result['weights_bytes'] / 1e6:.0f} MB of weights; read from {speeds}; "
        f"load average {result['load_average']:.1f}"
    )
    print(f"\n{'first token, ms':38}{'median':>9}{'min':>9}{'p99':>9}{'over warm':>11}{'limit':>8}")
    for tier in tiers:
        row = result["tiers"][tier.name]
        print(
            f"{tier.title:38}{row['ttft_ms']:9.1f}{row['ttft_min_ms']:9.1f}"
            f"{row['ttft_p99_ms']:9.1f}{row['over_warm_ms']:11.1f}{row['limit_ms']:8.1f}"
            f"  {row['ratio']:.1f}x"
        )
    for name, why in result.get("skipped", {}).items():
        print(f"{name}: not measured: {why}")
    for name, row in result["peers"].items():
        figures = ", ".join(f"{key.removesuffix('_ms')} {ms:.0f}" for key, ms in row.items())
        print(f"{name:38}{figures}")
    if "prefix" in result:
        figures = ", ".join(
            f"{key.removesuffix('_ms')} {ms}" for key, ms in result["prefix"].items()
        )
        print(f"a system prompt of {PREFIX_TOKENS} tokens, ms: {figures}")
    for tier in tiers:
        print(f"\n{tier.title}: stages, ms {'median':>22}{'p99':>9}")
        for name in samples[tier.name].stage_names():
            values = samples[tier.name].stage(name)
            print(f"  {name:24}{statistics.median(values):22.2f}{percentile(values, 0.99):9.2f}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
