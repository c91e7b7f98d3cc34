"""OutputLog: what a pod's supervisor prints, copied into a log file whose size is bounded.

On the event loop. The file is the pod's last words: normally empty, but a process that complains in
a loop must not fill the disk.
"""

import asyncio
import logging
import os
from logging.handlers import RotatingFileHandler
from pathlib import Path

_LOG_BYTES = 4 * 2**20
_OLDER_FILES = 1
_LAST_WORDS_S = 1.0


class OutputLog(asyncio.Protocol):
    """The read end of the pipe `write_end`, which is for the process."""

    def __init__(self, path: Path) -> None:
        """Raises OSError: the file cannot be opened."""
        self._file = RotatingFileHandler(path, maxBytes=_LOG_BYTES, backupCount=_OLDER_FILES)
        self._file.terminator = ""
        self._read_end, self.write_end = os.pipe()
        self._ended = asyncio.Event()
        self._transport: asyncio.BaseTransport | None = None

    async def open(self) -> None:
        """Begin to copy; once the process has its end."""
        os.close(self.write_end)
        loop = asyncio.get_running_loop()
        pipe = os.fdopen(self._read_end, "rb", buffering=0)
        self._transport, _ = await loop.connect_read_pipe(lambda: self, pipe)

    def discard(self) -> None:
        """Instead of `open`, where there is no process."""
        os.close(self.write_end)
        os.close(self._read_end)
        self._file.close()

    async def close(self) -> None:
        """Take what is left; a process that still holds the pipe is not waited for."""
        try:
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._ended.wait()
        except TimeoutError:
            pass
        finally:
            if self._transport is not None:
                self._transport.close()
            self._file.close()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._file.handle(logging.makeLogRecord({"msg": data.decode(errors="replace")}))

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._ended.set()
