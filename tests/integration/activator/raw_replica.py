"""Replicas that misbehave on purpose: bare servers that do what the test says."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Connection:
    """One connection to a RawReplica."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def request(self) -> tuple[bytes, bytes]:
        """Head and body of the request."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return head, await self.reader.readexactly(length)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, body: bytes = b'{"ok": true}', *, headers: str = "") -> None:
        """A whole answer."""
        await self.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
            + headers.encode()
            + b"content-length: %d\r\n\r\n" % len(body)
            + body
        )

    async def begin_events(self, headers: str = "") -> None:
        """Headers of a stream of events."""
        await self.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            + headers.encode()
            + b"transfer-encoding: chunked\r\n\r\n"
        )

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n" % len(data) + data + b"\r\n")

    async def until_gone(self) -> None:
        """Wait until the other side has closed the connection."""
        with contextlib.suppress(OSError):
            while await self.reader.read(65536):
                pass

    def reset(self) -> None:
        """Die: the other side sees a reset, as after kill -9 with data unread."""
        connection = self.writer.get_extra_info("socket")
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()


Behaviour = Callable[[Connection], Awaitable[None]]


class RawReplica:
    """A replica that does with each connection what the test says; counts what it has had.

    Until `accept` it only listens: connections wait in the kernel, as before a fork takes over.
    """

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self.open = 0
        self.most_open = 0

    async def accept(self) -> None:
        self._server = await asyncio.start_server(self._serve, sock=self._listener)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await self._behaviour(Connection(reader, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            writer.close()
            self._tasks.discard(task)

    def close(self) -> None:
        """Refuse connections from now on."""
        if self._server is not None:
            self._server.close()
        self._listener.close()

    async def stop(self) -> None:
        self.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
