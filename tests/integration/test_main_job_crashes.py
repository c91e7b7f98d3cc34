"""kill -9 of each process: it is replaced or reported, the functions stay, nothing is left over."""

import os
import shutil
import signal

import httpx
import psutil
import pytest
from serving import MODEL, STORY, Serve, StartServe, ask, assert_all_end, deploy, eventually

from glowplug.errors import Unavailable

pytestmark = pytest.mark.model


def test_a_killed_fork_server_is_replaced_and_its_replicas_live(
    start: StartServe,
) -> None:
    serve = start()
    with serve.client() as client:
        deploy(client, "one", idle_s=60)
        deploy(client, "two", idle_s=60)
        assert "Paris" in ask(client, "one").text
        replica, fork_server = serve.replica(), serve.fork_server()
        fork_server.kill()
        eventually(lambda: not fork_server.is_running(), what="it is dead")
        assert "Paris" in ask(client, "two").text
        assert replica.is_running()
        assert "Paris" in ask(client, "one").text
    assert "fork server: killed by signal 9" in (serve.data / "logs" / "pod.log").read_text()


def test_a_killed_supervisor_takes_its_pod_along_and_is_replaced(
    start: StartServe,
) -> None:
    serve = start()
    with serve.client() as client:
        deploy(client, "one", idle_s=60)
        assert "Paris" in ask(client, "one").text
        supervisor = serve.supervisor()
        pod = [supervisor, *supervisor.children(recursive=True)]
        assert len(pod) >= 3  # fork server and replica at least
        with client.chat("one", STORY, max_tokens=2000, ignore_eos=True) as answer:
            pieces = iter(answer)
            next(pieces)
            supervisor.kill()
            with pytest.raises(Unavailable):
                for _ in pieces:
                    pass
        assert_all_end(pod)
        assert "Paris" in ask(client, "one").text
        assert serve.supervisor() != supervisor
    assert "the pod's supervisor ended (killed by signal 9)" in serve.log()


def test_a_killed_server_leaves_no_orphan_and_forgets_no_function(
    start: StartServe,
) -> None:
    first = start()
    with first.client() as client:
        deploy(client, "kept", idle_s=60, max_seqs=3)
        before = client.function("kept")
        assert "Paris" in ask(client, "kept").text
    below = first.below()
    assert len(below) >= 3  # supervisor, fork server and replica at least
    os.kill(first.pid, signal.SIGKILL)
    first.process.wait()
    assert_all_end(below)

    second = start()
    with second.client() as client:
        after = client.function("kept")
        assert after["state"] == "zero"
        for same in ("spec", "revision", "generation", "snapshot", "created"):
            assert after[same] == before[same]
        assert "Paris" in ask(client, "kept").text


@pytest.mark.slow
def test_a_server_killed_while_it_seals_leaves_no_half_snapshot(
    start: StartServe,
) -> None:
    first = start()
    with first.client() as client:
        client.deploy({"name": "fresh", "model": MODEL, "dtype": "float32"})
        eventually(lambda: sealing_processes(first), what="it seals")
        below = first.below()
    os.kill(first.pid, signal.SIGKILL)
    first.process.wait()
    assert_all_end(below)

    second = start()
    with second.client() as client:
        eventually(lambda: client.function("fresh")["snapshot"], what="it is sealed after all")
        snapshot = client.function("fresh")["snapshot"]
        assert "Paris" in ask(client, "fresh").text
    cache = second.data / "cache"
    assert snapshot in {each.name for each in cache.iterdir()}
    assert list((cache / "tmp").iterdir()) == []
    assert list((cache / "partial").iterdir()) == []


def test_a_restart_keeps_the_functions(start: StartServe) -> None:
    first = start()
    with first.client() as client:
        deploy(client, "stays", idle_s=60)
        deploy(client, "goes", idle_s=60)
        client.delete("goes")
    assert first.stop() == 0
    second = start()
    with second.client() as client:
        assert [function["name"] for function in client.functions()] == ["stays"]
        assert "Paris" in ask(client, "stays").text


def test_a_restart_seals_again_what_was_removed_from_the_cache(start: StartServe) -> None:
    first = start()
    with first.client() as client:
        snapshot = deploy(client, "lost", idle_s=60)["snapshot"]
    assert first.stop() == 0
    shutil.rmtree(first.data / "cache" / snapshot)
    second = start()
    with second.client() as client:
        eventually(lambda: client.function("lost")["snapshot"], what="it is sealed")
        assert client.function("lost")["snapshot"] == snapshot
        assert "Paris" in ask(client, "lost").text


def test_a_graceful_stop_lets_the_answer_finish(start: StartServe) -> None:
    serve = start()
    with serve.client() as client:
        deploy(client, "last", idle_s=60)
        with client.chat("last", STORY, max_tokens=40, ignore_eos=True) as answer:
            pieces = iter(answer)
            next(pieces)
            serve.process.send_signal(signal.SIGTERM)
            for _ in pieces:
                pass
        assert answer.completion_tokens == 40
    assert serve.process.wait(20) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(serve.endpoint)


def test_a_second_signal_stops_at_once(start: StartServe) -> None:
    serve = start()
    with serve.client() as client:
        deploy(client, "long", idle_s=60)
        with client.chat("long", STORY, max_tokens=4000, ignore_eos=True) as answer:
            next(iter(answer))
            below = serve.below()
            serve.process.send_signal(signal.SIGTERM)
            eventually(lambda: is_closed(serve), what="it takes no more connections")
            serve.process.send_signal(signal.SIGTERM)
            assert serve.process.wait(5) == 0
    assert_all_end(below)


def is_closed(serve: Serve) -> bool:
    try:
        httpx.get(f"{serve.endpoint}/health")
    except httpx.TransportError:
        return True
    return False


def sealing_processes(serve: Serve) -> list[psutil.Process]:
    return [each for each in serve.below() if "snapshot.seal_process" in each.cmdline()]
