"""SqliteRegistry: CRUD, durability across reopening, and files that are not as they should be."""

import asyncio
import sqlite3

import pytest

from glowplug.errors import GlowplugError, NotFound
from glowplug.spec import FunctionSpec
from scaler.registry import SCHEMA_VERSION, SqliteRegistry

SPEC = FunctionSpec(name="f", model="m.gguf")
CHANGED = SPEC.model_copy(update={"idle_s": 5.0})  # same revision
NEW_REVISION = SPEC.model_copy(update={"max_seqs": 4})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data" / "registry.db"


def scenario(path, body):
    """Open, run `body(registry)`, close."""

    async def main():
        registry = SqliteRegistry(path)
        try:
            async with asyncio.timeout(10):
                return await body(registry)
        finally:
            registry.close()

    return asyncio.run(main())


def change(path, *statements):
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            connection.execute(*statement)
    connection.close()


def listed(path):
    async def body(registry):
        return await registry.list()

    return scenario(path, body)


def test_create_update_delete(path):
    async def body(registry):
        created = await registry.put(SPEC)
        assert (created.spec, created.generation, created.snapshot) == (SPEC, 1, None)
        assert created.created_s == created.updated_s > 0
        await registry.put(SPEC.model_copy(update={"name": "a"}))
        assert [f.spec.name for f in await registry.list()] == ["a", "f"]
        updated = await registry.put(CHANGED)
        assert (updated.generation, updated.created_s) == (2, created.created_s)
        assert await registry.get("f") == updated
        await registry.delete("f")
        with pytest.raises(NotFound, match="'f' does not exist"):
            await registry.get("f")
        with pytest.raises(NotFound):
            await registry.delete("f")

    scenario(path, body)
    assert [f.spec.name for f in listed(path)] == ["a"]


def test_everything_survives_reopening(path):
    async def body(registry):
        await registry.put(SPEC)
        await registry.set_sealed("f", SPEC.revision, snapshot="sha256-1", failure=None)
        await registry.put(NEW_REVISION.model_copy(update={"name": "g"}))
        await registry.set_sealed("g", NEW_REVISION.revision, snapshot=None, failure="no")
        return await registry.list()

    assert scenario(path, body) == listed(path)


def test_an_equal_spec_is_no_new_generation(path):
    async def body(registry):
        first = await registry.put(SPEC)
        again = await registry.put(SPEC)
        assert again.generation == 1
        assert again.updated_s >= first.updated_s

    scenario(path, body)


def test_sealing_results_follow_the_revision(path):
    async def body(registry):
        await registry.put(SPEC)
        await registry.set_sealed("f", SPEC.revision, snapshot="sha256-1", failure=None)
        assert (await registry.put(CHANGED)).snapshot is None  # sealing again looks it up
        assert (await registry.put(NEW_REVISION)).snapshot is None
        await registry.set_sealed("f", SPEC.revision, snapshot="sha256-1", failure=None)
        assert (await registry.get("f")).snapshot is None  # late, and of another revision
        await registry.set_sealed("f", NEW_REVISION.revision, snapshot=None, failure="bad file")
        assert (await registry.get("f")).failure == "bad file"
        assert (await registry.put(NEW_REVISION)).failure is None  # deploy again: try again
        await registry.set_sealed("gone", "0", snapshot="sha256-1", failure=None)

    scenario(path, body)


def test_subscribers_hear_of_changes_only(path):
    async def body(registry):
        told = []
        registry.subscribe(told.append)
        await registry.put(SPEC)
        await registry.set_sealed("f", SPEC.revision, snapshot="sha256-1", failure=None)
        await registry.set_sealed("f", "other", snapshot="sha256-2", failure=None)
        await registry.delete("f")
        with pytest.raises(NotFound):
            await registry.delete("f")
        assert told == ["f", "f", "f"]

    scenario(path, body)


def test_a_subscriber_that_fails_does_not_fail_the_write(path, caplog):
    async def body(registry):
        told = []
        registry.subscribe(lambda _: 1 / 0)
        registry.subscribe(told.append)
        assert (await registry.put(SPEC)).generation == 1
        assert told == ["f"]
        assert "a subscriber failed" in caplog.text

    scenario(path, body)


def test_concurrent_changes_are_all_kept(path):
    async def body(registry):
        async def change_idle(idle_s):
            await registry.put(SPEC.model_copy(update={"idle_s": idle_s}))

        await asyncio.gather(*(change_idle(float(n)) for n in range(1, 41)))
        return await registry.get("f")

    function = scenario(path, body)
    assert function.generation == 40
    assert listed(path) == [function]


def test_a_caller_who_leaves_does_not_split_write_and_notice(path):
    async def body(registry):
        told = asyncio.Event()
        registry.subscribe(lambda _: told.set())
        put = asyncio.create_task(registry.put(SPEC))
        await asyncio.sleep(0)
        put.cancel()
        with pytest.raises(asyncio.CancelledError):
            await put
        await told.wait()
        assert (await registry.get("f")).spec == SPEC

    scenario(path, body)
    assert len(listed(path)) == 1


def test_the_file_is_opened_for_durability(path):
    async def body(registry):
        execute = registry._connection.execute
        assert execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
        assert execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)

    scenario(path, body)


def prepared(path):
    async def body(registry):
        await registry.put(SPEC)
        await registry.set_sealed("f", SPEC.revision, snapshot="sha256-1", failure=None)
        await registry.put(SPEC.model_copy(update={"name": "good"}))

    scenario(path, body)


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        ('{"name": "f", "model": "m.gguf", "idle_s": -1}', "idle_s: "),
        ('{"name": "f", "model": "m.gguf", "colour": "red"}', "colour: unknown field"),
        ('{"name": "f", "model": "m.gguf"', "not JSON"),
        ('["f"]', "a JSON object"),
        ('{"name": "other", "model": "m.gguf"}', "stored under 'f' but says 'other'"),
        (b"\xff\xfe", "not JSON"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_row_that_is_not_valid_is_a_failed_function(path, stored, why):
    prepared(path)
    change(path, ("UPDATE functions SET spec = ? WHERE name = 'f'", (stored,)))
    bad, good = listed(path)
    assert (bad.spec.name, bad.snapshot) == ("f", None)
    assert bad.failure.startswith("its stored spec is not valid: ")
    assert why in bad.failure
    assert good.failure is None
    assert len(bad.spec.revision) == 10

    async def repair(registry):
        return await registry.put(SPEC)

    assert scenario(path, repair).failure is None
    assert listed(path)[0].spec == SPEC


def test_a_revision_derived_in_another_way_is_sealed_again(path):
    prepared(path)
    change(path, ("UPDATE functions SET revision = '0000000000' WHERE name = 'f'",))
    function = listed(path)[0]
    assert (function.snapshot, function.failure) == (None, None)


def test_a_newer_schema_is_refused(path):
    prepared(path)
    change(path, (f"PRAGMA user_version = {SCHEMA_VERSION + 1}",))
    with pytest.raises(GlowplugError, match=r"registry\.db: written by a newer Glowplug"):
        listed(path)


@pytest.mark.parametrize("damage", ["garbage", "header", "middle"])
def test_a_corrupt_file_is_named(path, damage):
    prepared(path)
    data = bytearray(path.read_bytes())
    if damage == "garbage":
        data = bytearray(b"not a database " * 500)
    elif damage == "header":
        data[100:200] = b"\xff" * 100
    else:
        data[4096:8192] = b"\x13" * 4096
    path.write_bytes(data)
    with pytest.raises(GlowplugError, match=r"registry\.db: the function registry is corrupt"):
        listed(path)


def test_another_programs_database_is_left_alone(path):
    path.parent.mkdir()
    change(path, ("CREATE TABLE cookies (name TEXT)",))
    with pytest.raises(GlowplugError, match="not a function registry"):
        listed(path)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(GlowplugError, match="registry"):
        listed(tmp_path / "file" / "registry.db")
    with pytest.raises(GlowplugError, match="cannot be used"):
        listed(tmp_path)


def test_a_write_that_fails_changes_nothing_and_names_the_file(path, monkeypatch):
    async def body(registry):
        await registry.put(SPEC)
        told = []
        registry.subscribe(told.append)
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(GlowplugError, match=r"registry\.db: in use by another process"):
            await registry.put(CHANGED)
        blocker.execute("ROLLBACK")
        blocker.close()
        assert (await registry.get("f")).spec == SPEC
        assert told == []
        await registry.put(CHANGED)

    monkeypatch.setattr("scaler.sqlite_file._BUSY_TIMEOUT_S", 0.05)
    scenario(path, body)
    assert listed(path)[0].spec == CHANGED


def test_digests_of_adapters_are_kept_while_they_are_sealed_again(path):
    async def body(registry):
        await registry.put(SPEC)
        sealed = {"snapshot": "sha256-1", "failure": None}
        await registry.set_sealed("f", SPEC.revision, **sealed, adapters={"a": "sha256-2"})
        before = await registry.get("f")
        assert before.revision != SPEC.revision
        again = await registry.put(SPEC)
        assert (again.snapshot, again.adapters) == (None, {"a": "sha256-2"})
        assert again.revision == before.revision
        await registry.set_sealed("f", SPEC.revision, **sealed)  # says nothing of adapters
        return await registry.get("f")

    assert listed_after(path, body).adapters == {"a": "sha256-2"}


def listed_after(path, body):
    """What `body` returned, once it was read back from the file."""
    function = scenario(path, body)
    assert function in listed(path)
    return function


def test_a_file_of_schema_1_is_taken_over(path):
    prepared(path)
    change(path, ("ALTER TABLE functions DROP COLUMN adapters",), ("PRAGMA user_version = 1",))
    before = listed(path)
    assert [(f.spec.name, f.adapters) for f in before] == [("f", {}), ("good", {})]
    assert before[0].snapshot == "sha256-1"

    async def body(registry):
        await registry.set_sealed(
            "f", SPEC.revision, snapshot="sha256-1", failure=None, adapters={"a": "sha256-2"}
        )

    scenario(path, body)
    assert listed(path)[0].adapters == {"a": "sha256-2"}
