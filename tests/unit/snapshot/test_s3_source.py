"""Models sealed from s3:// addresses, against moto over HTTP: found, fetched, resumed, refused."""

import asyncio
import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import boto3
import pytest
from s3 import BUCKET, Proxy

import snapshot.fetching
import snapshot.s3_bucket
from glowplug.errors import CorruptSnapshot, SnapshotError, UnsupportedModel
from glowplug.spec import FunctionSpec, parse_spec
from snapshot.eviction import collect_garbage
from snapshot.hashing import PIECE_BYTES
from snapshot.manifest import WEIGHTS, read_manifest
from snapshot.node_cache import NodeCache
from snapshot.s3_download import FILES, download
from snapshot.s3_location import S3Location
from snapshot.s3_source import S3File, S3Source, list_source
from snapshot.seal import seal
from snapshot.seal_anywhere import seal_anywhere
from snapshot.sealer import ProcessSealer

PREFIXES = itertools.count()
SaveHf = Callable[..., tuple[Path, Any]]


def ignore(_: float) -> None:
    pass


class Folder:
    """A prefix of its own in the bucket."""

    def __init__(self, proxy: Proxy) -> None:
        self.endpoint = proxy.endpoint
        self.prefix = f"source-{next(PREFIXES)}"
        self.address = f"s3://{BUCKET}/{self.prefix}"
        self.client = boto3.client("s3", endpoint_url=proxy.endpoint)

    def put(self, name: str, body: bytes) -> str:
        self.client.put_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}", Body=body)
        return f"{self.address}/{name}"

    def put_folder(self, folder: Path) -> str:
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(str(path.relative_to(folder)), path.read_bytes())
        return self.address

    def list(self, name: str = "") -> S3Source:
        return list_source(f"{self.address}/{name}", self.endpoint)

    def seal(self, address: str, cache: NodeCache, **options: Any) -> str:
        return seal_anywhere(
            address,
            dtype="float32",
            endpoint_url=self.endpoint,
            cache=cache,
            progress=options.pop("progress", ignore),
            **options,
        )


@pytest.fixture
def s3(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Folder:
    proxy.reset()
    monkeypatch.setattr(snapshot.fetching, "_FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(snapshot.s3_bucket, "_ATTEMPTS", 1)
    return Folder(proxy)


def weights_of(cache: NodeCache, digest: str) -> str:
    return read_manifest(cache.path(digest)).files[WEIGHTS].sha256


def nothing_is_left(cache: NodeCache) -> bool:
    return not any((cache.root / "partial").glob("source-*"))


@pytest.mark.parametrize("shard_bytes", [1 << 30, 20_000], ids=["whole", "sharded"])
def test_a_huggingface_folder(
    s3: Folder, cache: NodeCache, tmp_path: Path, save_hf: SaveHf, shard_bytes: int
) -> None:
    folder, _ = save_hf("llama", shard_bytes=shard_bytes)
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    (folder / "consolidated.safetensors").write_bytes(b"the same weights in another format")
    (folder / "README.md").write_text("# A model")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"something else")
    address = s3.put_folder(folder)
    seen: list[float] = []
    digest = s3.seal(f"{address}/", cache, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    manifest = cache.verify(digest)
    assert manifest.source == address
    local = NodeCache(tmp_path / "local")
    for extra in ("consolidated.safetensors", "pytorch_model.bin"):
        (folder / extra).unlink()
    same = seal(str(folder), dtype="float32", cache=local, progress=ignore)
    assert weights_of(cache, digest) == weights_of(local, same)
    assert nothing_is_left(cache)
    names = {file.name for file in s3.list().files}
    assert names.isdisjoint(
        {"pytorch_model.bin", "consolidated.safetensors", "README.md", "onnx/model.onnx"}
    )


def test_a_gguf_object(
    s3: Folder, cache: NodeCache, write_gguf: Callable[..., Any], tmp_path: Path
) -> None:
    path = write_gguf().path
    address = s3.put("some model.GGUF", path.read_bytes())
    digest = s3.seal(address, cache)
    assert cache.verify(digest).source == address
    local = NodeCache(tmp_path / "local")
    same = seal(str(path), dtype="float32", cache=local, progress=ignore)
    assert weights_of(cache, digest) == weights_of(local, same)
    assert nothing_is_left(cache)


def test_a_draft_model_from_s3_beside_a_local_one(
    s3: Folder, cache: NodeCache, write_gguf: Callable[..., Any]
) -> None:
    path = write_gguf().path
    address = s3.put("draft.gguf", path.read_bytes())
    both = s3.seal(str(path), cache, draft=address)
    manifest = cache.verify(both)
    assert manifest.draft is not None
    assert manifest.draft.source == address
    same = s3.seal(address, cache, draft=address)  # one download for both
    assert cache.verify(same).draft is not None
    assert nothing_is_left(cache)
    with pytest.raises(SnapshotError, match=r"^draft_model: s3://models/.*not there"):
        s3.seal(str(path), cache, draft=f"{s3.address}/other.gguf")


def test_sealed_once_and_again_when_an_object_changes(
    s3: Folder, cache: NodeCache, save_hf: SaveHf, proxy: Proxy
) -> None:
    folder, _ = save_hf("llama")
    address = s3.put_folder(folder)
    first = s3.seal(address, cache)
    proxy.reset()
    assert s3.seal(address, cache) == first
    assert not proxy.fetched
    s3.put("README.md", b"what sealing does not read does not count")
    assert s3.seal(address, cache) == first
    assert not proxy.fetched
    config = json.loads((folder / "config.json").read_text())
    s3.put("config.json", json.dumps({**config, "rms_norm_eps": 0.5}).encode())
    second = s3.seal(address, cache)
    assert second != first
    assert read_manifest(cache.path(second)).source == address


def test_the_identity_is_that_of_the_contents_and_the_service() -> None:
    def source(endpoint: str, *etags: str) -> S3Source:
        files = [
            S3File(name=f"{number}.json", key=f"m/{number}.json", size=1, etag=etag)
            for number, etag in enumerate(etags)
        ]
        location = S3Location(bucket=BUCKET, prefix="m", endpoint_url=endpoint)
        return S3Source(location=location, kind="huggingface", files=tuple(files))

    one = source("http://a", "1", "2").identity
    assert one == source("http://a", "1", "2").identity
    others = {
        source("http://b", "1", "2").identity,
        source("http://a", "1", "3").identity,
        source("http://a", "1").identity,
    }
    assert len({one, *others}) == 4


REFUSED = [
    ("nothing", {}, "", SnapshotError, "nothing is there"),
    ("no gguf", {}, "m.gguf", SnapshotError, "not there"),
    ("no config", {"model.safetensors": b""}, "", UnsupportedModel, "no config.json"),
    ("no weights", {"config.json": b"{}"}, "", CorruptSnapshot, "no model.safetensors"),
    (
        "pickles",
        {"config.json": b"{}", "pytorch_model.bin": b"x"},
        "",
        UnsupportedModel,
        "only pickled weights",
    ),
    ("a pickle", {"model.pt": b"x"}, "model.pt", UnsupportedModel, "Python pickles"),
    ("a shard", {"a.safetensors": b"x"}, "a.safetensors", UnsupportedModel, "give the folder"),
    ("a text", {"a.txt": b"x"}, "a.txt", UnsupportedModel, "not a .gguf file"),
    (
        "no shard",
        {
            "config.json": b"{}",
            "model.safetensors.index.json": b'{"weight_map": {"a": "b.safetensors"}}',
        },
        "",
        CorruptSnapshot,
        "b.safetensors: missing",
    ),
    (
        "leaving",
        {
            "config.json": b"{}",
            "model.safetensors.index.json": b'{"weight_map": {"a": "../b.safetensors"}}',
        },
        "",
        UnsupportedModel,
        "only .safetensors files beside it",
    ),
    (
        "damaged index",
        {"config.json": b"{}", "model.safetensors.index.json": b"[["},
        "",
        CorruptSnapshot,
        "no weight_map",
    ),
]


@pytest.mark.parametrize(
    ("objects", "name", "kind", "message"),
    [row[1:] for row in REFUSED],
    ids=[row[0] for row in REFUSED],
)
def test_what_is_refused(
    s3: Folder,
    cache: NodeCache,
    objects: dict[str, bytes],
    name: str,
    kind: type[SnapshotError],
    message: str,
) -> None:
    for each, body in objects.items():
        s3.put(each, body)
    with pytest.raises(kind, match=message) as caught:
        s3.seal(f"{s3.address}/{name}", cache)
    assert caught.value.message.startswith(s3.address)
    assert not cache.root.exists() or nothing_is_left(cache)


def test_what_is_refused_for_its_size(
    s3: Folder, save_hf: SaveHf, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put_folder(save_hf("llama")[0])
    monkeypatch.setattr("snapshot.s3_source._MAX_SMALL_BYTES", 10)
    with pytest.raises(UnsupportedModel, match="10 at most are read"):
        s3.list()
    monkeypatch.setattr("snapshot.s3_source._MAX_LISTED", 3)
    with pytest.raises(SnapshotError, match="over 3 objects"):
        s3.list()


def test_no_bucket_no_access_and_no_service(
    s3: Folder, cache: NodeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SnapshotError, match="there is no such bucket"):
        s3.seal("s3://no-such-bucket/m", cache)
    with pytest.raises(SnapshotError, match="write s3://BUCKET/PREFIX"):
        s3.seal("s3://", cache)
    with pytest.raises(SnapshotError, match="Could not connect"):
        list_source(s3.address, "http://127.0.0.1:9")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    with pytest.raises(SnapshotError, match="Unable to locate credentials"):
        s3.seal(s3.address, cache)


def test_a_model_that_is_none_is_named_by_its_address(s3: Folder, cache: NodeCache) -> None:
    s3.put("config.json", b'{"model_type": "mamba"}')
    s3.put("model.safetensors", b"x" * 100)
    with pytest.raises(UnsupportedModel, match="mamba") as caught:
        s3.seal(s3.address, cache)
    assert caught.value.message.startswith(f"{s3.address}/config.json: ")
    assert nothing_is_left(cache)


def large(s3: Folder, *, pieces: int = 3) -> S3Source:
    """A folder with large weights: no model, but a thing to fetch."""
    s3.put("config.json", b"{}")
    s3.put("model.safetensors", bytes(range(256)) * (PIECE_BYTES * pieces // 256) + b"the end")
    return s3.list()


def test_broken_connections_are_tried_again(
    s3: Folder, cache: NodeCache, proxy: Proxy, tmp_path: Path
) -> None:
    source = large(s3)
    tries: dict[int, int] = {}

    def fault(_: str, data: bytes) -> bytes | None:
        key = hash(data)
        tries[key] = tries.get(key, 0) + 1
        return {1: data[: len(data) // 2], 2: None}.get(tries[key], data)

    proxy.fault = fault
    folder = tmp_path / "download"
    pulled = download(source, folder, cache=cache, progress=ignore)
    assert (folder / FILES / "model.safetensors").stat().st_size == source.files[1].size
    assert (folder / FILES / "model.safetensors").read_bytes()[-7:] == b"the end"
    assert pulled.kept_bytes == 0


def test_an_object_that_changes_while_it_is_fetched(
    s3: Folder, cache: NodeCache, tmp_path: Path
) -> None:
    source = large(s3)
    s3.put("model.safetensors", b"another one")
    with pytest.raises(SnapshotError, match="it changed while it was fetched"):
        download(source, tmp_path / "download", cache=cache, progress=ignore)
    s3.client.delete_object(Bucket=BUCKET, Key=source.files[1].key)
    s3.put("config.json", b"{}")
    with pytest.raises(Exception, match=r"model.safetensors: not there"):
        download(source, tmp_path / "download", cache=cache, progress=ignore)


def test_what_arrived_is_kept_if_it_is_whole(
    s3: Folder, cache: NodeCache, tmp_path: Path, proxy: Proxy
) -> None:
    source, folder = large(s3), tmp_path / "download"
    download(source, folder, cache=cache, progress=ignore)
    weights = folder / FILES / "model.safetensors"
    whole = weights.read_bytes()
    again = download(source, folder, cache=cache, progress=ignore)
    assert (again.fetched_bytes, again.kept_bytes) == (0, source.size_bytes)

    with weights.open("r+b") as file:  # one byte of the second piece
        file.seek(PIECE_BYTES + 5)
        file.write(b"\0\xff")
    journal = folder / "pieces.jsonl"
    journal.write_text(
        journal.read_text() + '[[], 1]\n{"a": 1}\n["model.safetensors", 0, 3, "a"]\n['
    )
    proxy.reset()
    repaired = download(source, folder, cache=cache, progress=ignore)
    assert repaired.fetched_bytes == PIECE_BYTES
    assert weights.read_bytes() == whole

    s3.put("config.json", b"{ }")  # another source: nothing of the old one is used
    changed = download(s3.list(), folder, cache=cache, progress=ignore)
    assert changed.kept_bytes == 0


SEAL = """
import sys
from pathlib import Path
import snapshot.fetching
from snapshot.node_cache import NodeCache
from snapshot.seal_anywhere import seal_anywhere
snapshot.fetching.THREADS = 1
cache = NodeCache(Path(sys.argv[3]))
print(seal_anywhere(sys.argv[1], dtype="float32", endpoint_url=sys.argv[2], cache=cache,
                    progress=lambda _: None))
"""


def start_seal(s3: Folder, address: str, cache: NodeCache) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", SEAL, address, s3.endpoint, str(cache.root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def model(s3: Folder, save_hf: SaveHf) -> str:
    """A model of more than two pieces."""
    folder, _ = save_hf("llama", hidden_size=512, intermediate_size=1024, num_attention_heads=8)
    assert (folder / "model.safetensors").stat().st_size > 2 * PIECE_BYTES
    return s3.put_folder(folder)


def test_killed_in_the_middle_goes_on_where_it_was(
    s3: Folder, model: str, cache: NodeCache, proxy: Proxy
) -> None:
    """SIGKILL with the second piece under way: the first one is not fetched again."""
    second, count = threading.Event(), itertools.count(1)

    def fault(_: str, data: bytes) -> bytes:
        if len(data) == PIECE_BYTES and next(count) == 2:
            second.set()
        return data

    proxy.fault = fault
    proxy.block_s = 0.3
    process = start_seal(s3, model, cache)
    try:
        assert second.wait(60)
    finally:
        process.kill()
        process.communicate()
    assert not nothing_is_left(cache)
    cache.clean()

    proxy.reset()
    digest = s3.seal(model, cache)
    cache.verify(digest)
    size = sum(file.size for file in s3.list().files)
    assert sum(proxy.fetched.values()) <= size - PIECE_BYTES
    assert nothing_is_left(cache)


def test_two_processes_fetch_once(
    s3: Folder, cache: NodeCache, write_gguf: Callable[..., Any], proxy: Proxy
) -> None:
    data = write_gguf().path.read_bytes()
    address = s3.put("m.gguf", data)
    proxy.block_s = 0.5
    processes = [start_seal(s3, address, cache) for _ in range(2)]
    digests = set()
    for process in processes:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        digests.add(output.strip())
    assert len(digests) == 1
    assert sum(proxy.fetched.values()) == len(data)


def test_a_fetch_that_was_given_up_is_garbage(
    s3: Folder, cache: NodeCache, model: str, proxy: Proxy
) -> None:
    proxy.fault = lambda _, data: None if len(data) == PIECE_BYTES else data
    with pytest.raises(SnapshotError, match="answered 503"):
        s3.seal(model, cache)
    assert not nothing_is_left(cache)
    assert collect_garbage(cache).freed_bytes > 0
    assert nothing_is_left(cache)


def test_it_must_fit(s3: Folder, cache: NodeCache, model: str) -> None:
    cache.set_limit(PIECE_BYTES)
    with pytest.raises(SnapshotError, match="do not fit the cache's limit"):
        s3.seal(model, cache)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(120):
            await main()

    asyncio.run(limited())


def spec(model: str, **fields: Any) -> FunctionSpec:
    return parse_spec({"name": "f", "model": model, "dtype": "float32", **fields})


@pytest.mark.slow
def test_through_the_sealer(
    s3: Folder, cache: NodeCache, write_gguf: Callable[..., Any], proxy: Proxy
) -> None:
    address = s3.put("m.gguf", write_gguf().path.read_bytes())

    async def main() -> None:
        proxy.reset()
        sealer = ProcessSealer(cache, s3_endpoint=s3.endpoint)
        await sealer.check(spec(address))
        assert await sealer.recorded(spec(address)) is None
        assert proxy.requests == {"HEAD": 1}  # one listing for both
        digest = await sealer.seal(spec(address), ignore)
        cache.verify(digest)
        proxy.reset()
        assert await sealer.recorded(spec(address)) == digest
        assert await sealer.seal(spec(address), ignore) == digest
        assert not proxy.fetched

        s3.put("m.gguf", write_gguf(seed=1).path.read_bytes())
        await sealer.check(spec(address))  # as each deploy does
        assert await sealer.recorded(spec(address)) is None
        assert await sealer.seal(spec(address), ignore) != digest

        for bad in (f"{s3.address}/n.gguf", "s3://no-such-bucket/m", "s3://x"):
            with pytest.raises(SnapshotError, match=r"not there|no such bucket|no S3 address"):
                await sealer.check(spec(bad))

    run(main)
