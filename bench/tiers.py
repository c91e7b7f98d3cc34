"""The tiers from which a function's first token can come, one row each. Used by coldstart.py.

A new tier is a row of TIERS: which server it needs, what to do before the call, and how its bytes
reach the processor.
"""

import math
import os
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from reading import drop, files_of, warm

from glowplug.client import Client
from snapshot.node_cache import NodeCache

PROMPT = "What is the largest ocean on Earth? Answer in one sentence."
FUNCTION = "coldstart"
SETTLE_S = 3.0  # for the next standby to be warm: what is measured is a start from a standby
WAIT_LIMIT_S = 60.0
_TRIES = 5
_MAX_TOKENS = 8


@dataclass(frozen=True, kw_only=True)
class House:
    """One server with the function deployed."""

    client: Client
    data: Path
    snapshot: Path

    @property
    def weights(self) -> Path:
        return self.snapshot / "weights.safetensors"


@dataclass(frozen=True, kw_only=True)
class Tier:
    """Where a start finds what it needs."""

    name: str
    title: str
    server: str  # a key of SERVERS
    prepare: Callable[[House], None]  # to be in this tier, just before the call
    bytes_from: Literal["memory", "disk", "s3"]
    kind: str  # X-Start-Kind that the answer must have


@dataclass
class Samples:
    """What the calls of one tier gave, in ms on the client's clock."""

    ttft: list[float] = field(default_factory=list)
    over_warm: list[float] = field(default_factory=list)
    stages: list[dict[str, float]] = field(default_factory=list)

    def add(self, ttft_ms: float, stages_ms: dict[str, float], *, warm_ms: float) -> None:
        self.ttft.append(ttft_ms)
        self.over_warm.append(ttft_ms - warm_ms)
        own = sum(ms for name, ms in stages_ms.items() if not name.startswith("start-"))
        self.stages.append({**stages_ms, "first-byte-out": ttft_ms - own})

    def stage_names(self) -> list[str]:
        return list(dict.fromkeys(name for stages in self.stages for name in stages))

    def stage(self, name: str) -> list[float]:
        return [stages.get(name, 0.0) for stages in self.stages]


def _at_zero(house: House) -> None:
    """No replica, a standby where the server keeps one, and the snapshot in memory."""
    wait_for_zero(house.client)
    warm(files_of(house.snapshot))
    time.sleep(SETTLE_S)


def _at_zero_on_disk(house: House) -> None:
    _at_zero(house)
    drop(files_of(house.snapshot))


def _in_s3_only(house: House) -> None:
    wait_for_zero(house.client)
    cache = NodeCache(house.snapshot.parent)
    deadline_s = time.monotonic() + WAIT_LIMIT_S
    while not cache.evict(house.snapshot.name):  # the replica is just ending
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{house.snapshot.name} stays in use; cannot measure")
        time.sleep(0.1)
    time.sleep(SETTLE_S)


def _without_fork_server(house: House) -> None:
    _at_zero(house)
    os.kill(_fork_server(house.data), signal.SIGKILL)


def _replica_there(house: House) -> None:
    call(house.client)


def _replica_asleep(house: House) -> None:
    call(house.client)
    _wait_until(house.client, lambda function: function["replicas"]["sleeping"] > 0, "asleep")


@dataclass(frozen=True, kw_only=True)
class Server:
    """A `glowplug serve` and how its function is deployed."""

    standbys: int = 1
    spec: dict[str, object]
    store: bool = False  # with an S3 on loopback


# Starts compute the whole prompt: its prefix is not kept from one replica to the next.
_AT_ZERO_SOON: dict[str, object] = {"idle_s": 0.5, "prefix_snapshot_bytes": 0}
SERVERS = {
    "standby": Server(spec=_AT_ZERO_SOON),
    "bare": Server(standbys=0, spec=_AT_ZERO_SOON),
    "sleeping": Server(spec={"idle_s": 3600, "sleep_s": 0.2}),
    "store": Server(spec={**_AT_ZERO_SOON, "start_timeout_s": 600}, store=True),
}

TIERS = (
    Tier(
        name="standby_page_cache",
        title="standby, snapshot in the page cache",
        server="standby",
        prepare=_at_zero,
        bytes_from="memory",
        kind="snapshot",
    ),
    Tier(
        name="warm",
        title="warm",
        server="standby",
        prepare=_replica_there,
        bytes_from="memory",
        kind="warm",
    ),
    Tier(
        name="sleeping",
        title="sleeping replica",
        server="sleeping",
        prepare=_replica_asleep,
        bytes_from="memory",
        kind="sleeping",
    ),
    Tier(
        name="standby_cold_cache",
        title="standby, snapshot on disk only",
        server="standby",
        prepare=_at_zero_on_disk,
        bytes_from="disk",
        kind="snapshot",
    ),
    Tier(
        name="no_standby",
        title="fork server, no standby",
        server="bare",
        prepare=_at_zero,
        bytes_from="memory",
        kind="cache",
    ),
    Tier(
        name="no_fork_server",
        title="no fork server: imports included",
        server="bare",
        prepare=_without_fork_server,
        bytes_from="memory",
        kind="cache",
    ),
    Tier(
        name="only_in_s3",
        title="standby, snapshot in S3 only",
        server="store",
        prepare=_in_s3_only,
        bytes_from="s3",
        kind="cold",
    ),
)


def measure(houses: dict[str, House], tiers: tuple[Tier, ...], *, runs: int) -> dict[str, Samples]:
    """`runs` rounds over all tiers, in turn, so that all see the same machine; after a round that
    does not count. `houses` by the names of SERVERS."""
    samples = {tier.name: Samples() for tier in tiers}
    for counted in [False] + [True] * runs:
        for tier in tiers:
            house = houses[tier.server]
            ttft_ms, stages_ms = _once(house, tier)
            # Warm is what the same server does right after: the machine's speed changes.
            warm_ms = ttft_ms if tier.kind == "warm" else call(house.client)[0]
            if counted:
                samples[tier.name].add(ttft_ms, stages_ms, warm_ms=warm_ms)
    return samples


def _once(house: House, tier: Tier) -> tuple[float, dict[str, float]]:
    for _ in range(_TRIES):
        tier.prepare(house)
        ttft_ms, kind, stages_ms = call(house.client)
        if kind == tier.kind:
            return ttft_ms, stages_ms
    raise SystemExit(f"{tier.title}: the start was {kind!r} and not {tier.kind!r}")


def call(client: Client) -> tuple[float, str, dict[str, float]]:
    """TTFT in ms, how the replica was found, and the server's own stages."""
    messages = [{"role": "user", "content": PROMPT}]
    with client.chat(
        FUNCTION, messages, max_tokens=_MAX_TOKENS, temperature=0, ignore_eos=True
    ) as answer:
        for _ in answer:
            pass
    if answer.ttft_ms is None:
        raise SystemExit("the answer had no content")
    return answer.ttft_ms, answer.start_kind, answer.stages_ms


def wait_for_zero(client: Client, name: str = FUNCTION) -> None:
    _wait_until(client, lambda function: function["state"] == "zero", "at zero", name=name)


def _wait_until(
    client: Client,
    reached: Callable[[dict[str, Any]], bool],
    what: str,
    *,
    name: str = FUNCTION,
) -> None:
    deadline_s = time.monotonic() + WAIT_LIMIT_S
    while not reached(client.function(name)):
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{name} was not {what} within {WAIT_LIMIT_S:.0f} s")
        time.sleep(0.1)


def percentile(values: list[float], share: float) -> float:
    """The smallest value that `share` of all do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def summary(samples: Samples, tier: Tier, *, limit_ms: float) -> dict[str, float]:
    """The JSON of one tier. `ratio`: how many times the limit the start takes over a warm call
    (the warm call itself: in all)."""
    over_ms = statistics.median(samples.over_warm)
    ttft_ms = statistics.median(samples.ttft)
    figures = {
        "ttft_ms": ttft_ms,
        "ttft_p99_ms": percentile(samples.ttft, 0.99),
        "ttft_min_ms": min(samples.ttft),
        "over_warm_ms": over_ms,
        "limit_ms": limit_ms,
        "ratio": (ttft_ms if tier.kind == "warm" else over_ms) / limit_ms,
    }
    return {name: round(value, 2) for name, value in figures.items()}


def _fork_server(data: Path) -> int:
    """The pid of the fork server of the `glowplug serve` with this data folder."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
            name = (folder / "comm").read_text().strip()
        except OSError:  # it ended
            continue
        if name == "glow-forks" and str(data / "cache").encode() in command:
            return int(folder.name)
    raise SystemExit("the fork server was not found")
