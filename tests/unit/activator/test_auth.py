"""API keys: who may in."""

import pytest

from activator.auth import Identity, Keys, require_admin
from glowplug.errors import Forbidden, Unauthorized

KEYS = Keys({"key-a": Identity("team-a"), "schlüssel": Identity("ops", admin=True)})


def test_without_keys_everybody_is_the_default_tenant_and_may_do_all() -> None:
    for keys in (Keys(None), Keys({})):
        assert keys.identify(None) == Identity("default", admin=True)
        assert keys.identify("Bearer whatever").tenant == "default"


def test_the_tenant_comes_from_the_key() -> None:
    assert KEYS.identify("Bearer key-a") == Identity("team-a")
    assert KEYS.identify("bearer  key-a ") == Identity("team-a")
    on_the_wire = "schlüssel".encode().decode("latin-1")
    assert KEYS.identify(f"Bearer {on_the_wire}") == Identity("ops", admin=True)


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Basic key-a", "key-a", "Bearer key-b", "Bearer KEY-A"],
)
def test_everything_else_is_refused(header: str | None) -> None:
    with pytest.raises(Unauthorized):
        KEYS.identify(header)


def test_only_admins_may_use_the_control_api() -> None:
    require_admin(Identity("ops", admin=True))
    with pytest.raises(Forbidden):
        require_admin(Identity("team-a"))


def test_an_empty_key_is_refused_and_keys_are_not_kept() -> None:
    with pytest.raises(ValueError, match="empty"):
        Keys({"": Identity("anybody")})
    assert b"key-a" not in repr(vars(KEYS)).encode()
