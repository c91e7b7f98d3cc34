"""From the fields that ask for structured output to one grammar, in llguidance's notation.

The functions check limits and raise ValueError with the rest of a sentence that begins with the
field's name; whether the grammar is right is for the compiler to say (grammar_compiler.py).
"""

import json
from dataclasses import dataclass
from typing import Any

from llguidance import LLMatcher

MAX_GRAMMAR_BYTES = 128 * 1024
MAX_SCHEMA_DEPTH = 64
MAX_CHOICES = 1024

# JSON on one line, spaced as models write it most. Free whitespace would let a model that has lost
# the thread write blanks to its last token.
JSON_STYLE: Any = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
ANY_OBJECT: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar that the output must follow, and the field that asks for it."""

    grammar: str
    param: str


def of_schema(schema: dict[str, Any], *, param: str) -> Constraint:
    """JSON that is valid by the schema (which `json_schema` has checked)."""
    return Constraint(LLMatcher.grammar_from_json_schema(schema, overrides=JSON_STYLE), param)


def of_regex(regex: str, *, param: str) -> Constraint:
    """Text that the whole of the regular expression matches."""
    return Constraint(LLMatcher.grammar_from_regex(regex), param)


def of_choices(choices: list[str], *, param: str) -> Constraint:
    """One of the texts."""
    return of_lark("start: " + " | ".join(map(lark_string, choices)), param=param)


def of_lark(lark: str, *, param: str) -> Constraint:
    """Text that the Lark grammar derives from `start`."""
    return Constraint(LLMatcher.grammar_from_lark(lark), param)


def lark_string(text: str) -> str:
    """A Lark terminal that is this text."""
    return json.dumps(text, ensure_ascii=False)


def json_schema(value: Any) -> dict[str, Any] | None:
    """A JSON schema: an object, or its JSON text."""
    if isinstance(value, str):
        if len(value) > MAX_GRAMMAR_BYTES:
            raise ValueError(f"must have at most {MAX_GRAMMAR_BYTES} bytes")
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError("is not valid JSON") from None
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ValueError("must be a JSON schema, an object")
    _check_depth(value)
    if len(json.dumps(value)) > MAX_GRAMMAR_BYTES:
        raise ValueError(f"must have at most {MAX_GRAMMAR_BYTES} bytes")
    return value


def object_schema(value: Any) -> dict[str, Any] | None:
    """The JSON schema of an object, such as a function's parameters."""
    if isinstance(value, str):
        raise ValueError("must be a JSON schema, an object")
    schema = json_schema(value)
    if schema is not None and schema.get("type", "object") != "object":
        raise ValueError('must be the schema of an object: {"type": "object", …}')
    return schema


def grammar_text(value: Any) -> str | None:
    """A regular expression or a Lark grammar."""
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise ValueError("must be a string, not empty")
    if len(value.encode()) > MAX_GRAMMAR_BYTES:
        raise ValueError(f"must have at most {MAX_GRAMMAR_BYTES} bytes")
    return value


def choice_texts(value: Any) -> list[str] | None:
    """Texts to choose from."""
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
        raise ValueError("must be a list of strings, none of them empty")
    if not 1 <= len(value) <= MAX_CHOICES:
        raise ValueError(f"must have 1 to {MAX_CHOICES} strings")
    if sum(len(text.encode()) for text in value) > MAX_GRAMMAR_BYTES:
        raise ValueError(f"must have at most {MAX_GRAMMAR_BYTES} bytes")
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_SCHEMA_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise ValueError(f"must not be nested over {MAX_SCHEMA_DEPTH} levels")
