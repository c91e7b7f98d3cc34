"""What the history foretells a real server acts on: a replica is there before any request."""

import time

import pytest
from serving import StartServe, ask, deploy, eventually

from glowplug.client import Client
from scaler.minutes import Minute
from scaler.traffic_csv import lines_of

pytestmark = pytest.mark.model

DAYS = 10


def busy_at_this_time_of_day() -> bytes:
    """Ten days with a request in each minute of the hours around now, and none in the others."""
    now = int(time.time() // 60)
    minutes = [
        Minute(minute=now - day * 1440 + k, arrivals=1, peak=1, finished=1, service_s=1.0)
        for day in range(DAYS, -1, -1)
        for k in range(-60, 61 if day else 0)
    ]
    return f"minute,arrivals,peak,finished,service_s\n{lines_of(minutes)}".encode()


def import_and_restart(start: StartServe, *names: str, **settings: object) -> Client:
    """Functions with that history, as a server finds them when it starts."""
    serve = start()
    with serve.client() as client:
        for name in names:
            deploy(client, name, idle_s=1, cold_start_cost_s=300, **settings)
            client.import_history(name, busy_at_this_time_of_day())
            assert client.function(name)["state"] == "zero"
    assert serve.stop() == 0
    return start().client()


def test_a_replica_is_ready_before_the_first_request(start: StartServe) -> None:
    with import_and_restart(start, "busy") as client:
        shown = eventually(
            lambda: (shown := client.function("busy"))["state"] == "ready" and shown,
            what="a replica is started ahead",
        )
        assert shown["desired_reason"].startswith("forecast until ")
        report = client.forecast("busy", hours=3)
        assert report["acts"] is True
        assert report["reason"].startswith("it pays: ")
        assert 121 * 6 < sum(report["past"]["arrivals"]) <= 121 * 8
        assert report["ahead"]["replicas"][0] == 1
        assert ask(client, "busy").headers["x-cold-start"] == "false"


def test_an_import_is_acted_on_without_a_restart(start: StartServe) -> None:
    with start().client() as client:
        deploy(client, "late", idle_s=1, cold_start_cost_s=300)
        young = int(time.time() // 60) - 10  # the forecast knows something before the import
        minutes = [Minute(minute=young, arrivals=1, peak=1, finished=1, service_s=1.0)]
        header = "minute,arrivals,peak,finished,service_s\n"
        client.import_history("late", f"{header}{lines_of(minutes)}".encode())
        client.import_history("late", busy_at_this_time_of_day())
        eventually(
            lambda: client.function("late")["desired_reason"].startswith("forecast until "),
            what="a replica is started ahead",
        )


def test_what_is_only_shown_starts_nothing(start: StartServe) -> None:
    with import_and_restart(start, "shown", predictive="forecast") as client:
        report = client.forecast("shown", hours=3)
        assert (report["acts"], report["ahead"]["replicas"][0]) == (False, 1)
        assert ask(client, "shown").headers["x-cold-start"] == "true"
