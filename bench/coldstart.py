"""Time to the first token from zero, stage by stage, beside the same request warm.

    python bench/coldstart.py [--runs 10] [--json]

One function, one `glowplug serve`, snapshot in the cache and in memory, a standby ready. Each run
waits until the function is at zero, calls it (cold), and calls it again (warm). Times are the
client's, from just before the request is sent to the first piece of content. Medians.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from servers import MODEL, deploy, glowplug

from glowplug.client import Client

FUNCTION = "smollm2"
PROMPT = "What is the largest ocean on Earth? Answer in one sentence."
IDLE_S = 0.5
SETTLE_S = 3.0  # for the next standby to be warm: what is measured is a start from a standby
ZERO_LIMIT_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as data, glowplug(Path(data)) as client:
        deploy(client, {"name": FUNCTION, "model": MODEL, "idle_s": IDLE_S})
        result = measure(client, runs=options.runs)
    print(
        f"warm {result['warm_ttft_ms']:.0f} ms, from zero {result['cold_ttft_ms']:.0f} ms: ", end=""
    )
    print(f"{result['cold_over_warm_ms']:.0f} ms more (median of {result['n']})")
    for stage, ms in result["stages_ms"].items():
        print(f"  {stage:24}{ms:9.1f} ms")
    if options.json:
        print(json.dumps(result))


def measure(client: Client, *, runs: int) -> dict[str, object]:
    """Medians over `runs` cold and warm calls."""
    cold, warm, stages = [], [], []
    for _ in range(runs):
        wait_for_zero(client)
        time.sleep(SETTLE_S)
        ttft_ms, kind, timing = call(client)
        if kind == "warm":
            raise SystemExit("a call that should have been cold found a replica")
        cold.append(ttft_ms)
        stages.append(timing)
        warm.append(call(client)[0])
    names = list(dict.fromkeys(name for timing in stages for name in timing))
    return {
        "n": runs,
        "warm_ttft_ms": statistics.median(warm),
        "cold_ttft_ms": statistics.median(cold),
        "cold_over_warm_ms": statistics.median(c - w for c, w in zip(cold, warm, strict=True)),
        "stages_ms": {
            name: statistics.median(timing.get(name, 0.0) for timing in stages) for name in names
        },
    }


def call(client: Client) -> tuple[float, str, dict[str, float]]:
    """TTFT in ms, how the replica was found, and the server's own stages."""
    messages = [{"role": "user", "content": PROMPT}]
    with client.chat(FUNCTION, messages, max_tokens=4, temperature=0) as answer:
        for _ in answer:
            pass
    if answer.ttft_ms is None:
        raise SystemExit("the answer had no content")
    return answer.ttft_ms, answer.start_kind, answer.stages_ms


def wait_for_zero(client: Client) -> None:
    deadline_s = time.monotonic() + ZERO_LIMIT_S
    while client.function(FUNCTION)["state"] != "zero":
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{FUNCTION} was not at zero within {ZERO_LIMIT_S:.0f} s")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
