"""How much streams notice a long prompt that enters beside them.

    python bench/long_prompt.py [--streams 4] [--prompt 4000] [--rounds 3] [--json]

One engine in this process, SmolLM2 in bfloat16. Some streams decode, then a long prompt enters. Of
the streams' inter-token times: the median before it, and the median and 99th percentile while it
enters; of the long prompt: the time to its first token. The same again without the limit that
keeps prompts from slowing streams down (runtime/engine/prefill_limit.py), in turn.
"""

import argparse
import json
import queue
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch
from servers import MODEL
from tokenizers import Tokenizer

from runtime.engine.limits import EngineLimits
from runtime.engine.loop import Engine
from runtime.engine.request import Delta, GenerationRequest, SamplingParams
from runtime.models.registry import build_model
from snapshot.manifest import TOKENIZER
from snapshot.node_cache import NodeCache
from snapshot.restore import restore
from snapshot.seal import seal

BEFORE = 40  # tokens that every stream makes before the prompt enters
LIMIT_S = 300.0


@dataclass
class Sample:
    """One entry of a long prompt, in ms."""

    before: list[float]
    during: list[float]
    ttft: float


class Recorded:
    """An engine, and when it emitted tokens of which request."""

    def __init__(self, folder: Path, *, max_context: int) -> None:
        restored = restore(folder)
        self._arrivals: queue.SimpleQueue[tuple[float, str, int]] = queue.SimpleQueue()
        self.vocab = restored.manifest.config.vocab_size
        self.engine = Engine(
            build_model(restored.manifest.config, restored.tensors, max_context=max_context),
            Tokenizer.from_file(str(folder / TOKENIZER)),
            eos_token_ids=restored.manifest.generation.eos_token_ids,
            limits=EngineLimits(max_context=max_context, speculation=False),
            emit=self._emit,
        )
        self.engine.start()

    def _emit(self, batch: list[tuple[str, Delta]]) -> None:
        now_s = time.perf_counter()
        for name, delta in batch:
            if delta.tokens:
                self._arrivals.put((now_s, name, len(delta.tokens)))

    def submit(self, name: str, *, prompt: int, max_tokens: int) -> None:
        tokens = random.Random(name).choices(range(100, self.vocab), k=prompt)
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        self.engine.submit(GenerationRequest(id=name, prompt=tuple(tokens), params=params))

    def next(self) -> tuple[float, str]:
        at_s, name, _ = self._arrivals.get(timeout=LIMIT_S)
        return at_s, name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=4000, help="tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as data:
        cache = NodeCache(Path(data))
        digest = seal(MODEL, dtype="bfloat16", cache=cache, progress=lambda _: None)
        recorded = Recorded(cache.path(digest), max_context=options.prompt + 200)
        results: dict[str, list[Sample]] = {"limited": [], "unlimited": []}
        for number in range(options.rounds):
            for kind, samples in results.items():
                with without_limit(recorded.engine, kind == "unlimited"):
                    samples.append(enter(recorded, f"{kind} {number}", options))
        recorded.engine.stop()
    summary = {kind: summarised(samples) for kind, samples in results.items()}
    for kind, figures in summary.items():
        print(
            f"{kind}: {figures['itl_before_ms']} ms between tokens before, "
            f"{figures['itl_ms']} ms while the prompt enters (99%: {figures['itl_p99_ms']}), "
            f"its first token after {figures['ttft_ms'] / 1e3:.1f} s"
        )
    if options.json:
        print(json.dumps(summary))


def without_limit(engine: Engine, active: bool) -> "mock._patch[object]":
    pace = engine._pace
    return mock.patch.object(pace, "limit", (lambda _scheduler: None) if active else pace.limit)


def enter(recorded: Recorded, name: str, options: argparse.Namespace) -> Sample:
    """Let streams decode, and the long prompt enter."""
    streams = [f"{name}, stream {n}" for n in range(options.streams)]
    for stream in streams:
        recorded.submit(stream, prompt=30, max_tokens=100_000)
    last_s: dict[str, float] = {}
    sample = Sample([], [], 0.0)
    entered_s, long = None, f"{name}, long"
    made = 0
    while True:
        at_s, who = recorded.next()
        if who == long:
            sample.ttft = (at_s - (entered_s or 0)) * 1e3
            break
        if who in last_s:
            times = sample.before if entered_s is None else sample.during
            times.append((at_s - last_s[who]) * 1e3)
        last_s[who] = at_s
        made += 1
        if entered_s is None and made >= BEFORE * len(streams):
            entered_s = time.perf_counter()
            recorded.submit(long, prompt=options.prompt, max_tokens=1)
    for stream in streams:
        recorded.engine.abort(stream)
    return sample


def summarised(samples: list[Sample]) -> dict[str, float]:
    """The median over the rounds of each figure."""
    rows = [
        {
            "itl_before_ms": statistics.median(sample.before),
            "itl_ms": statistics.median(sample.during),
            "itl_p99_ms": statistics.quantiles(sample.during, n=100)[98],
            "itl_max_ms": max(sample.during),
            "ttft_ms": sample.ttft,
        }
        for sample in samples
    ]
    return {key: round(statistics.median(row[key] for row in rows), 1) for key in rows[0]}


if __name__ == "__main__":
    main()
