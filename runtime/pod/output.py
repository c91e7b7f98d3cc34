"""What the pod's processes print, line by line into the pod's log, and the last line kept.

On the supervisor's event loop. One pipe a process; the log is the `glowplug.pod` logger's.
"""

import asyncio
import logging
import os
from logging.handlers import RotatingFileHandler
from pathlib import Path

log = logging.getLogger("glowplug.pod")

LOG_FILE = "pod.log"
_LOG_BYTES = 16 * 2**20
_MAX_LINE_BYTES = 8192


def open_log(folder: Path | None) -> None:
    """Send the pod's log to `folder`/pod.log (three files of 16 MiB at most), or to stderr."""
    handler: logging.Handler = logging.StreamHandler()
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        handler = RotatingFileHandler(folder / LOG_FILE, maxBytes=_LOG_BYTES, backupCount=2)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger().addHandler(handler)  # the event loop's complaints too
    log.setLevel(logging.INFO)


class Output:
    """The read end of one process's stdout and stderr.

    `name` starts each of its lines in the log and may change; `write_end` is for the process.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.last_line = ""
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._partial = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read_end, self._read)

    def close_write_end(self) -> None:
        """Once the process has it."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def finish(self) -> str:
        """Take what is left after the process's end and close; the last line that says anything."""
        self.close_write_end()
        while self._read():
            pass
        self._close()
        return self.last_line

    def _read(self) -> bool:
        """Whether there may be more."""
        if self._read_end < 0:
            return False
        try:
            data = os.read(self._read_end, 1 << 16)
        except BlockingIOError:
            return False
        if data:
            self._take(data)
        else:
            self._close()
        return bool(data)

    def _take(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > _MAX_LINE_BYTES:
            lines.append(self._partial)
            self._partial = b""
        for line in lines:
            if text := line[:_MAX_LINE_BYTES].decode(errors="replace").rstrip():
                self.last_line = text.strip()
                log.info("%s: %s", self.name, text)

    def _close(self) -> None:
        if self._read_end >= 0:
            self._take(b"\n")  # ends a last line that has no end
            self._loop.remove_reader(self._read_end)
            os.close(self._read_end)
            self._read_end = -1
