"""Scheduled prewarms of the real server: a replica is there before anybody asks, and then not."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from serving import Serve, ask, deploy, eventually, wait_for_state

pytestmark = pytest.mark.model


def moment(seconds: float) -> str:
    """Unix time as `at` takes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def test_ready_before_the_start_and_let_go(server: Serve) -> None:
    with server.client() as client:
        deploy(client, "planned", idle_s=1)
        start_s = int(time.time()) + 12
        prewarm = client.put_prewarm("planned", "soon", {"at": moment(start_s), "duration": "1h"})
        (run,) = prewarm["runs"]
        launch_s = datetime.fromisoformat(run["launch"]).timestamp()
        assert datetime.fromisoformat(run["ready_by"]).timestamp() == start_s
        assert launch_s < start_s
        assert (prewarm["state"], client.function("planned")["state"]) == ("waiting", "zero")

        wait_for_state(client, "planned", "ready")
        assert launch_s - 1 <= time.time() < start_s
        function = client.function("planned")
        assert function["desired_reason"].startswith("prewarm 'soon' ")
        assert [run["active"] for run in function["prewarms"]] == [True]
        revision, replica = function["revision"], server.replica()

        eventually(lambda: time.time() >= start_s + 2, what="the window is on")  # past idle_s
        first = ask(client, "planned")
        assert first.headers["x-start-kind"] == "warm"
        assert first.headers["x-cold-start"] == "false"

        # Deployed again without a word of it, and changed: the same replica goes on.
        assert deploy(client, "planned", idle_s=1)["revision"] == revision
        client.put_prewarm("planned", "soon", prewarm["spec"] | {"duration": "2h"})
        assert client.prewarm("planned", "soon")["state"] == "active"
        assert ask(client, "planned").headers["x-start-kind"] == "warm"
        assert replica.is_running()

        client.delete_prewarm("planned", "soon")
        wait_for_state(client, "planned", "zero")
        client.delete("planned")


def test_a_window_that_is_on_begins_at_once_and_ends(server: Serve) -> None:
    with server.client() as client:
        ends_s = int(time.time()) + 8
        late = {"name": "late", "at": moment(ends_s - 60), "duration": 60}
        deploy(client, "late", idle_s=1, schedules=[late])
        wait_for_state(client, "late", "ready")
        wait_for_state(client, "late", "zero")
        assert ends_s <= time.time() < ends_s + 5
        assert client.prewarm("late", "late")["state"] == "over"
        client.delete("late")


def test_prewarms_that_are_put_at_once_all_last(server: Serve) -> None:
    with server.client() as client:
        deploy(client, "crowded", idle_s=1)

    def put(number: int) -> None:
        with server.client() as client:
            client.put_prewarm("crowded", f"p{number}", {"cron": "0 8 1 1 *", "duration": "1h"})

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(put, range(16)))
    with server.client() as client:
        names = {prewarm["name"] for prewarm in client.prewarms("crowded")}
        function = client.function("crowded")
        client.delete("crowded")
    assert names == {f"p{number}" for number in range(16)}
    assert function["snapshot"] is not None
    assert function["generation"] == 17


def test_they_survive_a_restart(start) -> None:
    first = start()
    with first.client() as client:
        deploy(client, "kept", idle_s=1)
        client.put_prewarm(
            "kept",
            "on",
            {"at": moment(time.time() - 60), "duration": "1h", "timezone": "Asia/Tokyo"},
        )
        wait_for_state(client, "kept", "ready")
    assert first.stop() == 0
    with start().client() as client:
        wait_for_state(client, "kept", "ready")
        (prewarm,) = client.prewarms("kept")
        assert prewarm["state"] == "active"
        assert prewarm["runs"][0]["ready_by"].endswith("+09:00")
        assert json.dumps(client.function("kept")["spec"]["schedules"]) == json.dumps(
            [prewarm["spec"]]
        )


@pytest.mark.slow
def test_a_whole_window(server: Serve) -> None:
    with server.client() as client:
        start_s = int(time.time()) + 12
        once = {"name": "once", "at": moment(start_s), "duration": "1m"}
        deploy(client, "whole", idle_s=1, schedules=[once])
        assert client.function("whole")["state"] == "zero"
        wait_for_state(client, "whole", "ready")
        assert time.time() < start_s
        eventually(lambda: time.time() >= start_s + 30, what="the middle of the window")
        assert ask(client, "whole").headers["x-start-kind"] == "warm"
        eventually(
            lambda: client.function("whole")["state"] == "zero", what="it is at zero", limit_s=60
        )
        assert start_s + 60 <= time.time() < start_s + 65
        client.delete("whole")
