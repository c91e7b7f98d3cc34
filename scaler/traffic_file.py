"""TrafficFile: the minutes of all functions, and what of each reporter's counters is in them, in
one SQLite file.

Blocking; only Traffic calls it, in a thread of its own. Minutes and counters are written in one
transaction, so after any crash the counters say exactly what the minutes hold, and what reporters
have counted since is still to be added: nothing is lost with them alive, nothing counted twice.
"""

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scaler.minutes import KEPT_MINUTES, Bin, Minute
from scaler.sqlite_file import Schema, in_words, open_file

KEPT_DELETED_S = 7 * 86_400.0  # of functions that are not deployed any more
KEPT_REPORTER_S = 7 * 86_400.0  # of one that was not heard of
MAX_REPORTERS = 100  # of one function, the last heard
MAX_ROWS = 10_000_000  # minutes of all functions; some 300 MB

_SCHEMA = Schema(
    what="traffic history",
    version=1,
    create=[
        """
        CREATE TABLE functions (
            id INTEGER PRIMARY KEY,
            name TEXT NOT NULL UNIQUE,
            deleted_s REAL  -- Unix time when it was first seen not deployed
        )
        """,
        """
        CREATE TABLE minutes (
            function INTEGER NOT NULL,
            minute INTEGER NOT NULL,
            arrivals INTEGER NOT NULL,
            peak INTEGER NOT NULL,
            finished INTEGER NOT NULL,
            service_s REAL NOT NULL,
            PRIMARY KEY (function, minute)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE counters (
            function INTEGER NOT NULL,
            reporter TEXT NOT NULL,
            arrivals INTEGER NOT NULL,
            finished INTEGER NOT NULL,
            service_s REAL NOT NULL,
            heard_s REAL NOT NULL,  -- Unix time
            PRIMARY KEY (function, reporter)
        ) WITHOUT ROWID
        """,
    ],
    upgrades={},
    power_safe=False,
)
_ADD_FUNCTION = "INSERT OR IGNORE INTO functions (name) VALUES (?)"
_ADD_MINUTE = """
INSERT INTO minutes (function, minute, arrivals, peak, finished, service_s)
SELECT id, ?, ?, ?, ?, ? FROM functions WHERE name = ?
ON CONFLICT (function, minute) DO UPDATE SET
    arrivals = arrivals + excluded.arrivals, peak = max(peak, excluded.peak),
    finished = finished + excluded.finished, service_s = service_s + excluded.service_s
"""
_SET_COUNTERS = """
INSERT OR REPLACE INTO counters (function, reporter, arrivals, finished, service_s, heard_s)
SELECT id, ?, ?, ?, ?, ? FROM functions WHERE name = ?
"""
_SELECT_COUNTERS = """
SELECT name, reporter, arrivals, finished, service_s
FROM counters JOIN functions ON functions.id = counters.function
"""
_SELECT_MINUTES = """
SELECT minute, arrivals, peak, finished, service_s
FROM minutes JOIN functions ON functions.id = minutes.function
WHERE name = ? AND minute >= ? AND minute < ? ORDER BY minute
"""
_DELETE_RANGE = """
DELETE FROM minutes
WHERE function = (SELECT id FROM functions WHERE name = ?) AND minute BETWEEN ? AND ?
"""
_SELECT_FORGOTTEN = """
SELECT name, reporter FROM (
    SELECT function, reporter, heard_s,
        row_number() OVER (PARTITION BY function ORDER BY heard_s DESC) AS place
    FROM counters
) JOIN functions ON functions.id = function
WHERE place > ? OR heard_s < ?
"""
_DELETE_COUNTERS = """
DELETE FROM counters
WHERE function = (SELECT id FROM functions WHERE name = ?) AND reporter = ?
"""
_DELETE_UNUSED = """
DELETE FROM functions WHERE NOT EXISTS (SELECT 1 FROM minutes WHERE function = id)
    AND NOT EXISTS (SELECT 1 FROM counters WHERE function = id)
"""

Key = tuple[str, str]  # function, reporter


@dataclass
class Counted:
    """How much of a reporter's counters has been taken."""

    arrivals: int = 0
    finished: int = 0
    service_s: float = 0.0


class TrafficFile:
    """See the module's text. Methods raise GlowplugError where the file fails them."""

    def __init__(self, path: Path, *, max_rows: int = MAX_ROWS) -> None:
        self._path = path
        self._max_rows = max_rows
        self._connection = open_file(path, _SCHEMA)

    def close(self) -> None:
        """Nothing may be called after it."""
        self._connection.close()

    def counters(self) -> dict[Key, Counted]:
        """Of every reporter that is known."""
        rows = self._connection.execute(_SELECT_COUNTERS)
        return {(name, reporter): Counted(*counts) for name, reporter, *counts in rows}

    def write(
        self,
        bins: Mapping[tuple[str, int], Bin],
        counters: Mapping[Key, Counted],
        *,
        now_s: float,
    ) -> None:
        """Add to minutes, by function and minute, and set the counters that are in them now."""
        names = {name for name, _ in bins} | {name for name, _ in counters}
        with self._transaction() as connection:
            connection.executemany(_ADD_FUNCTION, ((name,) for name in names))
            connection.executemany(
                _ADD_MINUTE,
                (
                    (minute, each.arrivals, each.peak, each.finished, each.service_s, name)
                    for (name, minute), each in bins.items()
                ),
            )
            connection.executemany(
                _SET_COUNTERS,
                (
                    (reporter, each.arrivals, each.finished, each.service_s, now_s, name)
                    for (name, reporter), each in counters.items()
                ),
            )

    def read(self, function: str, from_minute: int, until_minute: int) -> Sequence[Minute]:
        """Its minutes from the one up to, not including, the other, in order."""
        try:
            rows = self._connection.execute(_SELECT_MINUTES, (function, from_minute, until_minute))
            return [
                Minute(
                    minute=minute,
                    arrivals=arrivals,
                    peak=peak,
                    finished=finished,
                    service_s=service_s,
                )
                for minute, arrivals, peak, finished, service_s in rows
            ]
        except sqlite3.Error as error:
            raise in_words(self._path, _SCHEMA, error) from None

    def replace(self, function: str, minutes: Sequence[Minute]) -> None:
        """Put these, in order, for all there is from the first to the last of them."""
        with self._transaction() as connection:
            connection.execute(_ADD_FUNCTION, (function,))
            span = (function, minutes[0].minute, minutes[-1].minute)
            connection.execute(_DELETE_RANGE, span)
            connection.executemany(
                _ADD_MINUTE,
                (
                    (each.minute, each.arrivals, each.peak, each.finished, each.service_s, function)
                    for each in minutes
                ),
            )

    def prune(
        self, *, deployed: Collection[str], heard: Iterable[Key], now_s: float
    ) -> Collection[Key]:
        """Let go of what is too old or too much; the reporters that are forgotten.

        `heard` are the reporters that are alive.
        """
        with self._transaction() as connection:
            self._note_deleted(connection, deployed, now_s)
            self._delete_old(connection, now_s)
            connection.executemany(
                "UPDATE counters SET heard_s = ? WHERE reporter = ? AND function ="
                " (SELECT id FROM functions WHERE name = ?)",
                ((now_s, reporter, name) for name, reporter in heard),
            )
            limits = (MAX_REPORTERS, now_s - KEPT_REPORTER_S)
            forgotten: list[Key] = connection.execute(_SELECT_FORGOTTEN, limits).fetchall()
            connection.executemany(_DELETE_COUNTERS, forgotten)
            connection.execute(_DELETE_UNUSED)
        return forgotten

    def _note_deleted(
        self, connection: sqlite3.Connection, deployed: Collection[str], now_s: float
    ) -> None:
        rows = connection.execute("SELECT id, name, deleted_s FROM functions").fetchall()
        for function, name, deleted_s in rows:
            if (deleted_s is None) != (name in deployed):
                connection.execute(
                    "UPDATE functions SET deleted_s = ? WHERE id = ?",
                    (None if name in deployed else now_s, function),
                )
            elif deleted_s is not None and deleted_s < now_s - KEPT_DELETED_S:
                connection.execute("DELETE FROM minutes WHERE function = ?", (function,))

    def _delete_old(self, connection: sqlite3.Connection, now_s: float) -> None:
        oldest = int(now_s // 60) - KEPT_MINUTES
        (rows,) = connection.execute("SELECT count(*) FROM minutes").fetchone()
        if rows > self._max_rows:
            (oldest_fitting,) = connection.execute(
                "SELECT minute FROM minutes ORDER BY minute DESC LIMIT 1 OFFSET ?",
                (self._max_rows,),
            ).fetchone()
            oldest = max(oldest, oldest_fitting + 1)
        for (function,) in connection.execute("SELECT id FROM functions").fetchall():
            connection.execute(
                "DELETE FROM minutes WHERE function = ? AND minute < ?", (function, oldest)
            )

    def _transaction(self) -> "_Transaction":
        return _Transaction(self._connection, self._path)


class _Transaction:
    """All of it or nothing."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    def __enter__(self) -> sqlite3.Connection:
        self._run("BEGIN IMMEDIATE")
        return self._connection

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self._run("COMMIT")
            return
        self._roll_back()
        if isinstance(error, sqlite3.Error):
            raise in_words(self._path, _SCHEMA, error) from None

    def _run(self, sql: str) -> None:
        try:
            self._connection.execute(sql)
        except sqlite3.Error as error:
            self._roll_back()
            raise in_words(self._path, _SCHEMA, error) from None

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
