"""A program for pods under test: a real HTTP server, and no model.

What a replica does is said by its assignment's `function`, a list of words: `slow-start`,
`fail-start`, `broken-start`, `exit-start`, `hang-start`, `ignore-drain`, `measure` (say so when it
is ready, and how many it has answered when it is drained). Answers to GET: /pid,
/random, /expected, /slow (1 s), /crash, /threads.
"""

import asyncio
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

from glowplug.errors import SnapshotError
from runtime.pod import child_wire
from runtime.pod.program import Settings, Start


def _hang() -> None:
    time.sleep(3600)  # with the event loop


class HttpProgram:
    """Implements runtime.pod.program.Program."""

    def __init__(self, settings: Settings) -> None:
        if os.environ.get("POD_TEST_BREAK") == "import":
            raise ImportError("no module named torch")
        flag = os.environ.get("POD_TEST_BREAK_IMPORT_WHILE")
        if flag and Path(flag).exists():
            if Path(flag).read_text() == "other words":
                child_wire.VOCABULARY = "of another version"
            else:
                raise ImportError("half of an upgrade")
        if os.environ.get("POD_TEST_BREAK") == "thread":
            threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
        self.accelerator = "test-chip"
        self._settings = settings
        self._expected: list[str] = []

    def expect(self, snapshot: str) -> None:
        """Remember it; some cannot be."""
        if snapshot == "broken":
            raise RuntimeError("cannot expect this")
        self._expected.append(f"{snapshot}@{os.getpid()}")

    def warm(self, *, hurry: bool) -> None:
        """Fail when a test says so."""
        flag = os.environ.get("POD_TEST_BREAK_WARM_WHILE")
        if flag and Path(flag).exists():
            raise MemoryError("no memory to warm up")

    async def serve(self, start: Start) -> None:
        """Serve until drained."""
        words = start.assignment.function.split()
        if "slow-start" in words:
            await asyncio.sleep(0.5)
        if "hang-start" in words:
            _hang()
        if "fail-start" in words:
            raise SnapshotError("weights.safetensors: truncated; seal it again")
        if "broken-start" in words:
            raise RuntimeError("a bug")
        if "exit-start" in words:
            print("last words", file=sys.stderr)
            sys.stderr.flush()
            os._exit(3)
        start.stopwatch.lap("restore")
        running: set[asyncio.Task[None]] = set()
        answered = 0

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal answered
            answered += 1
            running.add(asyncio.current_task())  # type: ignore[arg-type]
            request = await reader.readuntil(b"\r\n\r\n")
            path = request.split()[1].decode()
            body = str(os.getpid())
            if path == "/random":
                body = str(random.random())
            elif path == "/threads":
                body = str(self._settings.threads)
            elif path == "/expected":
                body = " ".join(self._expected)
            elif path == "/slow":
                await asyncio.sleep(1.0)
            elif path == "/crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n")
            writer.write(f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, sock=start.listener)
        start.stopwatch.lap("server")
        start.ready()
        print(f"serving {start.assignment.snapshot}")
        if "measure" in words:
            start.measured("answered 0\n")  # a socket pair keeps packets' order and borders
        drain_s = await start.drain
        if "ignore-drain" in words:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            await asyncio.sleep(3600)
        server.close()
        if running:
            await asyncio.wait(running, timeout=drain_s)
        if "measure" in words:
            start.measured(f"answered {answered}\n")
