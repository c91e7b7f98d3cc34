"""Keys: who a request is from, by its API key. Without keys everybody is the tenant "default"."""

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from glowplug.errors import Forbidden, Unauthorized


class Identity(NamedTuple):
    """Who a request is from."""

    tenant: str
    admin: bool = False  # may use the control API


ANYONE = Identity("default", admin=True)


class Keys:
    """API keys, kept as SHA-256 digests.

    A presented key is looked up by its digest, so the time of a look-up says nothing about how
    much of a key was right.
    """

    def __init__(self, keys: Mapping[str, Identity] | None) -> None:
        if keys and "" in keys:
            raise ValueError("an API key is empty; an empty key would let everybody in")
        self._by_digest = {_digest(key): Identity(*who) for key, who in (keys or {}).items()}

    def identify(self, authorization: str | None) -> Identity:
        """Who presents this `Authorization` header.

        Raises:
            Unauthorized: no key, or one that is not known.
        """
        if not self._by_digest:
            return ANYONE
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise Unauthorized(
                "no API key; send it in the header `Authorization: Bearer KEY`",
                code="missing_api_key",
            )
        identity = self._by_digest.get(_digest(key.strip(), encoding="latin-1"))
        if identity is None:
            raise Unauthorized("the API key is not known", code="invalid_api_key")
        return identity


def require_admin(identity: Identity) -> None:
    """Raises Forbidden unless the key may use the control API."""
    if not identity.admin:
        raise Forbidden("this API key may call functions only; use an admin key", code="not_admin")


def _digest(key: str, *, encoding: str = "utf-8") -> bytes:
    # Header values come as Latin-1 text: encoding them so gives the client's bytes back.
    return hashlib.sha256(key.encode(encoding)).digest()
