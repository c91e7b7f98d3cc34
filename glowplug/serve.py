"""`glowplug serve`: all of Glowplug on one machine, wired together here and nowhere else.

One asyncio process with the activator and the scaler, and one pod: a child process tree that the
fleet starts and that ends with this process, however this process ends. Nothing here imports torch.

    serve → lock the data folder → bind the port → [event loop: _serve] → unlock
"""

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path

import uvicorn
import uvloop
from starlette.types import ASGIApp

from glowplug.errors import Conflict, GlowplugError

BACKLOG = 2048
DRAIN_S = 15  # how long a stop waits for the requests that run
OPEN_FILES = 65_536  # each request in flight takes two
LOG_BYTES = 32 * 2**20
LOG_FILES = 3

log = logging.getLogger("glowplug")


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """What `glowplug serve` is told."""

    host: str
    port: int  # 0: a free one
    data: Path  # holds registry.sqlite, cache/, logs/ and lock
    standbys: int
    keys: Path | None  # API keys; None: no authentication
    public_url: str | None  # how clients reach this server; None: as each request's Host says
    log_level: str


def serve(settings: ServeSettings) -> None:
    """Serve until SIGINT or SIGTERM, then drain and return; a second signal stops at once.

    Raises:
        GlowplugError: the data folder is in use, or the port cannot be listened on.
    """
    with data.locked(), _listening(settings.host, settings.port) as listener:
        _log_to(settings.data / "logs", settings.log_level)
        _raise_open_files()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, listener))


class _Server(uvicorn.Server):
    """uvicorn, with our line on stdout once it listens and our handling of signals."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            sys.stdout.write(f"glowplug listening on {_url(sockets[0])}\n")
            sys.stdout.flush()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """First signal: stop gracefully; second: at once. Unlike uvicorn's, the exit code is 0."""
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, self._stop)
        yield

    def _stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """A listening socket, bound before anything else starts so that the real port is known."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            reason = "it is in use; stop what listens there or choose another --port"
        else:
            reason = getattr(error, "strerror", None) or str(error)
        raise GlowplugError(f"cannot listen on {host} port {port}: {reason}") from None
    with listener:
        yield listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _log_to(folder: Path, level: str) -> None:
    """Log to stderr and to a bounded file; stdout stays free for the one line."""
    folder.mkdir(exist_ok=True)
    file = RotatingFileHandler(folder / "serve.log", maxBytes=LOG_BYTES, backupCount=LOG_FILES)
    logging.basicConfig(
        level=level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=[logging.StreamHandler(sys.stderr), file],
    )


def _raise_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
