"""SqliteRegistry: the deployed functions of one machine, in one SQLite file.

Called on the event loop by the control API and the reconciler. This process is the file's only
writer, so reads are answered from memory and never wait. Writes run in a thread of their own: a
durable commit waits for the disk, and the tokens of every open stream pass through the same loop.
"""

import asyncio
import json
import logging
import sqlite3
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from glowplug.contracts import Function
from glowplug.errors import InvalidSpec, NotFound
from glowplug.spec import FunctionSpec, parse_spec
from scaler.sqlite_file import Schema, in_words, open_file

SCHEMA_VERSION = 2
_TABLE = """
CREATE TABLE functions (
    name TEXT PRIMARY KEY,
    spec TEXT NOT NULL,          -- FunctionSpec as JSON
    revision TEXT NOT NULL,      -- the revision that snapshot and failure belong to
    generation INTEGER NOT NULL,
    snapshot TEXT,
    failure TEXT,
    created_s REAL NOT NULL,
    updated_s REAL NOT NULL,
    adapters TEXT NOT NULL DEFAULT '{}'  -- name: digest, as JSON
) WITHOUT ROWID
"""
_FROM_1 = "ALTER TABLE functions ADD COLUMN adapters TEXT NOT NULL DEFAULT '{}'"
_SCHEMA = Schema(
    what="function registry",
    version=SCHEMA_VERSION,
    create=[_TABLE],
    upgrades={1: [_FROM_1]},
    power_safe=True,
)
_UPSERT = """
INSERT INTO functions
    (name, spec, revision, generation, snapshot, failure, created_s, updated_s, adapters)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET
    spec = excluded.spec, revision = excluded.revision, generation = excluded.generation,
    snapshot = excluded.snapshot, failure = excluded.failure,
    created_s = excluded.created_s, updated_s = excluded.updated_s, adapters = excluded.adapters
"""
_SELECT = """
SELECT name, spec, revision, generation, snapshot, failure, created_s, updated_s, adapters
FROM functions
"""

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def unknown_function(name: str) -> NotFound:
    """The error for a name that nothing is deployed under."""
    return NotFound(
        f"function {name!r} does not exist; deploy it first, or check the name with `glowplug ls`",
        param="model",
        code="function_not_found",
    )


class SqliteRegistry:
    """Implements glowplug.contracts.Registry. A write has reached the disk when it returns."""

    def __init__(self, path: Path) -> None:
        """Open or create the file; blocks for some milliseconds.

        Raises:
            GlowplugError: the file is corrupt, not a registry, from a newer version, or cannot be
                opened; the message names it.
        """
        self._path = path
        self._connection = open_file(path, _SCHEMA)
        try:
            self._functions = _load(self._connection)
        except sqlite3.Error as error:
            self._connection.close()
            raise in_words(path, _SCHEMA, error) from None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="registry")
        self._lock = asyncio.Lock()  # a change is read, computed and written as one
        self._writes: set[asyncio.Task[Any]] = set()
        self._subscribers: list[Callable[[str], None]] = []

    async def list(self) -> Sequence[Function]:
        """All functions, by name."""
        return [self._functions[name] for name in sorted(self._functions)]

    async def get(self, name: str) -> Function:
        """Raises NotFound."""
        try:
            return self._functions[name]
        except KeyError:
            raise unknown_function(name) from None

    async def put(self, spec: FunctionSpec) -> Function:
        """Create or update.

        Clears `snapshot` and `failure`, so that deploying again heals what has gone missing: where
        the snapshot is still there, sealing is a look-up. `generation` counts changes, so an equal
        spec leaves it alone. A spec that mentions no schedules keeps those there are.

        Raises:
            InvalidSpec: they do not fit it.
        """
        return await self._to_the_end(self._put(spec))

    async def change(self, name: str, change: Callable[[FunctionSpec], FunctionSpec]) -> Function:
        """Replace the spec by `change(spec)`; read, changed and written as one.

        Raises:
            NotFound: there is no such function. Also what `change` raises.
        """
        return await self._to_the_end(self._change(name, change))

    async def delete(self, name: str) -> None:
        """Raises NotFound."""
        await self._to_the_end(self._delete(name))

    async def set_sealed(
        self,
        name: str,
        revision: str,
        *,
        snapshot: str | None,
        failure: str | None,
        adapters: Mapping[str, str] | None = None,
    ) -> None:
        """Record how sealing the spec's `revision` ended; ignored where the function has another
        by now. `adapters` None leaves what is known of them."""
        changes: dict[str, Any] = {"snapshot": snapshot, "failure": failure}
        if adapters is not None:
            changes["adapters"] = dict(adapters)
        await self._to_the_end(self._set_sealed(name, revision, changes))

    def subscribe(self, changed: Callable[[str], None]) -> None:
        """Call `changed(name)` on the event loop after each change of a function."""
        self._subscribers.append(changed)

    def close(self) -> None:
        """Finish the write that runs and close the file. Nothing may be called after it."""
        self._thread.shutdown(wait=True)
        self._connection.close()

    async def _put(self, spec: FunctionSpec) -> Function:
        async with self._lock:
            now_s = time.time()
            old = self._functions.get(spec.name)
            if old is None:
                function = Function(spec=spec, generation=1, created_s=now_s, updated_s=now_s)
            else:
                if "schedules" not in spec.model_fields_set and old.spec.schedules:
                    kept = [schedule.model_dump() for schedule in old.spec.schedules]
                    spec = parse_spec(spec.model_dump() | {"schedules": kept})
                function = replace(
                    old,
                    spec=spec,
                    generation=old.generation + (spec != old.spec),
                    snapshot=None,
                    failure=None,
                    updated_s=now_s,
                )
            await self._store(function)
            return function

    async def _change(self, name: str, change: Callable[[FunctionSpec], FunctionSpec]) -> Function:
        async with self._lock:
            old = await self.get(name)
            spec = change(old.spec)
            if spec == old.spec:
                return old
            function = replace(old, spec=spec, generation=old.generation + 1, updated_s=time.time())
            if spec.revision != old.spec.revision:
                function = replace(function, snapshot=None, failure=None)
            await self._store(function)
            return function

    async def _delete(self, name: str) -> None:
        async with self._lock:
            if name not in self._functions:
                raise unknown_function(name)
            await self._execute("DELETE FROM functions WHERE name = ?", (name,))
            del self._functions[name]
            self._notify(name)

    async def _set_sealed(self, name: str, revision: str, changes: dict[str, Any]) -> None:
        async with self._lock:
            function = self._functions.get(name)
            if function is not None and function.spec.revision == revision:
                await self._store(replace(function, **changes))

    async def _store(self, function: Function) -> None:
        spec = function.spec
        await self._execute(
            _UPSERT,
            (
                spec.name,
                spec.model_dump_json(),
                spec.revision,
                function.generation,
                function.snapshot,
                function.failure,
                function.created_s,
                function.updated_s,
                json.dumps(function.adapters),
            ),
        )
        self._functions[spec.name] = function
        self._notify(spec.name)

    async def _execute(self, sql: str, values: tuple[object, ...]) -> None:
        """Run one statement, a transaction of its own, in the writer's thread."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, self._connection.execute, sql, values)
        except sqlite3.Error as error:
            raise in_words(self._path, _SCHEMA, error) from None

    def _notify(self, name: str) -> None:
        for changed in self._subscribers:
            try:
                changed(name)
            except Exception:  # the write is done; whoever made it must not hear otherwise
                _log.exception("a subscriber failed on a change of %s", name)

    async def _to_the_end(self, write: Coroutine[Any, Any, _T]) -> _T:
        """A write that is begun also reaches memory and subscribers, even if its caller leaves."""
        task = asyncio.create_task(write)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return await asyncio.shield(task)


def _load(connection: sqlite3.Connection) -> dict[str, Function]:
    functions = {}
    for (
        name,
        text,
        revision,
        generation,
        snapshot,
        failure,
        created_s,
        updated_s,
        adapters,
    ) in connection.execute(_SELECT):
        spec, invalid = _stored_spec(name, text)
        if invalid is not None:
            _log.error("function %s: %s", name, invalid)
        # A version of Glowplug that derives revisions in another way seals again.
        sealed = invalid is None and spec.revision == revision
        functions[name] = Function(
            spec=spec,
            generation=generation,
            snapshot=snapshot if sealed else None,
            failure=failure if sealed else invalid,
            created_s=created_s,
            updated_s=updated_s,
            adapters=json.loads(adapters) if sealed else {},
        )
    return functions


def _stored_spec(name: str, text: str) -> tuple[FunctionSpec, str | None]:
    """The spec of a row; where it is not valid, a stand-in with defaults, and the reason."""
    fields: object = None
    try:
        fields = json.loads(text)
        spec = parse_spec(fields)
        if spec.name == name:
            return spec, None
        reason = f"name: it is stored under {name!r} but says {spec.name!r}"
    except InvalidSpec as error:
        reason = error.message
    except (ValueError, TypeError, RecursionError) as error:
        reason = f"not JSON ({error})"
    model = fields.get("model") if isinstance(fields, dict) else None
    stand_in = FunctionSpec.model_construct(
        name=name, model=model if isinstance(model, str) else "unknown"
    )
    return stand_in, f"its stored spec is not valid: {reason}; deploy it again"
