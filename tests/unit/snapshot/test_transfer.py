"""Pull and push against moto over real HTTP: whole, broken, killed, shared, and without room."""

import contextlib
import itertools
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from s3 import BUCKET, Proxy
from serving import eventually

import snapshot.fetching
import snapshot.s3_bucket
import snapshot.transfer
from glowplug.errors import CorruptSnapshot, NotFound, SnapshotError
from snapshot.hashing import PIECE_BYTES
from snapshot.manifest import MANIFEST, TOKENIZER, WEIGHTS, read_manifest
from snapshot.node_cache import NodeCache
from snapshot.s3_location import S3Location
from snapshot.s3_store import S3Store
from snapshot.seal import seal
from snapshot.transfer import pull, push

PREFIXES = itertools.count()


def ignore(_: float) -> None:
    pass


@pytest.fixture
def store(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    """A prefix of its own, and retries that do not wait."""
    proxy.reset()
    monkeypatch.setattr(snapshot.fetching, "_FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(snapshot.s3_bucket, "_ATTEMPTS", 1)
    prefix = f"test-{next(PREFIXES)}"
    return S3Store(S3Location(bucket=BUCKET, prefix=prefix, endpoint_url=proxy.endpoint))


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sealed")


@pytest.fixture
def origin(sealed: Path, write_gguf: Callable[..., Any], tmp_path: Path) -> NodeCache:
    """A cache with a sealed model of 20 MiB, whose weights are three pieces."""
    if not any(sealed.iterdir()):
        model = write_gguf(hidden=512, intermediate=1024, layers=4)
        seal(str(model.path), dtype="float32", cache=NodeCache(sealed), progress=ignore)
    shutil.copytree(sealed, tmp_path / "origin")
    return NodeCache(tmp_path / "origin")


@pytest.fixture
def digest(origin: NodeCache) -> str:
    return origin.list()[0].digest


@pytest.fixture
def pushed(digest: str, origin: NodeCache, store: S3Store) -> str:
    assert push(store, digest, cache=origin, progress=ignore)
    return digest


def same_files(one: Path, other: Path) -> bool:
    names = sorted(path.name for path in one.iterdir())
    return names == sorted(path.name for path in other.iterdir()) and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names
    )


def object_body(store: S3Store, digest: str, name: str) -> bytes:
    client = boto3.client("s3", endpoint_url=store.location.endpoint_url)
    key = store.location.key(f"{digest}/{name}")
    return client.get_object(Bucket=BUCKET, Key=key)["Body"].read()


def put_object(store: S3Store, digest: str, name: str, body: bytes) -> None:
    store.write_small(digest, name, body)


def test_there_and_back(
    store: S3Store, pushed: str, origin: NodeCache, cache: NodeCache, proxy: Proxy
) -> None:
    seen: list[float] = []
    pulled = pull(store, pushed, cache=cache, progress=seen.append)
    assert same_files(cache.path(pushed), origin.path(pushed))
    manifest = cache.verify(pushed)
    total = sum(entry.size for entry in manifest.files.values())
    assert len(manifest.files[WEIGHTS].piece_sha256) >= 3
    assert (pulled.fetched_bytes, pulled.kept_bytes) == (total, 0)
    assert sum(proxy.fetched.values()) == total
    assert seen[-1] == 1.0
    assert not (cache.root / "partial" / pushed).exists()

    proxy.reset()
    assert pull(store, pushed, cache=cache, progress=ignore).fetched_bytes == 0
    assert not proxy.requests  # the store is not even asked
    assert store.list() == [pushed]


def test_push_uploads_once_and_the_manifest_last(
    store: S3Store, digest: str, origin: NodeCache, proxy: Proxy
) -> None:
    weights = read_manifest(origin.path(digest)).files[WEIGHTS]
    store.write(digest, origin.path(digest) / WEIGHTS, weights, sent=lambda _: None)
    assert not store.has(digest)  # an upload that was killed here is no snapshot
    proxy.reset()
    assert push(store, digest, cache=origin, progress=ignore)
    assert proxy.requests["PUT"] == 2  # the tokenizer and the manifest: the weights are there
    proxy.reset()
    assert not push(store, digest, cache=origin, progress=ignore)
    assert proxy.requests == {"HEAD": 1}


def test_a_damaged_snapshot_is_not_pushed(store: S3Store, digest: str, origin: NodeCache) -> None:
    flip(origin.path(digest) / WEIGHTS, 12345)
    with pytest.raises(CorruptSnapshot, match="its bytes changed"):
        push(store, digest, cache=origin, progress=ignore)
    assert not store.has(digest)


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_what_the_store_does_not_hold(store: S3Store, cache: NodeCache) -> None:
    nobody = "sha256-" + "0" * 64
    with pytest.raises(NotFound, match="not there"):
        pull(store, nobody, cache=cache, progress=ignore)
    with pytest.raises(NotFound, match="no snapshot"):
        push(store, nobody, cache=cache, progress=ignore)
    gone = S3Store(
        S3Location(bucket="no-such-bucket", prefix="", endpoint_url=store.location.endpoint_url)
    )
    with pytest.raises(SnapshotError, match="no such bucket"):
        pull(gone, nobody, cache=cache, progress=ignore)


def test_a_push_that_fails(store: S3Store, digest: str, origin: NodeCache) -> None:
    endpoint = store.location.endpoint_url
    gone = S3Store(S3Location(bucket="no-such-bucket", prefix="", endpoint_url=endpoint))
    with pytest.raises(SnapshotError, match=f"{digest}/.*NoSuchBucket"):
        push(gone, digest, cache=origin, progress=ignore)
    nowhere = S3Store(S3Location(bucket=BUCKET, prefix="", endpoint_url="http://127.0.0.1:9"))
    with pytest.raises(SnapshotError, match="Could not connect"):
        push(nowhere, digest, cache=origin, progress=ignore)


def test_a_store_that_is_not_reachable(cache: NodeCache) -> None:
    location = S3Location(bucket=BUCKET, prefix="", endpoint_url="http://127.0.0.1:9")
    with pytest.raises(SnapshotError, match=r"s3://models/sha256-0.*Could not connect"):
        pull(S3Store(location), "sha256-" + "0" * 64, cache=cache, progress=ignore)


def test_broken_connections_are_tried_again(
    store: S3Store, pushed: str, cache: NodeCache, proxy: Proxy
) -> None:
    """Every range breaks off once, then is refused once, then comes."""
    tries: dict[int, int] = {}

    def fault(_: str, data: bytes) -> bytes | None:
        key = hash(data)
        tries[key] = tries.get(key, 0) + 1
        return {1: data[: len(data) // 2], 2: None}.get(tries[key], data)

    proxy.fault = fault
    pull(store, pushed, cache=cache, progress=ignore)
    cache.verify(pushed)
    assert set(tries.values()) == {3}


def test_a_store_that_never_recovers(
    store: S3Store, pushed: str, cache: NodeCache, proxy: Proxy
) -> None:
    proxy.fault = lambda _, __: None
    with pytest.raises(SnapshotError, match="answered 503"):
        pull(store, pushed, cache=cache, progress=ignore)
    assert not cache.has(pushed)
    proxy.reset()
    pull(store, pushed, cache=cache, progress=ignore)
    cache.verify(pushed)


def test_a_flip_on_the_way_is_fetched_again(
    store: S3Store, pushed: str, cache: NodeCache, proxy: Proxy
) -> None:
    flipped: list[str] = []

    def fault(path: str, data: bytes) -> bytes:
        if flipped:
            return data
        flipped.append(path)
        return bytes([data[0] ^ 1]) + data[1:]

    proxy.fault = fault
    pulled = pull(store, pushed, cache=cache, progress=ignore)
    total = sum(entry.size for entry in cache.verify(pushed).files.values())
    assert total < pulled.fetched_bytes <= total + PIECE_BYTES  # that piece twice


@pytest.mark.parametrize("name", [WEIGHTS, TOKENIZER])
@pytest.mark.parametrize("damage", ["flip", "cut", "longer", "missing"])
def test_objects_that_are_damaged_in_the_store(
    store: S3Store, pushed: str, cache: NodeCache, name: str, damage: str
) -> None:
    body = object_body(store, pushed, name)
    key = store.location.key(f"{pushed}/{name}")
    client = boto3.client("s3", endpoint_url=store.location.endpoint_url)
    if damage == "missing":
        client.delete_object(Bucket=BUCKET, Key=key)
    else:
        middle = len(body) // 2
        flipped = body[:middle] + bytes([body[middle] ^ 4]) + body[middle + 1 :]
        damaged = {"flip": flipped, "cut": body[:-1], "longer": body + b"x"}[damage]
        put_object(store, pushed, name, damaged)
    if damage == "longer":  # what the manifest names is there: it is what is served
        pull(store, pushed, cache=cache, progress=ignore)
        cache.verify(pushed)
        return
    with pytest.raises((CorruptSnapshot, NotFound), match=name):
        pull(store, pushed, cache=cache, progress=ignore)
    assert not cache.has(pushed)
    put_object(store, pushed, name, body)
    pull(store, pushed, cache=cache, progress=ignore)
    cache.verify(pushed)


def test_a_changed_manifest_is_refused(store: S3Store, pushed: str, cache: NodeCache) -> None:
    body = object_body(store, pushed, MANIFEST)
    put_object(store, pushed, MANIFEST, body.replace(b"tokenizer.json", b"../../etc/pass"))
    with pytest.raises(CorruptSnapshot, match="does not match the snapshot's digest"):
        pull(store, pushed, cache=cache, progress=ignore)
    assert not cache.has(pushed)


PULL = """
import sys
from pathlib import Path
from snapshot.node_cache import NodeCache
from snapshot.s3_location import parse_location
from snapshot.s3_store import S3Store
from snapshot.transfer import pull
import snapshot.fetching
snapshot.fetching.THREADS = int(sys.argv[5])
store = S3Store(parse_location(sys.argv[1], sys.argv[2]))
print("begins", flush=True)
print(pull(store, sys.argv[3], cache=NodeCache(Path(sys.argv[4])), progress=lambda _: None))
"""


def start_pull(
    store: S3Store, digest: str, cache: NodeCache, *, threads: int = 8
) -> "subprocess.Popen[str]":
    arguments = [str(store.location), str(store.location.endpoint_url), digest, str(cache.root)]
    return subprocess.Popen(
        [sys.executable, "-c", PULL, *arguments, str(threads)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_killed_in_the_middle_goes_on_where_it_was(
    store: S3Store, pushed: str, cache: NodeCache, proxy: Proxy
) -> None:
    """SIGKILL with the second piece under way: whole pieces are not fetched again."""
    second = threading.Event()
    count = itertools.count(1)

    def fault(_: str, data: bytes) -> bytes:
        if len(data) == PIECE_BYTES and next(count) == 2:
            second.set()
        return data

    proxy.fault = fault
    proxy.block_s = 0.3
    process = start_pull(store, pushed, cache, threads=1)
    try:
        assert second.wait(30)
    finally:
        process.kill()
        process.communicate()
    assert not cache.has(pushed)
    assert (cache.root / "partial" / pushed / WEIGHTS).stat().st_size > 0
    cache.clean()  # as every sealing does: it leaves a fetch that can go on

    proxy.reset()
    pulled = pull(store, pushed, cache=cache, progress=ignore)
    total = sum(entry.size for entry in cache.verify(pushed).files.values())
    assert pulled.kept_bytes >= PIECE_BYTES
    assert pulled.fetched_bytes == total - pulled.kept_bytes
    assert sum(proxy.fetched.values()) == pulled.fetched_bytes


def test_a_partial_fetch_that_was_damaged_is_repaired(
    store: S3Store, pushed: str, cache: NodeCache, origin: NodeCache, proxy: Proxy
) -> None:
    """Whatever lies in partial/, only right pieces of it are used."""
    partial = cache.root / "partial" / pushed
    partial.mkdir(parents=True)
    weights = (origin.path(pushed) / WEIGHTS).read_bytes()
    (partial / WEIGHTS).write_bytes(weights + b"more than there should be")
    flip(partial / WEIGHTS, PIECE_BYTES + 77)
    (partial / TOKENIZER).write_bytes(b"")
    pulled = pull(store, pushed, cache=cache, progress=ignore)
    cache.verify(pushed)
    entry = read_manifest(cache.path(pushed)).files[TOKENIZER]
    assert pulled.fetched_bytes == PIECE_BYTES + entry.size
    assert proxy.fetched[WEIGHTS] == PIECE_BYTES


def test_two_fetchers_in_two_processes_fetch_once(
    store: S3Store, pushed: str, cache: NodeCache, proxy: Proxy
) -> None:
    proxy.block_s = 0.2
    processes = [start_pull(store, pushed, cache) for _ in range(2)]
    for process in processes:
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert "Pulled(" in output
    total = sum(entry.size for entry in cache.verify(pushed).files.values())
    assert sum(proxy.fetched.values()) == total


def test_the_second_fetcher_takes_over_from_a_killed_one(
    store: S3Store, pushed: str, cache: NodeCache, proxy: Proxy
) -> None:
    proxy.block_s = 0.3
    first = start_pull(store, pushed, cache)
    eventually((cache.root / "partial" / pushed).exists, what="the first one fetches")
    second = start_pull(store, pushed, cache)
    assert second.stdout is not None
    assert second.stdout.readline() == "begins\n"
    first.send_signal(signal.SIGKILL)
    first.communicate()
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 0, errors
    cache.verify(pushed)


@contextlib.contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[None]:
    """A tmpfs on `path`. Skips where this user may not mount one."""
    path.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_a_disk_that_is_too_small_says_so_before_anything_is_fetched(
    store: S3Store, pushed: str, tmp_path: Path, proxy: Proxy
) -> None:
    with small_disk(tmp_path / "disk", 16 * 2**20):
        cache = NodeCache(tmp_path / "disk" / "cache")
        with pytest.raises(SnapshotError, match=r"MiB are free on its disk.*make room"):
            pull(store, pushed, cache=cache, progress=ignore)
        assert not proxy.fetched
        assert not cache.has(pushed)


def test_a_disk_that_others_fill_meanwhile(
    store: S3Store, pushed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard saw enough room; when it is taken, there is none."""
    monkeypatch.setattr(snapshot.transfer, "make_room", lambda *_, **__: None)
    with small_disk(tmp_path / "disk", 16 * 2**20):
        cache = NodeCache(tmp_path / "disk" / "cache")
        with pytest.raises(SnapshotError, match="No space left on device"):
            pull(store, pushed, cache=cache, progress=ignore)
        assert not cache.has(pushed)
        assert not (cache.root / "partial" / pushed).exists()  # the room is given back
    with small_disk(tmp_path / "larger", 64 * 2**20):
        cache = NodeCache(tmp_path / "larger" / "cache")
        pull(store, pushed, cache=cache, progress=ignore)
        cache.verify(pushed)


def _pull_with_file_limit(location: S3Location, digest: str, root: str, answers: Any) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (PIECE_BYTES, PIECE_BYTES))
    try:
        pull(S3Store(location), digest, cache=NodeCache(Path(root)), progress=ignore)
    except SnapshotError as error:
        answers.put(error.message)
    except BaseException as error:
        answers.put(repr(error))


def test_a_limit_on_file_sizes(store: S3Store, pushed: str, cache: NodeCache) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    arguments = (store.location, pushed, str(cache.root), answers)
    process = context.Process(target=_pull_with_file_limit, args=arguments)
    process.start()
    message = answers.get(timeout=60)
    process.join(30)
    assert "File too large" in message
    assert WEIGHTS in message
    assert not cache.has(pushed)


def test_a_damaged_snapshot_in_the_cache_is_replaced(
    store: S3Store, pushed: str, cache: NodeCache
) -> None:
    pull(store, pushed, cache=cache, progress=ignore)
    os.truncate(cache.path(pushed) / WEIGHTS, 1000)
    assert pull(store, pushed, cache=cache, progress=ignore).fetched_bytes > 0
    cache.verify(pushed)
    reason = (cache.root / "quarantine" / pushed / "reason.txt").read_text()
    assert f"{WEIGHTS}: 1000 bytes" in reason


def test_the_limit_holds_for_fetches(
    store: S3Store, pushed: str, cache: NodeCache, write_gguf: Callable[..., Any]
) -> None:
    older = seal(
        str(write_gguf("older.gguf", seed=5).path), dtype="bfloat16", cache=cache, progress=ignore
    )
    cache.set_limit(21 * 2**20)
    cache.pin(older)
    with pytest.raises(SnapshotError, match="--cache-limit"):
        cache.set_limit(8 * 2**20)
        pull(store, pushed, cache=cache, progress=ignore)
    assert cache.has(older)
    cache.unpin(older)
    cache.set_limit(read_size(store, pushed) + 2**16)
    pull(store, pushed, cache=cache, progress=ignore)
    assert cache.has(pushed)
    assert not cache.has(older)


def read_size(store: S3Store, digest: str) -> int:
    return sum(len(object_body(store, digest, name)) for name in (WEIGHTS, TOKENIZER, MANIFEST))


def test_sealing_on_a_full_disk(write_gguf: Callable[..., Any], tmp_path: Path) -> None:
    path = write_gguf(hidden=512, intermediate=1024, layers=4).path
    with small_disk(tmp_path / "disk", 16 * 2**20):
        cache = NodeCache(tmp_path / "disk" / "cache")
        with pytest.raises(SnapshotError, match="make room or remove snapshots"):
            seal(str(path), dtype="float32", cache=cache, progress=ignore)
        assert not cache.list()
        assert not list((cache.root / "partial").iterdir())
