"""Several processes on one cache do everything at once. Whoever is served gets the right bytes."""

import hashlib
import multiprocessing
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from s3 import BUCKET, Proxy

from glowplug.errors import CorruptSnapshot, GlowplugError, NotFound
from snapshot.eviction import collect_garbage, make_room, trim
from snapshot.locks import try_locked
from snapshot.manifest import WEIGHTS, read_manifest
from snapshot.node_cache import NodeCache
from snapshot.s3_location import S3Location
from snapshot.s3_store import S3Store
from snapshot.transfer import pull, push
from snapshot.verification import verify_files

PROCESSES = 4
STEPS = 40


def ignore(_: float) -> None:
    pass


def serve(cache: NodeCache, digest: str) -> str:
    """As a replica with --verify always: the weights' hash, or what it says."""
    try:
        with cache.used(digest) as folder:
            try:
                verify_files(folder, read_manifest(folder), "always")
            except CorruptSnapshot as error:
                cache.quarantine(digest, error.message)
                return "damaged"
            return hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    except NotFound:
        return "not here"


def damage(cache: NodeCache, digest: str, choice: random.Random) -> None:
    """Flip a bit or cut the file, while nobody is between looking at it and serving it."""
    with try_locked(cache.root / "use" / digest) as free:
        if not free or not cache.has(digest):
            return
        path = cache.root / digest / WEIGHTS
        with suppress(FileNotFoundError):  # to quarantine, meanwhile
            data = bytearray(path.read_bytes())
            if choice.random() < 0.5:
                data[choice.randrange(len(data))] ^= 1 << choice.randrange(8)
            else:
                del data[choice.randrange(len(data)) :]
            path.write_bytes(data)


def run(seed: int, root: str, location: S3Location, hashes: dict[str, str], answers: Any) -> None:
    choice = random.Random(seed)
    cache, store = NodeCache(Path(root)), S3Store(location)
    outcomes: dict[str, int] = {}
    for _ in range(STEPS):
        digest = choice.choice(sorted(hashes))
        action = choice.choice(
            ["serve"] * 4 + ["pull"] * 3 + ["evict", "damage", "trim", "room", "collect", "clean"]
        )
        try:
            if action == "serve":
                said = serve(cache, digest)
                assert said in ("damaged", "not here", hashes[digest]), "wrong bytes were served"
                action = said if said in ("damaged", "not here") else "served"
            elif action == "pull":
                pull(store, digest, cache=cache, progress=ignore)
            elif action == "evict":
                cache.evict(digest)
            elif action == "damage":
                damage(cache, digest, choice)
            elif action == "trim":
                trim(cache)
            elif action == "room":
                make_room(cache, 50_000)
            elif action == "collect":
                collect_garbage(cache)
            else:
                cache.clean()
        except GlowplugError as error:
            assert error.message
            action += " refused"
        except BaseException as error:
            answers.put(f"{action}: {error!r}")
            raise
        outcomes[action] = outcomes.get(action, 0) + 1
    answers.put(outcomes)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_everything_at_once(
    seed: int, write_gguf: Callable[..., Any], cache: NodeCache, tmp_path: Path, proxy: Proxy
) -> None:
    from snapshot.seal import seal  # with torch, which the processes below do without

    proxy.reset()
    location = S3Location(bucket=BUCKET, prefix=f"fuzz-{seed}", endpoint_url=proxy.endpoint)
    origin = NodeCache(tmp_path / "origin")
    hashes = {}
    for number in range(3):
        path = write_gguf(f"{number}.gguf", seed=number).path
        digest = seal(str(path), dtype="float32", cache=origin, progress=ignore)
        push(S3Store(location), digest, cache=origin, progress=ignore)
        hashes[digest] = read_manifest(origin.path(digest)).files[WEIGHTS].sha256
    cache.set_limit(2_000_000)

    context = multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    processes = [
        context.Process(
            target=run, args=(seed * 100 + each, str(cache.root), location, hashes, answers)
        )
        for each in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    outcomes = [answers.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(30)
    assert all(isinstance(each, dict) for each in outcomes), outcomes
    total = {action for each in outcomes for action in each}
    assert {"served", "not here", "pull"} <= total
    for digest, sha256 in hashes.items():  # and after all that it still works
        collect_garbage(cache)
        if serve(cache, digest) != sha256:
            pull(S3Store(location), digest, cache=cache, progress=ignore)
            assert serve(cache, digest) == sha256
    assert not list((cache.root / "tmp").iterdir())
