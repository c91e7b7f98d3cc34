"""Signatures, our own and as openssl and cosign make them; everything else is refused."""

import base64
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from glowplug.errors import GlowplugError, SnapshotError
from snapshot.manifest import MANIFEST
from snapshot.node_cache import NodeCache
from snapshot.seal import seal
from snapshot.signatures import SIGNATURE, check_signature, read_public_keys, sign

KINDS: dict[str, Callable[[], Any]] = {
    "p256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ed25519": ed25519.Ed25519PrivateKey.generate,
    "p384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "rsa": lambda: rsa.generate_private_key(65537, 2048),
}


@pytest.fixture
def folder(write_gguf: Callable[..., Any], cache: NodeCache) -> Path:
    path = write_gguf().path
    return cache.path(seal(str(path), dtype="bfloat16", cache=cache, progress=lambda _: None))


def write_keys(folder: Path, kind: str, name: str = "key") -> tuple[Path, Path]:
    """The private and the public key's files."""
    key = KINDS[kind]()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


@pytest.mark.parametrize("kind", ["p256", "ed25519"])
def test_signed_and_checked(folder: Path, tmp_path: Path, kind: str) -> None:
    private, public = write_keys(tmp_path, kind)
    _, stranger = write_keys(tmp_path, kind, "stranger")
    with pytest.raises(SnapshotError, match=r"is not signed.*glowplug snapshots sign"):
        check_signature(folder, read_public_keys([public]))
    sign(folder, private)
    check_signature(folder, read_public_keys([public]))
    check_signature(folder, read_public_keys([stranger, public]))  # one is enough
    with pytest.raises(SnapshotError, match="signed by none of the trusted keys"):
        check_signature(folder, read_public_keys([stranger]))


@pytest.mark.parametrize("kind", ["p256", "ed25519"])
def test_a_changed_manifest_or_signature(folder: Path, tmp_path: Path, kind: str) -> None:
    private, public = write_keys(tmp_path, kind)
    sign(folder, private)
    keys = read_public_keys([public])
    manifest = (folder / MANIFEST).read_bytes()
    (folder / MANIFEST).write_bytes(manifest.replace(b"bfloat16", b"float32"))
    with pytest.raises(SnapshotError, match="or was changed since"):
        check_signature(folder, keys)
    (folder / MANIFEST).write_bytes(manifest)
    raw = base64.b64decode((folder / SIGNATURE).read_bytes())
    for damaged in (raw[:-1], b"", raw + b"\0", bytes([raw[0] ^ 1]) + raw[1:]):
        (folder / SIGNATURE).write_bytes(base64.b64encode(damaged))
        with pytest.raises(SnapshotError, match="signed by none"):
            check_signature(folder, keys)
    (folder / SIGNATURE).write_bytes(b"!" * 100_000)
    with pytest.raises(SnapshotError, match="not base64"):
        check_signature(folder, keys)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")
def test_a_signature_of_openssl_as_cosign_makes_it(folder: Path, tmp_path: Path) -> None:
    def openssl(*arguments: str) -> bytes:
        command = ["openssl", *arguments]
        return subprocess.run(command, check=True, capture_output=True, timeout=30).stdout

    private, public = str(tmp_path / "ec.pem"), tmp_path / "ec.pub"
    curve = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    openssl("genpkey", *curve, "-out", private)
    openssl("pkey", "-in", private, "-pubout", "-out", str(public))
    signature = openssl("dgst", "-sha256", "-sign", private, str(folder / MANIFEST))
    (folder / SIGNATURE).write_bytes(base64.b64encode(signature))  # cosign writes no newline
    check_signature(folder, read_public_keys([public]))


@pytest.mark.parametrize("kind", ["p384", "rsa"])
def test_other_kinds_of_keys(folder: Path, tmp_path: Path, kind: str) -> None:
    private, public = write_keys(tmp_path, kind)
    with pytest.raises(GlowplugError, match="use an ECDSA P-256 or Ed25519 key"):
        sign(folder, private)
    with pytest.raises(GlowplugError, match="use an ECDSA P-256 or Ed25519 key"):
        read_public_keys([public])
    assert not (folder / SIGNATURE).exists()


def test_files_that_are_no_keys(folder: Path, tmp_path: Path) -> None:
    private, public = write_keys(tmp_path, "ed25519")
    other = tmp_path / "other"
    for content in (b"", b"text", b"x" * 100_000):
        other.write_bytes(content)
        with pytest.raises(GlowplugError, match=str(other)):
            read_public_keys([other])
        with pytest.raises(GlowplugError, match=str(other)):
            sign(folder, other)
    with pytest.raises(GlowplugError, match="no public key"):
        read_public_keys([private])
    with pytest.raises(GlowplugError, match="no private key"):
        sign(folder, public)
    with pytest.raises(GlowplugError, match="cannot be read"):
        read_public_keys([tmp_path / "missing"])
    encrypted = KINDS["p256"]().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    other.write_bytes(encrypted)
    with pytest.raises(GlowplugError, match="no private key in plain PEM"):
        sign(folder, other)
