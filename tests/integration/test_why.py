"""`glowplug why` of the real server tells what happened, and the metrics agree with it."""

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import Serve, StartServe, ask, deploy, eventually, wait_for_state

from glowplug.client import Client
from glowplug.errors import InvalidRequest, NotFound

pytestmark = pytest.mark.model

CYCLE = ["desired", "starting", "ready", "desired", "released", "ended"]


def why(server: Serve, *arguments: str) -> str:
    """What the command prints."""
    command = [sys.executable, "-m", "glowplug", "why", *arguments, "--endpoint", server.endpoint]
    done = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"COLUMNS": "200"},
    )
    return done.stdout


def story(client: Client, name: str) -> list[dict[str, Any]]:
    """Its events, oldest first."""
    events: list[dict[str, Any]] = client.decisions(name, limit=100)["data"]
    return events[::-1]


def ended(client: Client, name: str, times: int) -> list[dict[str, Any]]:
    """The story once so many replicas are gone."""

    def told() -> list[dict[str, Any]] | None:
        events = story(client, name)
        return events if [each["event"] for each in events].count("ended") == times else None

    return eventually(told, what=f"{times} replicas of {name} have ended")


def samples(server: Serve, name: str) -> dict[tuple[str, str], float]:
    """(sample, its cause or kind) → value."""
    text = httpx.get(f"{server.endpoint}/metrics").raise_for_status().text
    return {
        (
            sample.name.removeprefix("glowplug_"),
            sample.labels.get("cause", sample.labels.get("kind", "")),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("function") == name and "le" not in sample.labels
    }


def seconds(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["at"]).timestamp()


def test_from_zero_and_back(server: Serve) -> None:
    with server.client() as client:
        deploy(client, "told", idle_s=1)
        now = client.decisions("told")["now"]
        assert (now["desired"], now["verdict"]) == (0, "at zero until somebody calls")
        assert now["next_change"] is None

        answer = ask(client, "told")
        now = client.decisions("told")["now"]
        assert now["next_change"]["desired"] == 0
        assert now["next_change"]["cause"] == "idle"
        assert 0 <= now["next_change"]["in_s"] <= 2
        assert now["verdict"].startswith("kept for 1 s more as long as nobody calls, as ")
        events = ended(client, "told", 1)

        assert [each["event"] for each in events] == ["deployed", "sealed", *CYCLE]
        up, start, ready, down, _, end = events[2:]
        assert (up["before"], up["after"], up["cause"]) == (0, 1, "requests")
        assert up["reason"] == "1 request queued, none running"
        assert (up["inputs"]["queued"], up["inputs"]["ready"]) == (1, 0)
        assert (down["before"], down["after"], down["cause"]) == (1, 0, "idle")
        assert down["reason"].endswith("(limit 1 s)")
        assert down["inputs"]["idle_s"] >= 1
        assert down["inputs"]["ready"] == 1
        kind = answer.headers["x-start-kind"]
        assert ready["reason"].endswith(f"from {kind}")
        assert len({each["replica"] for each in events if each["replica"]}) == 1
        assert [each["id"] for each in events] == list(range(1, 9))
        times = [each["at"] for each in events]
        assert times == sorted(times)

        seen = samples(server, "told")
        assert seen["decisions_total", "requests"] == seen["decisions_total", "idle"] == 1
        assert sum(value for (name, _), value in seen.items() if name == "decisions_total") == 2
        assert seen["start_seconds_count", kind] == 1
        lived_s, started_s = seconds(end) - seconds(start), seconds(ready) - seconds(start)
        total_s, wasted_s = (seen[f"{what}replica_seconds_total", ""] for what in ("", "wasted_"))
        assert total_s == pytest.approx(lived_s, abs=0.1)
        assert started_s + 1 <= wasted_s < total_s  # idle_s passed, and it worked in between
        assert wasted_s == pytest.approx(
            total_s - (answer.total_ms or 0) / 1e3, abs=started_s + 0.5
        )
        lines = why(server, "told").splitlines()
        shown = [line for line in lines if "→" in line]
        assert "0 → 1" in shown[0]
        assert "1 request queued, none running" in shown[0]
        assert "1 → 0" in shown[1]
        assert "now 0: at zero until somebody calls" in lines
        assert json.loads(why(server, "told", "--json", "--limit", "2"))["data"] == events[:-3:-1]
        # At zero nothing is counted.
        assert samples(server, "told")["replica_seconds_total", ""] == total_s
        client.delete("told")
        left = {name for name, _ in samples(server, "told")}  # those of replicas stay
        assert not left & {"decisions_total", "replica_seconds_total", "replicas_sleeping"}


def test_what_is_planned(server: Serve) -> None:
    with server.client() as client:
        deploy(client, "later", idle_s=1)
        moment = datetime.fromtimestamp(int(time.time()) + 3600, UTC)
        start = {"at": moment.isoformat(), "duration": "1h"}
        client.put_prewarm("later", "soon", start)

        def planned() -> Any:
            return client.decisions("later")["now"]["next_change"]

        change = eventually(planned, what="the prewarm is foreseen")
        assert (change["desired"], change["cause"]) == (1, "prewarm")
        assert 3500 < change["in_s"] < 3600
        now = client.decisions("later")["now"]
        assert now["verdict"].startswith("0 → 1 in 60 min: prewarm 'soon'")
        assert now["next_prewarm"]["name"] == "soon"
        assert "next prewarm: " in why(server, "later")
        client.delete("later")


def test_follow_goes_on(server: Serve) -> None:
    with server.client() as client:
        deploy(client, "followed", idle_s=60)
        command = ["why", "followed", "--follow", "--json", "--endpoint", server.endpoint]
        process = subprocess.Popen(
            [sys.executable, "-m", "glowplug", *command], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            kinds = [json.loads(process.stdout.readline())["event"] for _ in range(2)]
            ask(client, "followed")
            kinds += [json.loads(process.stdout.readline())["event"] for _ in range(3)]
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        assert kinds == ["deployed", "sealed", "desired", "starting", "ready"]
        client.delete("followed")


def test_wrong_questions(server: Serve) -> None:
    with server.client() as client:
        with pytest.raises(NotFound, match="there is no function 'nobody'"):
            client.decisions("nobody")
        deploy(client, "asked", idle_s=60)
        for limit in (0, 101, -1):
            with pytest.raises(InvalidRequest, match=r"limit: .* is not a number from 1 to 100"):
                client.decisions("asked", limit=limit)
        client.delete("asked")


def test_over_a_restart(start: StartServe) -> None:
    first = start()
    with first.client() as client:
        deploy(client, "kept", idle_s=0.5)
        ask(client, "kept")
        before = ended(client, "kept", 1)
    assert first.stop() == 0
    with start().client() as client:
        events = story(client, "kept")
        assert events[: len(before)] == before
        assert events[len(before)]["event"] == "server_started"
        ask(client, "kept")
        wait_for_state(client, "kept", "zero")
        again = ended(client, "kept", 2)[len(before) + 1 :]
        assert [each["event"] for each in again] == CYCLE
