"""One SQLite file of the scaler: opened with its schema, and its errors in words.

Blocking; called by whoever owns the file, who is its only user: one thread at a time.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from glowplug.errors import GlowplugError

_BUSY_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Schema:
    """What is in the file. `what` is its name for people: "function registry"."""

    what: str
    version: int
    create: Sequence[str]  # statements that make it in an empty file
    upgrades: Mapping[int, Sequence[str]]  # from that version to the next one
    power_safe: bool  # a commit has reached the disk; otherwise power loss takes the last ones


def open_file(path: Path, schema: Schema) -> sqlite3.Connection:
    """Open or create the file; every statement is a transaction of its own, or in BEGIN … COMMIT.

    Raises:
        GlowplugError: it is corrupt, something else, from a newer version, or cannot be opened;
            the message names it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(
            path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
    except (OSError, sqlite3.Error) as error:
        raise in_words(path, schema, error) from None
    try:
        _prepare(connection, path, schema)
    except sqlite3.Error as error:
        connection.close()
        raise in_words(path, schema, error) from None
    except GlowplugError:
        connection.close()
        raise
    return connection


def in_words(path: Path, schema: Schema, error: OSError | sqlite3.Error) -> GlowplugError:
    """The error for the user: which file, what is wrong, what to do."""
    if isinstance(error, OSError):
        return GlowplugError(f"{path}: cannot be opened ({error.strerror})")
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code of an extended one
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _corrupt(path, schema, str(error))
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return GlowplugError(f"{path}: in use by another process; stop it and try again")
    return GlowplugError(f"{path}: the {schema.what} cannot be used ({error})")


def _prepare(connection: sqlite3.Connection, path: Path, schema: Schema) -> None:
    """Check the file and its schema; create the schema in an empty file."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > schema.version:
        raise GlowplugError(
            f"{path}: written by a newer Glowplug ({schema.what} schema {version}, this version "
            f"knows {schema.version}); upgrade Glowplug, or use another data folder"
        )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if schema.power_safe else 'NORMAL'}")
    (check,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if check != "ok":
        raise _corrupt(path, schema, check)
    if version == schema.version:
        return
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and not version:
        raise GlowplugError(f"{path}: a SQLite file, but not a {schema.what}; move it away")
    connection.execute("BEGIN IMMEDIATE")
    if not version:
        statements = list(schema.create)
    else:
        steps = range(version, schema.version)
        statements = [each for step in steps for each in schema.upgrades[step]]
    for statement in statements:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {schema.version}")
    connection.execute("COMMIT")


def _corrupt(path: Path, schema: Schema, detail: str) -> GlowplugError:
    return GlowplugError(
        f"{path}: the {schema.what} is corrupt ({detail}); restore it from a backup, or move "
        "it away to start with an empty one"
    )
