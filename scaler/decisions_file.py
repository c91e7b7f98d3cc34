"""The decision log on disk, so that a restart of the server does not forget why: written every few
seconds in a thread of its own, read once at the start.

kill -9 loses the last seconds; a file that cannot be written is said in the log and tried again.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from glowplug.contracts import Registry
from glowplug.errors import GlowplugError
from glowplug.explanation import KEPT, Event
from scaler.decisions import DecisionLog
from scaler.sqlite_file import Schema, in_words, open_file

FLUSH_S = 2.0

_SCHEMA = Schema(
    what="decision log",
    version=1,
    create=(
        """CREATE TABLE events (
            function TEXT NOT NULL,
            id INTEGER NOT NULL,
            event TEXT NOT NULL,  -- glowplug.explanation.Event as JSON
            PRIMARY KEY (function, id)
        ) WITHOUT ROWID""",
    ),
    upgrades={},
    power_safe=False,
)
_EVENT: TypeAdapter[Event] = TypeAdapter(Event)
_log = logging.getLogger(__name__)


class DecisionsFile:
    """The rows. Blocking; one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Raises GlowplugError: it cannot be opened, or is no such file."""
        self._path = path
        self._connection = open_file(path, _SCHEMA)

    def read(self) -> dict[str, list[Event]]:
        """The events of each function, in order. What another version wrote in another form is
        left out. Raises GlowplugError."""
        found: dict[str, list[Event]] = {}
        try:
            rows = self._connection.execute("SELECT function, event FROM events ORDER BY 1, id")
            for function, event in rows:
                with suppress(ValidationError):
                    found.setdefault(function, []).append(_EVENT.validate_json(event))
        except sqlite3.Error as error:
            raise in_words(self._path, _SCHEMA, error) from None
        return found

    def write(self, forgotten: Collection[str], events: Sequence[tuple[str, Event]]) -> None:
        """Drop these functions' events, then add these; all of it or nothing. Of each function the
        newest are kept. Raises GlowplugError."""
        rows = [(name, event.id, _EVENT.dump_json(event).decode()) for name, event in events]
        oldest = {name: event.id - KEPT + 1 for name, event in events}
        try:
            self._connection.execute("BEGIN")
            try:
                self._connection.executemany(
                    "DELETE FROM events WHERE function = ?", [(name,) for name in forgotten]
                )
                self._connection.executemany("INSERT OR REPLACE INTO events VALUES (?, ?, ?)", rows)
                self._connection.executemany(
                    "DELETE FROM events WHERE function = ? AND id < ?", oldest.items()
                )
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise in_words(self._path, _SCHEMA, error) from None

    def close(self) -> None:
        """Nothing may be called after it."""
        self._connection.close()


class KeptDecisions:
    """A decision log, `log`, and the file that it is kept in."""

    def __init__(self, path: Path) -> None:
        """Open or create the file and read it; blocks for some milliseconds.

        Raises:
            GlowplugError: it cannot be opened or read, or is no such file.
        """
        self._file = DecisionsFile(path)
        self.log = DecisionLog(self._file.read())
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="decisions")
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def start(self, registry: Registry) -> None:
        """Forget what is not deployed any more, and begin to write."""
        deployed = {function.spec.name for function in await registry.list()}
        for name in self.log.functions - deployed:
            self.log.forget(name)
        self._task = asyncio.create_task(self._run(), name="decision log")

    async def stop(self) -> None:
        """Write what there is and close the file."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        try:
            await self._flush()
        finally:
            self._thread.shutdown(wait=True)
            self._file.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            try:
                await asyncio.shield(self._flush())
            except Exception:
                _log.exception("the decision log was not written")

    async def _flush(self) -> None:
        async with self._writing:
            forgotten, events = self.log.take_unwritten()
            if not forgotten and not events:
                return
            loop = asyncio.get_running_loop()
            try:
                await loop.run_in_executor(self._thread, self._file.write, forgotten, events)
            except GlowplugError as error:
                self.log.give_back(forgotten, events)
                _log.error("the decision log was not written, and will be again: %s", error.message)
