"""An S3 on loopback (moto's server), for the tier in which only the store holds a snapshot."""

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
from servers import child, free_port

from snapshot.fetching import THREADS
from snapshot.hashing import PIECE_BYTES
from snapshot.manifest import WEIGHTS
from snapshot.s3_location import S3Location
from snapshot.s3_store import S3Store

BUCKET = "bench"
START_LIMIT_S = 60.0
PUSH_LIMIT_S = 600.0
_CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def why_no_store() -> str | None:
    """Why there is no S3 to measure with, and what to do; None: there is one."""
    missing = [name for name in ("moto", "flask") if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    return f"{' and '.join(missing)} missing, moto's server stands in for S3: pip install -e .[dev]"


@contextlib.contextmanager
def s3_on_loopback() -> Iterator[S3Location]:
    """An empty bucket behind real HTTP. Credentials for it are in the environment meanwhile."""
    port = free_port()
    location = S3Location(bucket=BUCKET, prefix="", endpoint_url=f"http://127.0.0.1:{port}")
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    before = dict(os.environ)
    os.environ.update(_CREDENTIALS)
    try:
        with child(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as moto:
            bucket = f"{location.endpoint_url}/{BUCKET}"
            deadline_s = time.monotonic() + START_LIMIT_S
            while not _made(bucket):
                if moto.poll() is not None or time.monotonic() > deadline_s:
                    raise SystemExit("moto's server did not start: python -m moto.server says why")
                time.sleep(0.1)
            yield location
    finally:
        os.environ.clear()
        os.environ.update(before)


def wait_until_pushed(location: S3Location, digest: str) -> None:
    """Until the store holds the whole snapshot."""
    store = S3Store(location)
    deadline_s = time.monotonic() + PUSH_LIMIT_S
    while not store.has(digest):
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{digest} was not pushed within {PUSH_LIMIT_S:.0f} s")
        time.sleep(0.2)


def s3_bytes_per_s(location: S3Location, digest: str, size: int, *, rounds: int = 3) -> float:
    """The best of plain ranged reads of a snapshot's weights, which are thrown away: the pieces and
    connections of a fetch, without its hashing and writing."""
    store = S3Store(location)

    def read(offset: int) -> int:
        piece = min(PIECE_BYTES, size - offset)
        return sum(map(len, store.read(digest, WEIGHTS, offset=offset, size=piece)))

    times = []
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in range(rounds):
            began_s = time.perf_counter()
            if sum(pool.map(read, range(0, size, PIECE_BYTES))) != size:
                raise SystemExit("the store sent other bytes than were asked for")
            times.append(time.perf_counter() - began_s)
    return size / min(times)


def _made(bucket: str) -> bool:
    try:
        return httpx.put(bucket, timeout=5).status_code == 200
    except httpx.TransportError:
        return False
