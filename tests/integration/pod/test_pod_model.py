"""The real program in a real pod: SmolLM2 from its snapshot to an answer, and back to nothing."""

import asyncio
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from glowplug.contracts import ReplicaState, StartKind
from snapshot.manifest import TOKENIZER, WEIGHTS
from snapshot.node_cache import NodeCache

pytestmark = pytest.mark.model

PROGRAM = "runtime.pod.replica:ModelProgram"
STORY = "Tell a long story about a lighthouse."


@pytest.fixture
def digest(sealed_data: Path) -> str:
    """The sealed model's digest."""
    (snapshot,) = NodeCache(sealed_data / "cache").list()
    return snapshot.digest


@pytest.fixture
def model_pod(start_pod: Any, sealed_data: Path) -> Any:
    """Like `start_pod`, with the real program."""
    return lambda *arguments, cache=sealed_data / "cache": start_pod(
        *arguments, program=PROGRAM, cache=cache
    )


def _body(prompt: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return {"model": "f", "messages": messages, "temperature": 0, "max_tokens": 24, **more}


async def _ask(url: str, prompt: str, **more: Any) -> str:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        response = await client.post(f"{url}/v1/chat/completions", json=_body(prompt, **more))
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["message"]["content"])


class _Stream:
    """A streamed answer that is read in a task."""

    def __init__(self, url: str, **more: Any) -> None:
        self.started = asyncio.Event()
        self.events: list[dict[str, Any] | str] = []
        body = _body(STORY, stream=True, ignore_eos=True, **more)
        self.task = asyncio.create_task(self._read(f"{url}/v1/chat/completions", body))

    async def _read(self, url: str, body: dict[str, Any]) -> None:
        async with (
            httpx.AsyncClient(timeout=60, trust_env=False) as client,
            client.stream("POST", url, json=body) as response,
        ):
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    data = line.removeprefix("data: ")
                    self.events.append(data if data == "[DONE]" else json.loads(data))
                    if len(self.events) > 2:
                        self.started.set()

    def error(self) -> str | None:
        return next(
            (e["error"]["message"] for e in self.events if isinstance(e, dict) and "error" in e),
            None,
        )


def test_an_answer_from_a_standby_twice(model_pod: Any, digest: str) -> None:
    """The second start finds the tokenizer in the fork server, and answers the same."""

    async def main() -> None:
        async with model_pod() as pod:
            answers, starts = [], []
            for name in ("r1", "r2"):
                await pod.standbys_are(1)
                pod.assign(name, snapshot=digest, max_seqs=4, kv_cache_bytes=64 << 20)
                starting = await pod.state(name, ReplicaState.STARTING)
                # Before it is ready: the connection waits in the backlog.
                answers.append(await _ask(starting.url, "What is the capital of France?"))
                starts.append(await pod.ready(name))
                pod.release(name)
                assert (await pod.gone(name)).reason == "released"
                assert not psutil.pid_exists(starts[-1].pid)
                await pod.until(lambda: pod.standbys() == 1)
            assert "Paris" in answers[0]
            assert answers[0] == answers[1]
            assert [start.start_kind for start in starts] == [StartKind.SNAPSHOT] * 2
            stages = "standby handover map bind tokenizer engine app server report"
            assert " ".join(starts[0].stages_ms) == stages
            first_ms, second_ms = (start.stages_ms["tokenizer"] for start in starts)
            assert second_ms < first_ms / 10
            assert psutil.Process(await pod.fork_server()).num_threads() == 1

    asyncio.run(main())


def test_a_sleeping_replica_gives_its_memory_back_and_answers_again(
    model_pod: Any, digest: str
) -> None:
    async def main() -> None:
        async with model_pod() as pod:
            await pod.standbys_are(1)
            pod.assign("r1", snapshot=digest, max_seqs=4, kv_cache_bytes=256 << 20)
            replica = await pod.ready("r1")
            process = psutil.Process(replica.pid)
            text = " ".join(f"{n} bottles" for n in range(200))  # some hundred tokens
            awake = await _ask(replica.url, "What is the capital of Italy?")
            before = process.memory_full_info().uss
            await _ask(replica.url, text)
            used = process.memory_full_info().uss
            pod.sleep("r1")
            await pod.asleep("r1", True)
            slept = process.memory_full_info().uss
            assert used - before > 12 << 20  # 23 KB a token
            assert slept < used - (12 << 20)
            assert await _ask(replica.url, "What is the capital of Italy?") == awake
            await pod.asleep("r1", False)
            pod.sleep("r1")
            await pod.asleep("r1", True)
            pod.release("r1")
            assert (await pod.gone("r1")).reason == "released"

    asyncio.run(main())


def test_a_standby_costs_little_and_replicas_share_the_weights(
    model_pod: Any, digest: str, sealed_data: Path
) -> None:
    async def main() -> None:
        async with model_pod("--standbys", "2") as pod:
            await pod.standbys_are(2)
            standby = psutil.Process(pod.forked()[0]).memory_full_info()
            assert standby.uss < 100 << 20
            for name in ("r1", "r2"):
                pod.assign(name, snapshot=digest, max_seqs=4, kv_cache_bytes=64 << 20)
            replicas = [await pod.ready(name) for name in ("r1", "r2")]
            for replica in replicas:
                await _ask(replica.url, "Hello")
            weights_bytes = (sealed_data / "cache" / digest / WEIGHTS).stat().st_size
            for replica in replicas:
                memory = psutil.Process(replica.pid).memory_full_info()
                assert memory.rss > weights_bytes
                assert memory.uss < weights_bytes  # its own, shared with nobody

    asyncio.run(main())


def test_replicas_do_not_share_randomness(model_pod: Any, digest: str) -> None:
    async def main() -> None:
        async with model_pod("--standbys", "2") as pod:
            await pod.standbys_are(2)
            answers = []
            for name in ("r1", "r2"):
                pod.assign(name, snapshot=digest, max_seqs=4, kv_cache_bytes=64 << 20)
                url = (await pod.ready(name)).url
                answers.append(await _ask(url, STORY, temperature=1.5))
            assert answers[0] != answers[1]

    asyncio.run(main())


def test_a_release_lets_streams_finish_and_refuses_new_requests(
    model_pod: Any, digest: str
) -> None:
    async def main() -> None:
        async with model_pod() as pod:
            pod.assign("r1", snapshot=digest, max_seqs=4, kv_cache_bytes=64 << 20)
            url = (await pod.ready("r1")).url
            stream = _Stream(url, max_tokens=40)
            await stream.started.wait()
            pod.release("r1", drain_s=60.0)
            await pod.state("r1", ReplicaState.DRAINING)
            async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
                while (await client.get(f"{url}/ready")).status_code == 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                refused = await client.post(f"{url}/v1/chat/completions", json=_body("Hello"))
            assert refused.status_code == 503
            assert "retry-after" in refused.headers
            await stream.task
            assert stream.events[-1] == "[DONE]"
            assert stream.error() is None
            assert (await pod.gone("r1")).reason == "released"

    asyncio.run(main())


def test_over_the_drain_limit_streams_end_with_an_error(model_pod: Any, digest: str) -> None:
    async def main() -> None:
        async with model_pod() as pod:
            pod.assign("r1", snapshot=digest, max_seqs=4, kv_cache_bytes=64 << 20)
            url = (await pod.ready("r1")).url
            stream = _Stream(url, max_tokens=1500)
            await stream.started.wait()
            pod.release("r1", drain_s=0.2)
            assert (await pod.gone("r1", 10)).reason == "released"
            await stream.task
            assert stream.error() is not None
            assert "shutting down" in stream.error()  # type: ignore[operator]

    asyncio.run(main())


def test_a_killed_replica_cuts_its_streams_and_is_reported(model_pod: Any, digest: str) -> None:
    async def main() -> None:
        async with model_pod() as pod:
            pod.assign("r1", snapshot=digest, max_seqs=4, kv_cache_bytes=64 << 20)
            ready = await pod.ready("r1")
            stream = _Stream(ready.url, max_tokens=1500)
            await stream.started.wait()
            os.kill(ready.pid, signal.SIGKILL)
            assert (await pod.gone("r1")).reason == "killed by signal 9"
            with pytest.raises(httpx.TransportError):
                await stream.task
            pod.assign("r2", snapshot=digest, max_seqs=4, kv_cache_bytes=64 << 20)
            assert "Paris" in await _ask(
                (await pod.ready("r2")).url, "What is the capital of France?"
            )

    asyncio.run(main())


def test_a_killed_supervisor_takes_a_busy_replica_with_it(model_pod: Any, digest: str) -> None:
    async def main() -> None:
        async with model_pod() as pod:
            pod.assign("r1", snapshot=digest, max_seqs=4, kv_cache_bytes=64 << 20)
            stream = _Stream((await pod.ready("r1")).url, max_tokens=1500)
            await stream.started.wait()
            os.kill(pod.supervisor.pid, signal.SIGKILL)
            await pod.all_gone(3.0)
            with pytest.raises(httpx.TransportError):
                await stream.task

    asyncio.run(main())


def test_an_engine_that_crashes_ends_its_replica(
    start_pod: Any, digest: str, sealed_data: Path
) -> None:
    async def main() -> None:
        program = "crashing_program:CrashingProgram"
        async with start_pod(program=program, cache=sealed_data / "cache") as pod:
            pod.assign("r1", snapshot=digest, max_seqs=4, kv_cache_bytes=64 << 20)
            url = (await pod.ready("r1")).url
            async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
                response = await client.post(f"{url}/v1/chat/completions", json=_body("Hello"))
            assert response.status_code == 503
            assert "the engine of this replica crashed" in response.json()["error"]["message"]
            gone = await pod.gone("r1", 10)
            assert gone.reason == "the engine crashed; the pod's log says why"
            assert "a cosmic ray" in pod.log()

    asyncio.run(main())


def test_bad_snapshots_are_told_in_plain_words(
    model_pod: Any, digest: str, sealed_data: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "copy"
    shutil.copytree(sealed_data / "cache" / digest, cache / digest)
    tokenizer = cache / digest / TOKENIZER
    good = tokenizer.read_bytes()

    async def main() -> None:
        async with model_pod(cache=cache) as pod:
            missing = "sha256-" + "0" * 64
            pod.assign("none", snapshot=missing)
            assert (await pod.gone("none")).reason == (
                f"no snapshot '{missing}' on this node; seal its model"
            )

            tokenizer.write_bytes(b"{" + b" " * (len(good) - 1))
            pod.assign("tokenizer", snapshot=digest)
            reason = (await pod.gone("tokenizer")).reason
            assert TOKENIZER in reason
            assert "its bytes changed" in reason
            quarantine = cache / "quarantine" / digest
            assert reason in (quarantine / "reason.txt").read_text()
            quarantine.rename(cache / digest)
            tokenizer.write_bytes(good)

            pod.assign("small", snapshot=digest, kv_cache_bytes=1024)
            assert "kv_cache_bytes" in (await pod.gone("small")).reason

            with (cache / digest / WEIGHTS).open("r+b") as weights:
                weights.truncate(1 << 20)
            pod.assign("truncated", snapshot=digest)
            assert WEIGHTS in (await pod.gone("truncated")).reason
            assert (await pod.gone("truncated")).snapshot_lost
            assert not (cache / digest).exists()
            assert "Traceback" not in pod.log()

    asyncio.run(main())
