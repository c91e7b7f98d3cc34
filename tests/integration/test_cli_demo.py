"""`glowplug demo`, which `make run` runs: what it shows, and that it cleans up however it ends."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from serving import assert_all_end

pytestmark = [pytest.mark.model, pytest.mark.slow]


@contextmanager
def demo(data: Path, *options: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "glowplug", "demo", "--data", str(data), *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: "subprocess.Popen[str]", text: str) -> str:
    """The demo's output so far, up to the line with `text`."""
    shown = ""
    assert process.stdout is not None
    for line in process.stdout:
        shown += line
        if text in line:
            return shown
    pytest.fail(f"it ended without saying {text!r}:\n{shown}")


def test_it_shows_two_cold_calls_and_a_warm_one(data: Path) -> None:
    with demo(data, "--once") as process:
        shown, _ = process.communicate(timeout=120)
        assert process.returncode == 0
    assert len(re.findall(r"(?s)sky.*?blue.*?\n", shown)) >= 3
    table = {row.split()[0]: row.split() for row in shown.splitlines() if row.split()}
    assert table["replica"][3:] in (["cache", "snapshot", "warm"], ["snapshot", "snapshot", "warm"])
    assert table["start"][-1] == "–"  # the warm call has no start
    assert float(table["first"][2]) > float(table["first"][4]) > 0
    assert all(float(rate) > 1 for rate in table["tokens/s"][1:])


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_told_to_end(data: Path, how: signal.Signals) -> None:
    with demo(data) as process:
        shown = read_until(process, "Serving until Ctrl-C")
        invoke_url = re.search(r"curl -N (\S+)/v1/chat/completions", shown)
        assert invoke_url is not None
        assert httpx.get(f"{invoke_url[1]}/v1/models").status_code == 200
        below = psutil.Process(process.pid).children(recursive=True)
        assert len(below) >= 2
        process.send_signal(how)
        assert process.wait(20) == 0
    assert_all_end(below, limit_s=1)


def test_it_cleans_up_when_it_is_stopped_early(data: Path) -> None:
    with demo(data) as process:
        read_until(process, "Call at zero")
        below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert_all_end(below, limit_s=1)
