"""A day of the real server in three minutes, beside what the simulator says of the same day.

The server's scaler and its traffic history live on a clock that runs 600 times as fast as real
time; requests, replicas and starts are real, so that one of 0.2 s takes two minutes of the day. Two
functions are called by a seeded plan, over HTTP:

- `planned` by strays, and by a dense peak that a prewarm of two replicas is scheduled for;
- `learned` in sessions, with an idle time that is learned.

The simulator is told what went in – specs, the times at which requests were really sent, what each
took at its replica, what each start took –, and nothing of what came out. By nature it differs in
this: the server looks every 3 s of the day, and up to 6 s after a function became idle or busy,
where the simulator looks at the very moment. In the simulator a replica that is let go is gone; a
process takes a moment to end, at this pace some minutes, so what an end takes is measured, too, and
added for each replica that the simulator started.
"""

import csv
import io
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pytest
from fast_clock import FastClock
from prometheus_client.parser import text_string_to_metric_families
from same_inputs import simulated
from serving import CAPITAL, MODEL, Serve, assert_all_end, deploy, start_serve

from glowplug.client import Client
from glowplug.spec import FunctionSpec
from scaler.simulate.replay import Outcome

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(420)]

RATE = 600.0
TICK_S = 3.0 / RATE
LOOK_S = 300.0  # of the day, between two looks at the replicas
ZONE = "Europe/Berlin"
MIDNIGHT_S = datetime(2028, 3, 27, tzinfo=ZoneInfo(ZONE)).timestamp()  # summer time began yesterday
SCRIPT = str(Path(__file__).with_name("fast_serve_script.py"))

# Starts that take minutes of the day must not run into a limit that is meant for seconds.
COMMON = {
    "model": MODEL,
    "max_seqs": 4,
    "kv_cache_bytes": "64MiB",
    "start_timeout_s": 86_400,
    "predictive": "off",
}
PEAK = {
    "name": "peak",
    "cron": "45 8 * * 1-5",
    "duration": "2h",
    "timezone": ZONE,
    "min_replicas": 2,
}
SPECS: tuple[dict[str, Any], ...] = (
    {"name": "planned", "max_replicas": 2, "idle_s": 900, "schedules": [PEAK], **COMMON},
    {"name": "learned", "cold_start_cost_s": 600, **COMMON},
)
NAMES = tuple(spec["name"] for spec in SPECS)


def at(hour: float) -> float:
    """Unix time of an hour of the day in ZONE."""
    return MIDNIGHT_S + 3600.0 * hour


DAY_S, PEAK_S, NIGHT_S, END_S = at(5), at(9), at(20), at(28)
BURSTS = 18  # of three requests, every five minutes
PEAK_END_S = PEAK_S + 300 * BURSTS


def plan() -> list[tuple[float, str]]:
    """When which function is to be called, in order."""
    rng = Random(5)
    strays = [each for each in poisson(rng, at(19), 2400) if not at(8.5) < each < at(11)]
    peak = [PEAK_S + 300 * k + rng.uniform(0, 60) for k in range(BURSTS) for _ in range(3)]
    calls = [(time_s, "planned") for time_s in (*strays, *peak)]
    rng = Random(5)
    for begun_s in poisson(rng, at(17), 5400):
        call_s = begun_s
        for _ in range(rng.randint(3, 6)):
            calls.append((call_s, "learned"))
            call_s += rng.uniform(180, 420)
    return sorted(calls)


def poisson(rng: Random, until_s: float, gap_s: float) -> Iterator[float]:
    """From the day's beginning on."""
    time_s = DAY_S
    while (time_s := time_s + rng.expovariate(1 / gap_s)) < until_s:
        yield time_s


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request; times are those of the day."""

    function: str
    sent_s: float
    service_s: float  # at its replica
    cold: bool
    kind: str


@dataclass(frozen=True, kw_only=True)
class Look:
    """What there is of one function at some time."""

    function: str
    at_s: float
    replicas: Mapping[str, int]  # by state, and how many are desired
    used_s: float  # replica-seconds so far, by the server's metrics


@dataclass(frozen=True, kw_only=True)
class Day:
    """What went in, and what came out."""

    calls: list[Call]
    starts_s: dict[str, list[float]]
    ends_s: dict[str, list[float]]
    looks: list[Look]
    recorded: dict[str, list[tuple[float, int]]]  # (minute, requests) in the traffic history

    def calls_of(self, function: str) -> list[Call]:
        return [each for each in self.calls if each.function == function]

    def looks_at(self, function: str, from_s: float, until_s: float) -> list[Look]:
        return [
            each
            for each in self.looks
            if each.function == function and from_s <= each.at_s < until_s
        ]

    def used_s(self, function: str) -> float:
        return self.looks_at(function, DAY_S, END_S)[-1].used_s


@pytest.fixture(scope="module")
def day(sealed_copy: Path) -> Iterator[Day]:
    clock = FastClock(RATE, time.monotonic(), MIDNIGHT_S)
    numbers = (str(each) for each in (TICK_S, clock.rate, clock.since_s, clock.unix_s))
    server = start_serve(sealed_copy, "--standbys", "2", program=(SCRIPT, *numbers))
    try:
        yield live_through(server, clock)
    finally:
        below = server.below()
        assert server.stop() == 0
        assert_all_end(below)


def live_through(server: Serve, clock: FastClock) -> Day:
    """Send the day's requests, and look at the replicas all the while."""
    with server.client() as client:
        for spec in SPECS:
            deploy(client, **spec)
    assert clock.wall() < DAY_S, "the machine is too busy: the day began before the server was up"
    looks = [(DAY_S + k * LOOK_S, "") for k in range(int((END_S - DAY_S) / LOOK_S))]
    calling, looking = [], []
    with ThreadPoolExecutor(32) as pool:
        for time_s, function in sorted([*plan(), *looks]):
            time.sleep(clock.real_s(time_s))
            if function:
                calling.append(pool.submit(call, server, clock, function))
            else:
                looking.append(pool.submit(look, server, clock))
    with server.client() as client:
        return Day(
            calls=[each.result() for each in calling],
            starts_s={name: starts_of(server, name) for name in NAMES},
            ends_s={name: ends_of(server, name) for name in NAMES},
            looks=[each for both in looking for each in both.result()],
            recorded={name: recorded_of(client, name) for name in NAMES},
        )


def call(server: Serve, clock: FastClock, function: str) -> Call:
    with server.client() as client:
        sent_s = clock.wall()
        with client.chat(function, CAPITAL, max_tokens=3, temperature=0) as answer:
            for _ in answer:
                pass
        took_s = clock.wall() - sent_s
    waited_ms = float(answer.headers["x-start-ms"]) + float(answer.headers["x-queue-ms"])
    return Call(
        function=function,
        sent_s=sent_s,
        service_s=took_s - waited_ms / 1e3 * RATE,
        cold=answer.headers["x-cold-start"] == "true",
        kind=answer.start_kind,
    )


def look(server: Serve, clock: FastClock) -> list[Look]:
    with server.client() as client:
        at_s, functions = clock.wall(), client.functions()
    metrics = httpx.get(f"{server.endpoint}/metrics").raise_for_status().text
    used_s = {
        sample.labels["function"]: sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if sample.name == "glowplug_replica_seconds_total"
    }
    return [
        Look(
            function=each["name"],
            at_s=at_s,
            replicas=each["replicas"],
            used_s=used_s[each["name"]],
        )
        for each in functions
    ]


def starts_of(server: Serve, function: str) -> list[float]:
    """What the function's starts took, one after another."""
    found = re.findall(rf"{function}: replica \S+ is ready after ([\d.]+) s", server.log())
    return [float(took_s) for took_s in found]


def ends_of(server: Serve, function: str) -> list[float]:
    """What its replicas took to end once they were let go."""
    told = rf"^(\S+ \S+) INFO \S+ {function}: (?:releasing )?replica (\S+?)(?:| is gone|: .*)$"
    times: dict[str, list[datetime]] = {}
    for time_text, replica in re.findall(told, server.log(), re.MULTILINE):
        times.setdefault(replica, []).append(datetime.fromisoformat(time_text.replace(",", ".")))
    return [RATE * (gone - released).total_seconds() for released, gone in times.values()]


def recorded_of(client: Client, function: str) -> list[tuple[float, int]]:
    with client.history(function) as pieces:
        rows = csv.DictReader(io.StringIO(b"".join(pieces).decode()))
    return [
        (datetime.fromisoformat(row["minute"]).timestamp(), int(row["arrivals"])) for row in rows
    ]


@pytest.fixture(scope="module")
def said(day: Day) -> dict[str, Outcome]:
    """What the simulator says of that day."""
    return simulated(
        [FunctionSpec(**spec) for spec in SPECS],
        {name: [(each.sent_s, each.service_s) for each in day.calls_of(name)] for name in NAMES},
        starts_s=day.starts_s,
        from_s=DAY_S,
        until_s=END_S,
    )


def test_no_request_of_the_peak_meets_a_cold_start(day: Day) -> None:
    peak = [each for each in day.calls_of("planned") if PEAK_S <= each.sent_s < PEAK_END_S]
    assert len(peak) == 3 * BURSTS
    assert {(each.cold, each.kind) for each in peak} == {(False, "warm")}
    assert {each.replicas["ready"] for each in day.looks_at("planned", PEAK_S, PEAK_END_S)} == {2}
    assert any(each.cold for each in day.calls_of("planned"))  # of the strays: it can be seen here


@pytest.mark.parametrize("function", NAMES)
def test_at_night_there_is_nothing(day: Day, function: str) -> None:
    looks = day.looks_at(function, NIGHT_S, END_S)
    assert len(looks) > 90
    assert {tuple(each.replicas.values()) for each in looks} == {(0, 0, 0, 0, 0)}
    assert len({each.used_s for each in looks}) == 1  # nor was there anything between two looks


@pytest.mark.parametrize("function", NAMES)
def test_the_accelerator_seconds_are_those_of_the_simulator(
    day: Day, said: dict[str, Outcome], function: str
) -> None:
    outcome, starts_s, ends_s = said[function], day.starts_s[function], day.ends_s[function]
    assert len(ends_s) == len(starts_s)
    used_s = day.used_s(function)
    said_s = outcome.replica_s + outcome.starts * fmean(ends_s)
    calls = day.calls_of(function)
    cold = sum(each.cold for each in calls)
    print(
        f"\n{function}: {used_s:.0f} replica-seconds, {len(starts_s)} starts of "
        f"{fmean(starts_s):.0f} s, ends of {fmean(ends_s):.0f} s, {cold} of {len(calls)} requests "
        f"cold; the simulator says {said_s:.0f} ({outcome.replica_s:.0f} without ends), "
        f"{outcome.starts} and {outcome.cold_requests}: {used_s / said_s - 1:+.1%}"
    )
    assert used_s == pytest.approx(said_s, rel=0.15)


@pytest.mark.parametrize("function", NAMES)
def test_the_history_has_the_day(day: Day, function: str) -> None:
    calls, recorded = day.calls_of(function), day.recorded[function]
    assert sum(requests for _, requests in recorded) == len(calls)
    assert abs(recorded[0][0] - calls[0].sent_s) < 120
