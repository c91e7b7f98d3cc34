"""Signatures of snapshots: who says that these weights are what they should be.

A signature is over the bytes of `manifest.json`, which names the SHA-256 of every other file, and
lies beside it as `manifest.json.sig`: base64 of an ECDSA-P256-SHA256 (DER) or Ed25519 signature, as
`cosign sign-blob --key KEY manifest.json` and `openssl dgst -sha256 -sign` (plus base64) make it.
Keys are PEM files. It is checked when a snapshot becomes a function's, not at every start: from
then on the function names the digest, and the digest is that of the manifest.

`cryptography` is imported where a signature is made or checked, and nowhere else.
"""

import base64
import binascii
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from glowplug.errors import GlowplugError, SnapshotError
from snapshot.manifest import MANIFEST

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    PublicKey = EllipticCurvePublicKey | Ed25519PublicKey

SIGNATURE = f"{MANIFEST}.sig"
MAX_SIGNATURE_BYTES = 4096
_MAX_KEY_BYTES = 1 << 16


def sign(folder: Path, key_path: Path) -> None:
    """Write the snapshot's signature with a private key (PKCS #8 or SEC 1 PEM, not encrypted).

    Raises:
        GlowplugError: the key cannot be read, or is of another kind.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    data = _read_key(key_path)
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise GlowplugError(
            f"{key_path}: no private key in plain PEM ({error}); make one with: openssl genpkey "
            "-algorithm ed25519"
        ) from None
    manifest = (folder / MANIFEST).read_bytes()
    if isinstance(key, ed25519.Ed25519PrivateKey):
        signature = key.sign(manifest)
    elif isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
        signature = key.sign(manifest, ec.ECDSA(hashes.SHA256()))
    else:
        raise _wrong_kind(key_path)
    partial = folder / f"{SIGNATURE}.new"
    partial.write_bytes(base64.b64encode(signature) + b"\n")
    partial.rename(folder / SIGNATURE)


def read_public_keys(paths: Sequence[Path]) -> "list[PublicKey]":
    """The keys in PEM files.

    Raises:
        GlowplugError: one cannot be read, or is of another kind.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    keys: list[PublicKey] = []
    for path in paths:
        try:
            key = load_pem_public_key(_read_key(path))
        except (ValueError, UnsupportedAlgorithm) as error:
            raise GlowplugError(f"{path}: no public key in PEM ({error})") from None
        if isinstance(key, ed25519.Ed25519PublicKey) or (
            isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
        ):
            keys.append(key)
        else:
            raise _wrong_kind(path)
    return keys


def check_signature(folder: Path, keys: "Sequence[PublicKey]") -> None:
    """Whether one of the keys signed the snapshot.

    Raises:
        SnapshotError: none did, with what to do.
    """
    digest = folder.name
    try:
        with (folder / SIGNATURE).open("rb") as file:
            encoded = file.read(MAX_SIGNATURE_BYTES + 1)
        manifest = (folder / MANIFEST).read_bytes()
    except FileNotFoundError:
        raise SnapshotError(
            f"the snapshot {digest} is not signed, and --trust asks for a signature; sign it: "
            f"glowplug snapshots sign {digest} --key KEY, then deploy again"
        ) from None
    except OSError as error:
        raise SnapshotError(f"{error.filename}: {error.strerror}") from None
    try:
        signature = base64.b64decode(encoded.strip(), validate=True)
    except binascii.Error:
        raise SnapshotError(f"{folder / SIGNATURE}: not base64; sign the snapshot again") from None
    if not any(_signed_by(key, signature, manifest) for key in keys):
        raise SnapshotError(
            f"the snapshot {digest} is signed by none of the trusted keys, or was changed since; "
            f"sign it: glowplug snapshots sign {digest} --key KEY, then deploy again"
        )


def _signed_by(key: "PublicKey", signature: bytes, manifest: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, manifest, ec.ECDSA(hashes.SHA256()))
        else:
            key.verify(signature, manifest)
    except InvalidSignature:
        return False
    return True


def _read_key(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_KEY_BYTES + 1)
    except OSError as error:
        raise GlowplugError(f"{path}: cannot be read ({error.strerror})") from None
    if len(data) > _MAX_KEY_BYTES:
        raise GlowplugError(f"{path}: too large to be a key")
    return data


def _wrong_kind(path: Path) -> GlowplugError:
    return GlowplugError(f"{path}: of another kind; use an ECDSA P-256 or Ed25519 key")
