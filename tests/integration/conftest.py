"""`glowplug serve` for the tests of this folder, with one sealed SmolLM2 for all of them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from s3 import BUCKET, CREDENTIALS, moto_server
from serving import MODEL, Serve, StartServe, assert_all_end, start_serve


@pytest.fixture(scope="session")
def sealed_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with SmolLM2 sealed in bfloat16 in its cache."""
    data = tmp_path_factory.mktemp("sealed")
    command = [sys.executable, "-m", "glowplug", "seal", MODEL, "--data", str(data)]
    subprocess.run(command, check=True, capture_output=True, timeout=170)
    return data


@pytest.fixture(scope="session")
def server(sealed_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """One server for the tests that leave it whole. Each test deploys functions of its own.

    What they seal stays in a copy: the tests that start servers begin with one snapshot.
    """
    serve = start_serve(copy_of(sealed_data, tmp_path_factory.mktemp("server")))
    yield serve
    below = serve.below()
    assert serve.stop() == 0
    assert_all_end(below)


@pytest.fixture
def data(sealed_data: Path, tmp_path: Path) -> Path:
    """A new data folder, with SmolLM2 in its cache (hard links: no bytes are copied)."""
    return copy_of(sealed_data, tmp_path / "data")


def copy_of(sealed_data: Path, folder: Path) -> Path:
    """`folder` with the same cache."""
    shutil.copytree(sealed_data / "cache", folder / "cache", copy_function=os.link)
    return folder


@pytest.fixture
def start(data: Path) -> Iterator[StartServe]:
    """Starts servers on the same new data folder, one after another, for tests that kill things."""
    started: list[Serve] = []

    def start_one(*options: str) -> Serve:
        started.append(start_serve(data, *options))
        return started[-1]

    yield start_one
    for serve in started:
        below = serve.below() if serve.process.poll() is None else []
        serve.stop()
        assert_all_end(below)


@pytest.fixture
def s3_endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An S3 with an empty bucket; every process that is started gets its credentials."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with moto_server() as port:
        endpoint = f"http://127.0.0.1:{port}"
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=BUCKET)
        yield endpoint


@pytest.fixture(scope="module")
def sealed_copy(sealed_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new data folder for a module's own server, with SmolLM2 in its cache."""
    return copy_of(sealed_data, tmp_path_factory.mktemp("server"))
