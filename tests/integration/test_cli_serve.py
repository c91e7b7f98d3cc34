"""`glowplug serve` as a process: what it says, what it refuses, how it starts and stops."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from serving import Serve, StartServe, assert_all_end, eventually, start_serve


def refused(*options: str) -> str:
    """The one line that a `glowplug serve` says which cannot start."""
    command = [sys.executable, "-m", "glowplug", "serve", "--port", "0", *options]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
    assert ended.returncode == 1
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Serve]:
    serve = start_serve(tmp_path / "data")
    yield serve
    below = serve.below() if serve.process.poll() is None else []
    serve.stop()
    assert_all_end(below)


def test_it_listens_soon_and_says_nothing_else(tmp_path: Path) -> None:
    started_s = time.monotonic()
    serve = start_serve(tmp_path / "data")
    took_s = time.monotonic() - started_s
    try:
        assert httpx.get(f"{serve.endpoint}/health").status_code == 200
        assert httpx.get(f"{serve.endpoint}/ready").status_code == 200
        assert (serve.data / "registry.sqlite").exists()
        serve.process.send_signal(signal.SIGINT)
        rest, _ = serve.process.communicate(timeout=20)
    finally:
        serve.stop()
    assert serve.process.returncode == 0
    assert rest == ""
    assert took_s < 4  # under 2 s on a quiet machine


def test_the_serving_process_has_no_torch(empty: Serve) -> None:
    empty.supervisor()
    maps = Path(f"/proc/{empty.pid}/maps").read_text()
    assert "libtorch" not in maps
    assert "uvloop" in maps
    assert "httptools" in maps


def test_a_new_function_has_no_forecast_yet(empty: Serve) -> None:
    with empty.client() as client:
        client.deploy({"name": "f", "model": "/none", "timezone": "Asia/Tokyo"})
        report = client.forecast("f", hours=3)
    assert (report["function"], report["timezone"]) == ("f", "Asia/Tokyo")
    assert (report["acts"], report["reason"]) == (False, "no traffic history yet")
    assert (report["past"], report["ahead"]) == (None, None)


def test_one_server_a_data_folder(empty: Serve) -> None:
    line = refused("--data", str(empty.data))
    assert f"is in use by another glowplug serve (pid {empty.pid})" in line


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused("--data", str(tmp_path), "--port", str(port))
    assert line == (
        f"error: cannot listen on 127.0.0.1 port {port}: it is in use; stop what listens there or "
        "choose another --port"
    )


def test_a_host_that_is_not_this_machine(tmp_path: Path) -> None:
    assert "cannot listen on 192.0.2.1" in refused("--data", str(tmp_path), "--host", "192.0.2.1")


def test_a_data_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "Not a directory" in refused("--data", str(tmp_path / "file" / "data"))


def test_a_registry_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "registry.sqlite").write_text("not a database " * 100)
    assert "registry.sqlite" in refused("--data", str(tmp_path))


def test_a_keys_file_that_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("short a\n")
    assert "line 1" in refused("--data", str(tmp_path), "--keys", str(tmp_path / "keys"))


def test_ipv6(tmp_path: Path) -> None:
    serve = start_serve(tmp_path / "data", "--host", "::1")
    try:
        assert serve.endpoint.startswith("http://[::1]:")
        assert httpx.get(f"{serve.endpoint}/health").status_code == 200
    finally:
        assert serve.stop() == 0


def test_the_public_url_is_what_clients_are_told(tmp_path: Path) -> None:
    serve = start_serve(tmp_path / "data", "--public-url", "https://models.example.com/")
    try:
        with serve.client() as client:
            function = client.deploy({"name": "named", "model": "/none"})
        assert function["invoke_url"] == "https://models.example.com/f/named"
    finally:
        assert serve.stop() == 0


def test_standbys_are_kept_ready(tmp_path: Path) -> None:
    serve = start_serve(tmp_path / "data", "--standbys", "2")
    try:
        pod = serve.supervisor()
        deadline_s = time.monotonic() + 30
        while len(pod.children(recursive=True)) < 3:  # the fork server and two standbys
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        below = serve.below()
    finally:
        assert serve.stop() == 0
    assert_all_end(below, limit_s=1)  # gone when serve has ended


def test_the_lock_dies_with_its_holder(start: StartServe) -> None:
    first = start()
    below = first.below()
    psutil.Process(first.pid).kill()
    first.process.wait()
    second = start()
    assert httpx.get(f"{second.endpoint}/health").status_code == 200
    assert_all_end(below)


def test_what_is_no_http_gets_an_error_in_json(empty: Serve) -> None:
    host, port = empty.endpoint.removeprefix("http://").split(":")
    for request in (b"\x16\x03\x01 TLS here\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"what\r\n\r\n"):
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(request)
            head, _, body = client.makefile("rb").read().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b"content-type: application/json" in head
        assert json.loads(body)["error"]["code"] == "invalid_http"


def test_a_second_signal_stops_at_once_and_leaves_nothing_open(tmp_path: Path) -> None:
    serve = start_serve(tmp_path / "data")
    host, port = serve.endpoint.removeprefix("http://").split(":")

    def refuses() -> bool:
        try:
            socket.create_connection((host, int(port))).close()
        except ConnectionRefusedError:
            return True
        return False

    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n"
            b"expect: 100-continue\r\n\r\n"
        )
        assert client.recv(100).startswith(b"HTTP/1.1 100")  # and waits for the body
        serve.process.send_signal(signal.SIGINT)
        eventually(refuses, what="it stops")
        began_s = time.monotonic()
        serve.process.send_signal(signal.SIGINT)
        serve.process.communicate(timeout=20)
    assert time.monotonic() - began_s < 10  # a graceful stop would wait for 15 s
    assert serve.process.returncode == 0
    errors = (serve.data / "stderr.txt").read_text()
    assert "nclosed" not in errors
    assert "Traceback" not in errors
