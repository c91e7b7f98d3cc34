"""SnapshotSupply: cache, then store, then source; pinned digests and trust. Against moto."""

import asyncio
import itertools
import os
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from s3 import BUCKET, CREDENTIALS, Proxy

from glowplug.errors import SnapshotError
from glowplug.spec import FunctionSpec, parse_spec
from snapshot.manifest import WEIGHTS
from snapshot.node_cache import NodeCache
from snapshot.s3_location import S3Location
from snapshot.s3_store import S3Store
from snapshot.seal import seal
from snapshot.sealer import ProcessSealer
from snapshot.signatures import sign
from snapshot.supply import SnapshotSupply
from snapshot.transfer import pull

PREFIXES = itertools.count()
NOBODY = "sha256-" + "0" * 64


@pytest.fixture
def location(proxy: Proxy) -> S3Location:
    proxy.reset()
    prefix = f"supply-{next(PREFIXES)}"
    return S3Location(bucket=BUCKET, prefix=prefix, endpoint_url=proxy.endpoint)


@pytest.fixture
def model(write_gguf: Callable[..., Any]) -> Path:
    return write_gguf().path


@pytest.fixture
def digest(model: Path, cache: NodeCache) -> str:
    return seal(str(model), dtype="bfloat16", cache=cache, progress=ignore)


def ignore(_: float) -> None:
    pass


def spec(model: Path, **fields: Any) -> FunctionSpec:
    return parse_spec({"name": "f", "model": str(model), **fields})


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(120):
            await main()

    asyncio.run(limited())


def supply(cache: NodeCache, **options: Any) -> SnapshotSupply:
    return SnapshotSupply(cache, ProcessSealer(cache), **options)


def test_what_is_in_the_cache_needs_no_store(cache: NodeCache, model: Path, digest: str) -> None:
    unreachable = S3Location(bucket=BUCKET, prefix="", endpoint_url="http://127.0.0.1:9")
    os.utime(cache.root / "use" / digest, (1, 1))

    async def main() -> None:
        house = supply(cache, store=unreachable)
        await house.check(spec(model))
        seen: list[float] = []
        assert await house.seal(spec(model), seen.append) == digest
        assert set(seen) == {1.0}
        assert cache.last_used_s(digest) > 1
        await house.stop()

    run(main)


def test_sealed_once_pushed_and_fetched_by_another_node(
    cache: NodeCache, model: Path, location: S3Location, tmp_path: Path, proxy: Proxy
) -> None:
    other = NodeCache(tmp_path / "other")

    async def main() -> None:
        house = supply(cache, store=location)
        digest = await house.seal(spec(model), ignore)
        await asyncio.gather(*house._pushes)
        assert S3Store(location).has(digest)

        seen: list[float] = []
        await asyncio.to_thread(model.unlink)  # the other node does not have the source
        pinned = spec(model, digest=digest)
        elsewhere = supply(other, store=location)
        await elsewhere.check(pinned)
        assert await elsewhere.seal(pinned, seen.append) == digest
        assert seen[0] < 1.0
        assert seen[-1] == 1.0
        other.verify(digest)
        assert not elsewhere._pushes  # it came from there

    run(main)
    assert proxy.fetched[WEIGHTS] > 0


def test_an_evicted_snapshot_is_fetched_not_sealed(
    cache: NodeCache, model: Path, digest: str, location: S3Location, proxy: Proxy
) -> None:
    async def main() -> None:
        house = supply(cache, store=location)
        await house.seal(spec(model), ignore)
        await asyncio.gather(*house._pushes)
        assert cache.evict(digest)
        proxy.reset()
        assert await house.seal(spec(model), ignore) == digest
        cache.verify(digest)

    run(main)
    assert proxy.fetched[WEIGHTS] > 0


def test_a_store_that_is_down_costs_only_the_time_to_seal(
    cache: NodeCache, model: Path, digest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreachable = S3Location(bucket=BUCKET, prefix="", endpoint_url="http://127.0.0.1:9")
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)

    async def main() -> None:
        cache.evict(digest)
        house = supply(cache, store=unreachable)
        assert await house.seal(spec(model), ignore) == digest
        cache.verify(digest)
        await house.stop()
        cache.evict(digest)
        await asyncio.to_thread(model.unlink)
        pinned = spec(model, digest=digest)
        with pytest.raises(SnapshotError, match=r"no such file.*not fetched:.*Could not connect"):
            await house.seal(pinned, ignore)

    run(main)


def test_a_cut_snapshot_is_replaced(cache: NodeCache, model: Path, digest: str) -> None:
    os.truncate(cache.path(digest) / WEIGHTS, 99)

    async def main() -> None:
        assert await supply(cache).seal(spec(model), ignore) == digest

    run(main)
    cache.verify(digest)
    assert (cache.root / "quarantine" / digest / "reason.txt").exists()


def test_a_pinned_digest(
    cache: NodeCache, model: Path, digest: str, write_gguf: Callable[..., Any]
) -> None:
    other = write_gguf("other.gguf", seed=9).path

    async def main() -> None:
        house = supply(cache)
        assert await house.seal(spec(model, digest=digest), ignore) == digest
        swapped = spec(model, digest=NOBODY)
        with pytest.raises(SnapshotError, match=f"sealed it is {digest}, but .* is {NOBODY}"):
            await house.seal(swapped, ignore)
        shutil.copy(other, model)  # somebody replaced the file
        assert await house.seal(spec(model, digest=digest), ignore) == digest  # it is in the cache
        cache.remove(digest)
        with pytest.raises(SnapshotError, match=f"but the function's digest is {digest}"):
            await house.seal(spec(model, digest=digest), ignore)

    run(main)


def test_check_says_at_once_what_is_not_there(cache: NodeCache, model: Path, digest: str) -> None:
    missing = model.with_name("missing.gguf")

    async def main() -> None:
        house = supply(cache)
        for wanted in (spec(missing), spec(missing, digest=NOBODY)):
            with pytest.raises(SnapshotError, match="no such file"):
                await house.check(wanted)
        await house.check(spec(missing, digest=digest))  # its snapshot is here
        with_store = supply(cache, store=S3Location(bucket=BUCKET, prefix=""))
        await with_store.check(spec(missing, digest=NOBODY))  # the store may have it
        with pytest.raises(SnapshotError, match="no such file"):
            await with_store.check(spec(missing))

    run(main)


def test_only_signed_snapshots_are_trusted(
    cache: NodeCache, model: Path, digest: str, location: S3Location, tmp_path: Path
) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    path = tmp_path / "key.pem"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))

    async def main() -> None:
        house = supply(cache, trusted=[key.public_key()], store=location)
        assert "is not signed" in (house.refusal(spec(model), digest) or "")
        with pytest.raises(SnapshotError, match="is not signed"):
            await house.seal(spec(model), ignore)
        assert not house._pushes
        sign(cache.path(digest), path)
        assert house.refusal(spec(model), digest) is None
        assert await house.seal(spec(model), ignore) == digest
        await asyncio.gather(*house._pushes)
        stranger = supply(cache, trusted=[ed25519.Ed25519PrivateKey.generate().public_key()])
        with pytest.raises(SnapshotError, match="signed by none of the trusted keys"):
            await stranger.seal(spec(model), ignore)

        other = NodeCache(tmp_path / "other")  # the signature travels with it
        await asyncio.to_thread(pull, S3Store(location), digest, cache=other, progress=ignore)
        assert supply(other, trusted=[key.public_key()]).refusal(spec(model), digest) is None

    run(main)


def test_starting_imports_neither_boto3_nor_cryptography() -> None:
    import subprocess
    import sys

    code = (
        "import sys, glowplug.serve, runtime.pod.supervisor, glowplug.cli.main\n"
        "found = {'boto3', 'botocore', 'cryptography', 'torch'} & sys.modules.keys()\n"
        "sys.exit(str(found) if found else 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert ended.returncode == 0, ended.stderr
