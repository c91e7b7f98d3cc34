"""SqliteRegistry: a spec that is read, changed and written as one, and schedules that stay."""

import asyncio

import pytest

from activator.prewarms import with_schedule, without_schedule
from glowplug.errors import InvalidSpec, NotFound
from glowplug.schedule import MAX_SCHEDULES, parse_schedule
from glowplug.spec import FunctionSpec, parse_spec
from scaler.registry import SqliteRegistry

SPEC = FunctionSpec(name="f", model="m.gguf", max_replicas=3)


def schedule(name="morning", **fields):
    return parse_schedule({"name": name, "cron": "0 8 * * *", "duration": "2h"} | fields)


def scenario(path, body):
    async def main():
        registry = SqliteRegistry(path)
        try:
            async with asyncio.timeout(10):
                return await body(registry)
        finally:
            registry.close()

    return asyncio.run(main())


def names(function):
    return [each.name for each in function.spec.schedules]


def test_a_change_keeps_what_is_sealed_and_lasts(tmp_path):
    async def first(registry):
        told = []
        registry.subscribe(told.append)
        await registry.put(SPEC)
        await registry.set_sealed("f", SPEC.revision, snapshot="sha256-1", failure=None)
        changed = await registry.change("f", lambda spec: with_schedule(spec, schedule()))
        assert (changed.generation, changed.snapshot) == (2, "sha256-1")
        assert changed.revision == SPEC.revision
        assert told == ["f"] * 3
        same = await registry.change("f", lambda spec: with_schedule(spec, schedule()))
        assert (same, len(told)) == (changed, 3)

    async def second(registry):
        function = await registry.get("f")
        assert function.spec.schedules == [schedule()]
        assert function.snapshot == "sha256-1"

    scenario(tmp_path / "r.db", first)
    scenario(tmp_path / "r.db", second)


def test_a_change_of_the_revision_is_sealed_anew(tmp_path):
    async def body(registry):
        await registry.put(SPEC)
        await registry.set_sealed("f", SPEC.revision, snapshot="sha256-1", failure=None)
        changed = await registry.change("f", lambda spec: spec.model_copy(update={"max_seqs": 2}))
        assert changed.snapshot is None

    scenario(tmp_path / "r.db", body)


def test_changes_at_once_all_last(tmp_path):
    async def body(registry):
        await registry.put(SPEC)
        await asyncio.gather(
            *(
                registry.change("f", lambda spec, n=n: with_schedule(spec, schedule(f"s{n}")))
                for n in range(20)
            )
        )
        assert set(names(await registry.get("f"))) == {f"s{n}" for n in range(20)}
        await asyncio.gather(
            *(
                registry.change("f", lambda spec, n=n: without_schedule(spec, f"s{n}"))
                for n in range(0, 20, 2)
            ),
            registry.put(SPEC.model_copy(update={"idle_s": 5.0})),
        )
        assert set(names(await registry.get("f"))) == {f"s{n}" for n in range(1, 20, 2)}

    scenario(tmp_path / "r.db", body)


def test_a_change_that_fails_changes_nothing(tmp_path):
    async def body(registry):
        with pytest.raises(NotFound, match="'f' does not exist"):
            await registry.change("f", lambda spec: spec)
        before = await registry.put(SPEC)
        with pytest.raises(InvalidSpec) as caught:
            await registry.change("f", lambda spec: with_schedule(spec, schedule(min_replicas=4)))
        assert caught.value.param == "min_replicas"
        assert "wants 4, over max_replicas 3" in caught.value.message
        with pytest.raises(NotFound, match="has no prewarm 'x'"):
            await registry.change("f", lambda spec: without_schedule(spec, "x"))
        assert await registry.get("f") == before

    scenario(tmp_path / "r.db", body)


def test_replaced_in_its_place():
    spec = SPEC
    for name in ("a", "b", "c"):
        spec = with_schedule(spec, schedule(name))
    changed = with_schedule(spec, schedule("b", duration="3h"))
    assert [(each.name, each.duration) for each in changed.schedules] == [
        ("a", 7200),
        ("b", 10800),
        ("c", 7200),
    ]
    assert [each.name for each in without_schedule(changed, "b").schedules] == ["a", "c"]
    assert len(SPEC.schedules) == 0


def test_no_more_than_the_limit():
    spec = SPEC
    for number in range(MAX_SCHEDULES):
        spec = with_schedule(spec, schedule(f"s{number}"))
    assert with_schedule(spec, schedule("s3", duration="3h"))
    with pytest.raises(InvalidSpec, match=f"has {MAX_SCHEDULES} prewarms, which is the most"):
        with_schedule(spec, schedule("another"))


def test_a_deploy_that_mentions_no_schedules_keeps_them(tmp_path):
    async def body(registry):
        fields = {"name": "f", "model": "m.gguf", "max_replicas": 3}
        await registry.put(parse_spec(fields))
        await registry.change("f", lambda spec: with_schedule(spec, schedule(min_replicas=2)))
        kept = await registry.put(parse_spec(fields | {"idle_s": 5}))
        assert (names(kept), kept.spec.idle_s) == (["morning"], 5)
        assert (await registry.put(parse_spec(fields | {"idle_s": 5}))).generation == 3

        with pytest.raises(InvalidSpec) as caught:
            await registry.put(parse_spec(fields | {"max_replicas": 1}))
        assert caught.value.param == "schedules.0.min_replicas"
        assert "the prewarm 'morning' wants 2, over max_replicas 1" in caught.value.message
        assert (await registry.get("f")).spec.max_replicas == 3

        night = {"name": "night", "cron": "0 22 * * *", "duration": "1h"}
        replaced = await registry.put(parse_spec(fields | {"schedules": [night]}))
        assert names(replaced) == ["night"]
        assert names(await registry.put(parse_spec(fields | {"schedules": []}))) == []

    scenario(tmp_path / "r.db", body)
