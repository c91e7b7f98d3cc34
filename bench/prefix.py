"""A long system prompt from zero: with the KV blocks that an earlier replica left, and without.

Used by coldstart.py --prefix. Two functions of one model, one of which keeps prefix snapshots.
Every prompt ends in a question of its own, so only the system prompt can be found anywhere.
"""

import itertools
import random
import statistics
import time

from servers import deploy
from tiers import SETTLE_S, House, wait_for_zero

from glowplug.client import Client

WORDS = ("river", "bridge", "stone", "light", "window", "garden", "market", "silver", "paper")
TOKENS = 2000  # of the system prompt: each of these words is one
SPEC = {"idle_s": 0.5, "start_timeout_s": 120}


def measure_prefix(house: House, spec: dict[str, object], *, runs: int) -> dict[str, float]:
    """Medians in ms: from zero with the stored prefix, from zero without, warm with the prefix in
    memory, and from zero with a short prompt."""
    client = house.client
    for name, size in (("prefix-kept", "64MiB"), ("prefix-none", 0)):
        deploy(client, {**spec, **SPEC, "name": name, "prefix_snapshot_bytes": size})
    system = " ".join(random.Random(3).choice(WORDS) for _ in range(TOKENS))
    questions = (f"What is the largest ocean? Say it {n} times." for n in itertools.count(1))

    def ask(function: str, *, long: bool, cold: bool) -> float:
        if cold:
            wait_for_zero(client, function)
            time.sleep(SETTLE_S)
        return _ttft_ms(client, function, system if long else None, next(questions))

    ask("prefix-kept", long=True, cold=True)  # leaves its prefix when it ends
    samples: dict[str, list[float]] = {}
    for _ in range(runs):
        for key, function, long, cold in (
            ("ttft_from_zero_ms", "prefix-kept", True, True),
            ("ttft_warm_cached_ms", "prefix-kept", True, False),
            ("ttft_short_from_zero_ms", "prefix-none", False, True),
            ("ttft_without_ms", "prefix-none", True, True),
        ):
            samples.setdefault(key, []).append(ask(function, long=long, cold=cold))
    return {key: round(statistics.median(values), 1) for key, values in samples.items()}


def _ttft_ms(client: Client, function: str, system: str | None, question: str) -> float:
    messages = [{"role": "user", "content": question}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    with client.chat(function, messages, max_tokens=4, temperature=0, ignore_eos=True) as answer:
        for _ in answer:
            pass
    if answer.ttft_ms is None:
        raise SystemExit("the answer had no content")
    return answer.ttft_ms
