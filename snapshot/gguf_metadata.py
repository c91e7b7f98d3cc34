"""Typed access to GGUF metadata: a key of the wrong type or size is an error that names it."""

from typing import Any

from glowplug.errors import CorruptSnapshot
from snapshot.gguf_header import Value


class Metadata:
    """`name` is the file, for messages. Getters return `default` where the key is missing, and
    raise CorruptSnapshot where there is no default or the type is wrong."""

    def __init__(self, values: dict[str, Value], name: str) -> None:
        self._values = values
        self.name = name

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, value, "a whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, value, "a number")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "text")
        return value

    def texts(self, key: str) -> list[str]:
        return self._list(key, str)

    def integers(self, key: str) -> list[int]:
        return self._list(key, int)

    def numbers(self, key: str) -> list[float]:
        return self._list(key, float)

    def _list(self, key: str, kind: type[Any]) -> list[Any]:
        value = self._get(key, None)
        if not isinstance(value, list) or (value and type(value[0]) is not kind):
            raise self._wrong(key, value, f"a list of {kind.__name__}")
        return value

    def _get(self, key: str, default: Value | None) -> Value:
        value = self._values.get(key, default)
        if value is None:
            raise CorruptSnapshot(
                f"{self.name}: the metadata key {key} is missing; the file is incomplete or too "
                "old, convert the model again with a current llama.cpp"
            )
        return value

    def _wrong(self, key: str, value: Value, expected: str) -> CorruptSnapshot:
        return CorruptSnapshot(
            f"{self.name}: the metadata key {key} is {str(value)[:60]!r}, which is not {expected}; "
            "convert the model again with a current llama.cpp"
        )
