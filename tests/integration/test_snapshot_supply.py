"""Lost, damaged, evicted and untrusted snapshots under a real server with the real model."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from s3 import BUCKET
from serving import MODEL, StartServe, ask, deploy, eventually, wait_for_state

from glowplug.errors import Unavailable
from snapshot.manifest import WEIGHTS
from snapshot.node_cache import NodeCache

pytestmark = pytest.mark.model


def glowplug(data: Path, *arguments: str, code: int = 0) -> str:
    """What a command says on stdout (on stderr, where it has to fail)."""
    ended = subprocess.run(
        [sys.executable, "-m", "glowplug", *arguments, "--data", str(data)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == code, ended.stderr
    return ended.stderr if code else ended.stdout


def flip(path: Path, at: int) -> None:
    """Of a copy: the tests' caches share files."""
    copy = path.with_suffix(".copy")
    shutil.copy(path, copy)
    copy.rename(path)
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 64]))


def test_removed_while_in_use_and_at_zero(start: StartServe, data: Path) -> None:
    server = start()
    with server.client() as client:
        digest = deploy(client, "kept", idle_s=1)["snapshot"]
        first = ask(client, "kept")
        assert "Paris" in first.text
        error = glowplug(data, "snapshots", "rm", digest, code=1)
        assert f"in use (by process {server.replica().pid})" in error
        assert "in use" in glowplug(data, "snapshots", "ls")

        wait_for_state(client, "kept", "zero")
        eventually(
            lambda: not NodeCache(data / "cache").list()[0].users, what="the replica is gone"
        )
        glowplug(data, "snapshots", "rm", digest)
        again = ask(client, "kept")  # it waits while the model is sealed again
        assert again.text == first.text
        assert first.start_kind in ("snapshot", "cache")
        assert again.start_kind == "cold"
        assert client.function("kept")["snapshot"] == digest


def test_a_flipped_bit_is_never_served(start: StartServe, data: Path) -> None:
    server = start("--verify", "always")
    with server.client() as client:
        digest = deploy(client, "checked", idle_s=60)["snapshot"]
        weights = data / "cache" / digest / WEIGHTS
        flip(weights, weights.stat().st_size // 2)
        answer = ask(client, "checked")
        assert "Paris" in answer.text
        assert answer.start_kind == "cold"
        quarantined = data / "cache" / "quarantine" / digest
        assert "its bytes changed since it was sealed" in (quarantined / "reason.txt").read_text()
        function = client.function("checked")
        assert function["snapshot"] == digest
        assert function["last_start_ms"]["verify"] > 0
    assert glowplug(data, "snapshots", "verify", digest) == f"{digest} is whole\n"


@pytest.mark.slow
def test_evicted_and_fetched_from_s3(start: StartServe, data: Path, s3_endpoint: str) -> None:
    store = ("--store", f"s3://{BUCKET}/snapshots", "--store-endpoint", s3_endpoint)
    server = start(*store, "--cache-limit", "2GiB")
    with server.client() as client:
        digest = deploy(client, "shared", idle_s=60)["snapshot"]
        eventually(lambda: f"pushed {digest}" in server.log(), what="the snapshot is pushed")
        assert glowplug(data, "snapshots", "gc", "--limit", "0").startswith(f"{digest} evicted")
        answer = ask(client, "shared")
        assert "Paris" in answer.text
        assert answer.start_kind == "cold"
        assert f"fetching {digest}" in server.log()
        glowplug(data, "snapshots", "pin", digest)
        assert digest not in glowplug(data, "snapshots", "gc", "--limit", "0")

    elsewhere = data.with_name("elsewhere")
    assert "in the cache" in glowplug(elsewhere, "snapshots", "pull", digest, *store)
    assert "(0 MiB fetched)" in glowplug(elsewhere, "snapshots", "pull", digest[7:], *store)
    assert " is in s3://" in glowplug(elsewhere, "snapshots", "push", digest, *store)
    assert glowplug(elsewhere, "snapshots", "ls", "--remote", *store) == f"{digest}\n"
    error = glowplug(elsewhere, "snapshots", "pull", "0" * 64, *store, code=1)
    assert "not there" in error
    error = glowplug(elsewhere, "snapshots", "pull", digest, "--store", "models", code=1)
    assert "write s3://BUCKET/PREFIX" in error


def test_only_what_is_signed_is_served(start: StartServe, data: Path, tmp_path: Path) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    private, public = tmp_path / "key.pem", tmp_path / "key.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    server = start("--trust", str(public))
    (digest,) = (each.digest for each in NodeCache(data / "cache").list())
    with server.client() as client:
        client.deploy({"name": "signed", "model": MODEL})
        wait_for_state(client, "signed", "failed")
        with pytest.raises(Unavailable, match=r"is not signed, and --trust"):
            ask(client, "signed")
        error = glowplug(data, "snapshots", "verify", digest, "--key", str(public), code=1)
        assert "is not signed" in error
        assert "signed" in glowplug(data, "snapshots", "sign", digest, "--key", str(private))
        assert "whole and signed" in glowplug(
            data, "snapshots", "verify", digest, "--key", str(public)
        )
        deploy(client, "signed")
        assert "Paris" in ask(client, "signed").text

        wrong = "sha256-" + "0" * 64
        client.deploy({"name": "pinned", "model": MODEL, "digest": wrong})
        wait_for_state(client, "pinned", "failed")
        with pytest.raises(Unavailable) as caught:
            ask(client, "pinned")
        assert digest in caught.value.message
        assert wrong in caught.value.message


def test_a_mistyped_model_fails_at_once_and_its_callers_are_told(
    start: StartServe, tmp_path: Path
) -> None:
    server = start()
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "mamba"}')
    with server.client() as client:
        client.deploy({"name": "typo", "model": "/none/such.gguf"})
        client.deploy({"name": "strange", "model": str(folder)})
        for name, reason in (("typo", "/none/such.gguf: no such file"), ("strange", "mamba")):
            wait_for_state(client, name, "failed")
            with pytest.raises(Unavailable, match=reason):
                ask(client, name)
    assert not list((server.data / "cache" / "partial").iterdir())
