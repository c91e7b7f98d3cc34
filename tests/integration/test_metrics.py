"""One scrape of `glowplug serve`: front door, scaler and replicas, those that have ended too."""

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import STORY, Serve, StartServe, ask, deploy, eventually, wait_for_state

pytestmark = pytest.mark.model

Scrape = dict[str, float]


def scrape(server: Serve, function: str) -> Scrape:
    """sample{other labels} → value, of one function."""
    answer = httpx.get(f"{server.endpoint}/metrics").raise_for_status()
    seen: Scrape = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = dict(sample.labels)
            if labels.pop("function", function) == function:
                labels.pop("revision", None)
                rest = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
                seen[f"{sample.name.removeprefix('glowplug_')}{{{rest}}}"] = sample.value
    return seen


def answered(seen: Scrape, code: str) -> float:
    """Requests with a code of this class, however they found a replica."""
    return sum(n for name, n in seen.items() if name.startswith(f"requests_total{{code={code},"))


STOPPED = "request_success_total{finished_reason=stop}"


def test_counters_survive_scale_to_zero(server: Serve) -> None:
    with server.client() as client:
        deploy(client, "counted", idle_s=0.2)
        first = ask(client, "counted")
        wait_for_state(client, "counted", "zero")
        # Without a look in between: what a short-lived replica has counted must not need one.
        seen = eventually(
            lambda: (
                "num_requests_running{}" not in (seen := scrape(server, "counted"))  # of nobody
                and STOPPED in seen
                and seen
            ),
            what="the replica has ended and its counters are there",
        )
        assert seen["generation_tokens_total{}"] == first.completion_tokens
        kind = first.headers["x-start-kind"]
        assert seen[f"requests_total{{code=2xx,start_kind={kind}}}"] == 1
        assert seen[f"start_seconds_count{{kind={kind}}}"] == 1
        assert seen["start_stage_seconds_count{stage=map}"] == 1
        assert seen["replicas_desired{}"] == seen["replicas_ready{}"] == 0

        second = ask(client, "counted")
        again = eventually(
            lambda: (seen := scrape(server, "counted"))[STOPPED] == 2 and seen,
            what="both replicas' metrics are one",
        )
        tokens = (first.completion_tokens or 0) + (second.completion_tokens or 0)
        assert again["generation_tokens_total{}"] == tokens
        assert again["time_to_first_token_seconds_count{}"] == 2
        assert again["time_to_first_token_seconds_bucket{le=+Inf}"] == 2
        computed = again["prompt_tokens_total{}"] - again["prefix_cache_hits_total{}"]
        assert again["iteration_tokens_total_sum{}"] >= computed > 0
        for name, value in seen.items():
            if name.split("{")[0].endswith(("_total", "_count", "_bucket", "_sum")):
                assert again[name] >= value, name
        client.delete("counted")
        gone = scrape(server, "counted")
        assert "replicas_desired{}" not in gone
        assert answered(gone, "2xx") == 0


def test_an_abort_and_the_gauges_of_what_runs(server: Serve) -> None:
    with server.client() as client:
        deploy(client, "watched", idle_s=60)
        with client.chat("watched", STORY, max_tokens=2000, temperature=0) as answer:
            next(iter(answer))
            seen = eventually(
                lambda: (
                    (seen := scrape(server, "watched")).get("num_requests_running{}") == 1 and seen
                ),
                what="the sequence is seen to run",
            )
            assert 0 < seen["kv_cache_usage_perc{}"] < 1
            assert seen["requests_in_flight{}"] == 1
        eventually(
            lambda: scrape(server, "watched")["request_aborts_total{}"] == 1,
            what="the abort is counted",
        )
        assert answered(scrape(server, "watched"), "4xx") == 1
        replica = server.replica()
        (port,) = {each.laddr.port for each in replica.net_connections() if each.status == "LISTEN"}
        own = httpx.get(f"http://127.0.0.1:{port}/metrics").raise_for_status().text
        assert 'glowplug_request_aborts_total{function="watched"' in own
        client.delete("watched")


def test_a_killed_replica_takes_a_second_of_counts_with_it_at_most(start: StartServe) -> None:
    server = start()
    with server.client() as client:
        deploy(client, "killed", idle_s=60)
        ask(client, "killed")
        eventually(lambda: scrape(server, "killed").get(STOPPED) == 1, what="the answer is counted")
        replica = server.replica()
        replica.kill()
        eventually(lambda: not replica.is_running(), what="the replica is gone")
        eventually(
            lambda: client.function("killed")["replicas"]["ready"] == 1,  # it is wanted still
            what="another is there",
        )
        ask(client, "killed")
        eventually(
            lambda: scrape(server, "killed")[STOPPED] == 2, what="both replicas' counts are there"
        )
        assert answered(scrape(server, "killed"), "2xx") == 2
