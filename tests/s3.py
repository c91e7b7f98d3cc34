"""An S3 for tests: moto's server in its own process, and a proxy that counts and breaks things."""

import contextlib
import http.client
import http.server
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

BUCKET = "models"
START_LIMIT_S = 30.0
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}

Fault = Callable[[str, bytes], bytes | None]
"""Gets an answer's path and body; gives the body to send (short: the connection then breaks), or
None for a 503."""


@dataclass
class Proxy:
    """Stands before moto; `endpoint` is where clients go. `fault` applies to answered ranges."""

    endpoint: str
    fetched: Counter[str] = field(default_factory=Counter)  # body bytes of ranges sent, by file
    requests: Counter[str] = field(default_factory=Counter)  # by method
    fault: Fault | None = None
    block_s: float = 0.0  # wait before each ranged answer
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reset(self) -> None:
        self.fetched.clear()
        self.requests.clear()
        self.fault = None
        self.block_s = 0.0


@contextlib.contextmanager
def moto_server() -> Iterator[int]:
    """moto on a free port of the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline_s = time.monotonic() + START_LIMIT_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, "moto ended at once"
            assert time.monotonic() < deadline_s, "moto does not listen"
            time.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def counting_proxy(port: int) -> Iterator[Proxy]:
    """A proxy before the server on this port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = self.rfile.read(length) if length else None
            upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            try:
                headers = {k: v for k, v in self.headers.items() if k.lower() != "expect"}
                upstream.request(self.command, self.path, body=body, headers=headers)
                answer = upstream.getresponse()
                data = answer.read()
                self._answer(answer, data)
            finally:
                upstream.close()

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _forward  # noqa: N815

        def _answer(self, answer: http.client.HTTPResponse, data: bytes) -> None:
            is_range = self.command == "GET" and "range" in self.headers
            sent: bytes | None = data
            with proxy.lock:
                proxy.requests[self.command] += 1
                if is_range and proxy.fault is not None:
                    sent = proxy.fault(self.path, data)
            if is_range and proxy.block_s:
                time.sleep(proxy.block_s)
            if sent is None:
                self.send_response(503)
                self.send_header("content-length", "0")
                self.end_headers()
                return
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "content-length", "transfer-encoding"):
                    self.send_header(name, value)
            size = answer.getheader("content-length") if self.command == "HEAD" else len(data)
            self.send_header("content-length", str(size or 0))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(sent)
                if is_range:
                    with proxy.lock:
                        proxy.fetched[self.path.rpartition("/")[2].partition("?")[0]] += len(sent)
            if len(sent) < len(data):
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:  # clients that were killed
            pass

    server = Server(("127.0.0.1", 0), Handler)
    proxy = Proxy(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
