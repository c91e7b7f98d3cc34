"""The main job on the real model, through real processes: from zero, under load, and back."""

import asyncio

import httpx
import pytest
from serving import CAPITAL, STORY, Serve, ask, deploy, eventually, wait_for_state

from glowplug.errors import Unavailable

pytestmark = pytest.mark.model


def test_from_zero_to_an_answer_and_back(server: Serve) -> None:
    with server.client() as client:
        function = deploy(client, "main-job", idle_s=1)
        assert (function["state"], function["replicas"]["ready"]) == ("zero", 0)

        cold = ask(client, "main-job")
        assert "Paris" in cold.text
        assert cold.finish_reason in ("stop", "length")
        assert cold.headers["x-cold-start"] == "true"
        assert cold.headers["x-start-kind"] in ("snapshot", "cache")
        assert float(cold.headers["x-start-ms"]) > 0
        assert cold.headers["x-revision"] == function["revision"]
        assert {"assign", "start", "prefill"} <= cold.stages_ms.keys()

        warm = ask(client, "main-job")
        assert warm.text == cold.text
        assert warm.headers["x-cold-start"] == "false"
        assert warm.headers["x-start-kind"] == "warm"
        assert (cold.ttft_ms or 0) > (warm.ttft_ms or 0) > 0

        replica = server.replica()
        wait_for_state(client, "main-job", "zero")
        eventually(lambda: not replica.is_running(), what="the replica's process is gone")
        again = ask(client, "main-job")
        assert again.text == cold.text
        assert again.headers["x-cold-start"] == "true"
        client.delete("main-job")


def test_a_replica_sleeps_and_wakes_for_the_next_request(server: Serve) -> None:
    def sleeping() -> bool:
        return bool(client.function("sleeper")["replicas"]["sleeping"] == 1)

    with server.client() as client:
        deploy(client, "sleeper", idle_s=120, sleep_s=0.5)
        awake = ask(client, "sleeper")
        eventually(sleeping, what="the replica sleeps")
        woken = ask(client, "sleeper")
        assert woken.text == awake.text
        assert woken.headers["x-start-kind"] == "sleeping"
        assert woken.headers["x-cold-start"] == "false"
        eventually(sleeping, what="it sleeps again")
        client.delete("sleeper")


def test_the_stages_account_for_the_first_token(server: Serve) -> None:
    with server.client() as client:
        deploy(client, "accounted", idle_s=60)
        answer = ask(client, "accounted")
        client.delete("accounted")
    own_ms = sum(ms for name, ms in answer.stages_ms.items() if not name.startswith("start-"))
    assert answer.ttft_ms is not None
    assert own_ms == pytest.approx(answer.ttft_ms, rel=0.15, abs=30)


def test_a_stream_is_more_than_one_piece(server: Serve) -> None:
    with server.client() as client:
        deploy(client, "pieces", idle_s=60)
        with client.chat("pieces", CAPITAL, max_tokens=24, temperature=0) as answer:
            pieces = list(answer)
        client.delete("pieces")
    assert len(pieces) > 4
    assert "".join(pieces) == answer.text
    assert answer.completion_tokens is not None
    assert answer.completion_tokens >= len(pieces)


def test_nothing_but_a_request_wakes_a_function(server: Serve) -> None:
    with server.client() as client:
        deploy(client, "asleep", idle_s=1)
        for path in ("/v1/models", "/v1/functions", "/v1/functions/asleep", "/health"):
            assert httpx.get(server.endpoint + path).status_code == 200
        assert "asleep" in {
            model["id"] for model in httpx.get(f"{server.endpoint}/v1/models").json()["data"]
        }
        assert httpx.get(f"{server.endpoint}/f/asleep/v1/models").status_code == 200
        assert httpx.get(f"{server.endpoint}/f/asleep/v1/chat/completions").status_code == 405
        assert client.function("asleep")["state"] == "zero"
        client.delete("asleep")


@pytest.mark.slow
def test_200_requests_at_zero_start_one_replica_and_the_201st_is_refused(server: Serve) -> None:
    with server.client() as client:
        deploy(client, "crowd", idle_s=60, queue={"max_requests": 200})
        supervisor = server.supervisor()

        async def crowd() -> list[httpx.Response]:
            limits = httpx.Limits(max_connections=None)
            async with (
                asyncio.timeout(150),
                httpx.AsyncClient(base_url=server.endpoint, limits=limits, timeout=140) as http,
            ):
                body = {"model": "crowd", "messages": CAPITAL, "max_tokens": 4, "temperature": 0}
                url = "/f/crowd/v1/chat/completions"
                waiting = [asyncio.create_task(http.post(url, json=body)) for _ in range(200)]
                await asyncio.to_thread(
                    eventually,
                    lambda: client.function("crowd")["queued"] == 200,
                    what="200 requests wait",
                )
                refused = await http.post(url, json=body)
                supervisor.resume()
                return [refused, *await asyncio.gather(*waiting)]

        supervisor.suspend()  # nothing starts until all of them wait
        try:
            refused, *answers = asyncio.run(crowd())
        finally:
            supervisor.resume()
        client.delete("crowd")
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert [answer.text for answer in answers if answer.status_code != 200] == []
    texts = {answer.json()["choices"][0]["message"]["content"] for answer in answers}
    assert len(texts) == 1  # greedy
    assert server.log().count("crowd: starting replica") == 1


def test_a_killed_replica_ends_its_stream_with_an_error_and_the_next_request_works(
    server: Serve,
) -> None:
    with server.client() as client:
        deploy(client, "victim", idle_s=60)
        with client.chat("victim", STORY, max_tokens=2000, ignore_eos=True) as answer:
            pieces = iter(answer)
            next(pieces)
            server.replica().kill()
            with pytest.raises(Unavailable, match="replica"):
                for _ in pieces:
                    pass
        assert "Paris" in ask(client, "victim").text
        client.delete("victim")


def test_a_client_that_leaves_frees_its_place(server: Serve) -> None:
    with server.client() as client:
        deploy(client, "leaver", idle_s=1, max_seqs=1)
        with client.chat("leaver", STORY, max_tokens=2000, ignore_eos=True) as answer:
            next(iter(answer))
        assert "Paris" in ask(client, "leaver").text  # the one place is free again
        wait_for_state(client, "leaver", "zero")
        client.delete("leaver")
