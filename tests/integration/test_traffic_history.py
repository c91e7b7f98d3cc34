"""A function's traffic history through a real server: what is counted, kept, exported, imported."""

import csv
import io
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from serving import Serve, StartServe, ask, deploy

pytestmark = pytest.mark.model

TRACES = Path(__file__).parents[3] / "shared" / "traces"


def glowplug(server: Serve, *arguments: str, code: int = 0) -> str:
    """What a command prints to stdout, or to stderr where it fails with this code."""
    done = subprocess.run(
        [sys.executable, "-m", "glowplug", *arguments, "--endpoint", server.endpoint],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def sums(server: Serve, function: str) -> tuple[int, int, float, int]:
    """Arrivals, finished, their seconds at a replica, and the highest peak."""
    rows = json.loads(glowplug(server, "history", function, "--json"))["minutes"]
    return (
        sum(row["arrivals"] for row in rows),
        sum(row["finished"] for row in rows),
        sum(row["service_s"] for row in rows),
        max((row["peak"] for row in rows), default=0),
    )


def test_every_request_is_counted_once_over_restarts(start: StartServe) -> None:
    server = start()
    with server.client() as client:
        deploy(client, "counted", idle_s=60)
        warm = httpx.post(f"{server.endpoint}/f/counted/warm", timeout=60)
        warm.raise_for_status()  # is no request
        assert sums(server, "counted") == (0, 0, 0, 0)
        began_s = time.monotonic()
        ask(client, "counted")
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: _ask(server), range(4)))
        took_s = time.monotonic() - began_s
        refused = httpx.post(
            f"{server.endpoint}/f/counted/v1/chat/completions",
            json={"model": "counted"},
            timeout=60,
        )
        assert refused.status_code == 400  # by the replica: it came, and was served
        arrivals, finished, service_s, peak = sums(server, "counted")
        assert (arrivals, finished) == (6, 6)
        assert 2 <= peak <= 4
        assert 0 < service_s < 5 * took_s
        client.deploy(client.function("counted")["spec"] | {"idle_s": 30})  # another deployment
        ask(client, "counted")
    assert server.stop() == 0

    server = start()
    again = sums(server, "counted")
    assert again[:2] == (7, 7)
    assert again[2] > service_s
    with server.client() as client:
        ask(client, "counted")
    assert sums(server, "counted")[:2] == (8, 8)
    server.process.kill()  # what was read was written
    server.process.communicate()

    server = start()
    assert sums(server, "counted")[:2] == (8, 8)


def _ask(server: Serve) -> None:
    with server.client() as client:
        ask(client, "counted")


def test_an_export_is_imported_as_it_was(server: Serve, tmp_path: Path) -> None:
    with server.client() as client:
        for name in ("exported", "imported"):
            deploy(client, name)
        ask(client, "exported")
    text = glowplug(server, "history", "export", "exported")
    rows = list(csv.DictReader(io.StringIO(text)))  # two where a minute ended in between
    assert [sum(int(row[each]) for row in rows) for each in ("arrivals", "finished")] == [1, 1]
    assert {row["peak"] for row in rows} == {"1"}
    file = tmp_path / "history.csv"
    file.write_text(text)
    for _ in range(2):  # the second replaces the first
        said = glowplug(server, "history", "import", "imported", str(file))
        assert f"imported {len(rows)} minutes, 1 requests" in said
        assert glowplug(server, "history", "export", "imported") == text
    table = glowplug(server, "history", "imported", "--since", "2h")
    (total,) = [line.split() for line in table.splitlines() if line.split()[:1] == ["all"]]
    assert total[1:4] == ["1", "1", "1"]


def test_a_wrong_file_changes_nothing(server: Serve, tmp_path: Path) -> None:
    with server.client() as client:
        deploy(client, "careful")
        ask(client, "careful")
    before = glowplug(server, "history", "export", "careful")
    file = tmp_path / "history.csv"
    file.write_text(before + "2019-01-01T00:00Z,1,1,1,1.0\n")
    said = glowplug(server, "history", "import", "careful", str(file), code=1)
    assert said == (
        f"error: {file} line {len(before.splitlines()) + 1}: its minute is not after that of the "
        "row before; sort the rows\n"
    )
    answer = httpx.put(
        f"{server.endpoint}/v1/functions/careful/history",
        content=b"minute,arrivals,peak,finished,service_s\n2019-01-01T00:00Z,1,1,1,1.0\n",
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("line 2: 2019-01-01T00:00Z is before")
    too_large = httpx.put(
        f"{server.endpoint}/v1/functions/careful/history", content=b"\n" * (8 * 2**20 + 1)
    )
    assert too_large.status_code == 413
    assert glowplug(server, "history", "export", "careful") == before
    for path in ("nobody", "careful"):
        answer = httpx.get(
            f"{server.endpoint}/v1/functions/{path}/history", params={"since": "soon"}
        )
        assert answer.status_code == (404 if path == "nobody" else 400)
    assert "there is no function" in glowplug(server, "history", "nobody", code=1)


def test_a_trace_is_imported_into_the_last_week(server: Serve) -> None:
    trace = TRACES / "AzureLLMInferenceTrace_code.csv.gz"
    if not trace.exists():
        pytest.skip(f"{trace} is not there")
    with server.client() as client:
        deploy(client, "traced")
    arguments = ("history", "import", "traced", str(trace), "--format", "azure-llm")
    said = glowplug(server, *arguments, "--shift")
    assert "8819 requests" in said
    arrivals, finished, service_s, peak = sums(server, "traced")
    assert (arrivals, finished) == (8819, 8819)
    assert service_s == pytest.approx(2 * 8819)
    assert 5 < peak < 1000
    assert "before the oldest minute" in glowplug(server, *arguments, code=1)


def test_history_needs_an_admin_key(start: StartServe, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("boss-boss-boss-boss ops admin\nuser-user-user-user team\n")
    server = start("--keys", str(keys))
    url = f"{server.endpoint}/v1/functions/f/history"
    for key, status in (("user-user-user-user", 403), ("boss-boss-boss-boss", 404)):
        headers = {"authorization": f"Bearer {key}"}
        assert httpx.get(url, headers=headers).status_code == status
        assert httpx.put(url, headers=headers, content=b"x").status_code == status
    assert httpx.get(url).status_code == 401
