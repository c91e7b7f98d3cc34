"""Adapters of a replica: which are in memory, who waits, and what requests see of it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glowplug.errors import CorruptSnapshot, NotFound, Unavailable
from glowplug.stages import from_server_timing
from runtime.engine.request import Delta
from runtime.server.adapters import AdapterCache

PLAIN = "/v1/completions"


@dataclass(frozen=True)
class Loaded:
    digest: str


class Disk:
    """Adapters of given sizes; counts what is loaded, and may fail or wait."""

    def __init__(self, **sizes: int) -> None:
        self.sizes = sizes
        self.loads: list[str] = []
        self.broken: set[str] = set()
        self.go = threading.Event()
        self.go.set()

    def size_of(self, digest: str) -> int:
        if digest not in self.sizes:
            raise NotFound(f"no adapter {digest}")
        return self.sizes[digest]

    def load(self, digest: str) -> Loaded:
        assert self.go.wait(30)
        self.loads.append(digest)
        if digest in self.broken:
            raise CorruptSnapshot(f"{digest}: its bytes changed")
        return Loaded(digest)

    def cache(self, *, max_bytes: int, max_loaded: int = 100, **names: str) -> AdapterCache:
        return AdapterCache(
            names or {digest: digest for digest in self.sizes},
            size_of=self.size_of,
            load=self.load,
            max_bytes=max_bytes,
            max_loaded=max_loaded,
        )


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await main()

    asyncio.run(limited())


async def use(cache: AdapterCache, name: str) -> str:
    async with cache.lease(name) as adapter:
        return adapter.digest


async def turn() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_loaded_once_however_many_ask_and_kept():
    async def main() -> None:
        disk = Disk(a=5, b=5)
        disk.go.clear()
        cache = disk.cache(max_bytes=10)
        asking = [asyncio.create_task(use(cache, "a")) for _ in range(5)]
        await turn()
        assert cache.loaded == {"a": 5}
        disk.go.set()
        assert await asyncio.gather(*asking) == ["a"] * 5
        await use(cache, "b")
        await use(cache, "a")
        assert disk.loads == ["a", "b"]
        assert cache.loaded == {"b": 0, "a": 0}

    run(main)


def test_two_names_of_the_same_content_are_one():
    async def main() -> None:
        disk = Disk(x=5)
        cache = disk.cache(max_bytes=10, one="x", two="x")
        assert [await use(cache, "one"), await use(cache, "two")] == ["x", "x"]
        assert disk.loads == ["x"]

    run(main)


def test_the_least_recently_used_goes_and_never_one_in_use():
    async def main() -> None:
        disk = Disk(a=4, b=4, c=4)
        cache = disk.cache(max_bytes=8)
        await use(cache, "a")
        await use(cache, "b")
        await use(cache, "a")
        await use(cache, "c")
        assert set(cache.loaded) == {"a", "c"}
        async with cache.lease("a"):
            await use(cache, "c")
            await use(cache, "b")  # c was used later than a, but a is in use
            assert set(cache.loaded) == {"a", "b"}
        assert cache.evictions == 2

    run(main)


def test_who_finds_no_room_waits_and_is_not_overtaken():
    async def main() -> None:
        disk = Disk(a=4, b=4)
        cache = disk.cache(max_bytes=4)
        order: list[str] = []

        async def work(name: str, label: str) -> None:
            async with cache.lease(name):
                order.append(label)

        async with cache.lease("a"):
            waiting = [
                asyncio.create_task(work(name, label))
                for name, label in (("b", "b1"), ("a", "a2"), ("b", "b3"))
            ]
            await turn()
            assert order == []  # a2 could have run, but then b might wait for ever
        await asyncio.gather(*waiting)
        assert order == ["b1", "a2", "b3"]

    run(main)


def test_a_count_limits_too():
    async def main() -> None:
        cache = Disk(a=1, b=1, c=1).cache(max_bytes=100, max_loaded=2)
        for name in "abc":
            await use(cache, name)
        assert set(cache.loaded) == {"b", "c"}

    run(main)


def test_a_failure_is_of_those_who_asked_and_is_tried_again():
    async def main() -> None:
        disk = Disk(a=4, b=4)
        disk.broken.add("a")
        cache = disk.cache(max_bytes=8)
        results = await asyncio.gather(
            use(cache, "a"), use(cache, "a"), use(cache, "b"), return_exceptions=True
        )
        assert results[2] == "b"
        for error in results[:2]:
            assert isinstance(error, Unavailable)
            assert error.message == "the adapter 'a' cannot be loaded: a: its bytes changed"
        assert cache.loaded == {"b": 0}
        disk.broken.clear()
        assert await use(cache, "a") == "a"

    run(main)


@pytest.mark.parametrize(
    ("name", "message"), [("large", "over adapter_cache_bytes"), ("gone", "no adapter gone")]
)
def test_what_can_never_be_loaded(name, message):
    async def main() -> None:
        cache = Disk(large=9, a=4).cache(max_bytes=8, large="large", gone="gone", a="a")
        with pytest.raises(Unavailable, match=message):
            await use(cache, name)
        assert await use(cache, "a") == "a"

    run(main)


def test_who_leaves_while_it_loads_or_waits_leaves_nothing_behind():
    async def main() -> None:
        disk = Disk(a=4, b=4)
        disk.go.clear()
        cache = disk.cache(max_bytes=4)
        loading = asyncio.create_task(use(cache, "a"))
        waiting = asyncio.create_task(use(cache, "b"))
        await turn()
        waiting.cancel()
        loading.cancel()
        await asyncio.gather(loading, waiting, return_exceptions=True)
        assert cache.loaded == {"a": 0}
        disk.go.set()
        assert await use(cache, "b") == "b"
        assert cache.loaded == {"b": 0}

    run(main)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    max_loaded=st.integers(1, 4),
    jobs=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 6), st.integers(0, 6), st.booleans()),
        min_size=1,
        max_size=30,
    ),
    broken=st.integers(0, 6),
)
def test_bounds_hold_whatever_happens(sizes, max_loaded, jobs, broken):
    """Every request gets its own adapter or an error; bytes and count stay within bounds, what is
    in use stays, and in the end nothing is in use."""
    names = [f"n{k}" for k in range(len(sizes))]
    disk = Disk(**dict(zip(names, sizes, strict=True)))
    if broken < len(sizes):
        disk.broken.add(names[broken])

    async def main() -> None:
        cache = disk.cache(max_bytes=8, max_loaded=max_loaded)
        used: dict[str, int] = dict.fromkeys(names, 0)

        def check() -> None:
            assert cache.loaded_bytes <= 8
            assert len(cache.loaded) <= max_loaded
            assert all(cache.loaded.get(name, 0) >= count for name, count in used.items() if count)

        async def job(which: int, delay: int, hold: int) -> None:
            name = names[which % len(names)]
            for _ in range(delay):
                await asyncio.sleep(0)
            try:
                async with cache.lease(name) as adapter:
                    assert adapter.digest == name
                    used[name] += 1
                    try:
                        for _ in range(hold):
                            check()
                            await asyncio.sleep(0)
                    finally:
                        used[name] -= 1
            except Unavailable:
                assert name in disk.broken

        tasks = [asyncio.create_task(job(which, delay, hold)) for which, delay, hold, _ in jobs]
        for task, (_, delay, _, cancelled) in zip(tasks, jobs, strict=True):
            if cancelled:
                for _ in range(delay):
                    await asyncio.sleep(0)
                task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            assert result is None or isinstance(result, asyncio.CancelledError)
        check()
        assert set(cache.loaded.values()) <= {0}

    run(main)


def with_adapters(disk: Disk, **names: str) -> dict[str, Any]:
    return {"adapters": disk.cache(max_bytes=100, **names)}


def ask_for(replica, *models: str, disk: Disk, names: dict[str, str]):
    async def main():
        async with replica(**with_adapters(disk, **names)) as r:
            answers = [
                await r.http.post(PLAIN, json={"model": model, "prompt": "hello"})
                for model in models
            ]
            listed = await r.http.get("/v1/models")
            one = await r.http.get("/v1/models/tiny:pirate")
            return answers, r.engine.submitted, listed.json(), one

    return asyncio.run(main())


NAMES = {"pirate": "x", "legal": "y"}


def test_the_model_of_a_request_names_the_adapter(replica):
    disk = Disk(x=5, y=5)
    models = ["tiny", "tiny:pirate", "alias/of-tiny:legal", "tiny:pirate"]
    answers, submitted, listed, one = ask_for(replica, *models, disk=disk, names=NAMES)
    assert [answer.json()["model"] for answer in answers] == models
    digests = [request.adapter and request.adapter.digest for request in submitted]
    assert digests == [None, "x", "y", "x"]
    assert disk.loads == ["x", "y"]
    ids = [model["id"] for model in listed["data"]]
    assert ids == ["tiny", "alias/of-tiny", "tiny:pirate", "tiny:legal"]
    assert one.json()["id"] == "tiny:pirate"
    stages = [from_server_timing(answer.headers["server-timing"]) for answer in answers]
    assert ["adapter" in each for each in stages] == [False, True, True, True]


@pytest.mark.parametrize("model", ["tiny:missing", "tiny:", "other:pirate", "tiny:pirate:x"])
def test_an_unknown_adapter_is_a_404_that_names_the_known_ones(replica, model):
    [answer], submitted, _, _ = ask_for(replica, model, disk=Disk(x=5, y=5), names=NAMES)
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["type"], error["param"], error["code"]) == (
        "not_found_error",
        "model",
        "model_not_found",
    )
    assert "pirate, legal" in error["message"]
    assert not submitted


def test_a_damaged_adapter_harms_its_own_requests_only(replica):
    disk = Disk(x=5, y=5)
    disk.broken.add("x")
    answers, submitted, _, _ = ask_for(
        replica, "tiny:pirate", "tiny:legal", "tiny", disk=disk, names=NAMES
    )
    assert [answer.status_code for answer in answers] == [503, 200, 200]
    error = answers[0].json()["error"]
    assert (error["code"], error["param"]) == ("adapter_unavailable", "model")
    assert "pirate" in error["message"]
    assert "its bytes changed" in error["message"]
    assert len(submitted) == 2


def test_an_adapter_is_in_use_until_its_request_ends_however_it_ends(replica):
    async def main() -> None:
        disk = Disk(x=5, y=5)
        settings = with_adapters(disk, **NAMES)
        cache = settings["adapters"]
        async with replica(script=lambda _: [Delta(text="a", tokens=(1,))], **settings) as r:
            body = {"model": "tiny:pirate", "prompt": "hello"}
            task = asyncio.create_task(r.http.post(PLAIN, json=body))
            await r.engine.has(1)
            assert cache.loaded == {"x": 1}
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await r.engine.saw_abort.wait()
            await turn()
            assert cache.loaded == {"x": 0}

    run(main)


def test_embeddings_are_the_models_own(replica):
    async def main() -> None:
        async with replica(**with_adapters(Disk(x=5, y=5), **NAMES)) as r:
            body = {"model": "tiny:pirate", "input": "hello"}
            answer = await r.http.post("/v1/embeddings", json=body)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "model"
            assert "pirate" in answer.json()["error"]["message"]

    run(main)
