"""Messages as JSON objects: a dataclass's fields, and its name as `kind`. Shared by the wires."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any


def encode(message: Any) -> bytes:
    """A dataclass as JSON."""
    return json.dumps({"kind": type(message).__name__, **asdict(message)}).encode()


def decode(data: bytes, makers: Mapping[str, Callable[..., Any]], *, what: str) -> Any:
    """The message in `data`: what the maker of its kind makes of its fields.

    Raises:
        ValueError: no message of a known kind; it says that it is not `what`.
    """
    try:
        fields = json.loads(data)
        return makers[fields.pop("kind")](**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not {what}: {data[:200]!r} ({error})") from None
