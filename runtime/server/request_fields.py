"""Validators of single request fields, for the models in protocol.py.

They raise ValueError with the rest of a sentence that begins with the field's name.
"""

import json
import math
from typing import Any

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

MAX_STOPS = 16
MAX_STOP_CHARS = 1000
MAX_PROMPTS = 64
MAX_TEMPLATE_VARIABLES = 32
MAX_VARIABLE_CHARS = 4096
CONTRADICTION = "contradiction"
_PROMPT_FORMS = "must be a string, a list of strings, token ids or a list of token id lists"


def contradiction(field: str, message: str) -> PydanticCustomError:
    """An error about `field`, raised by a validator that looks at several fields."""
    return PydanticCustomError(CONTRADICTION, "{message}", {"field": field, "message": message})


def Unsupported(*harmless: object) -> AfterValidator:  # noqa: N802 (reads as a type in annotations)
    """A field this server does not have: only null and values that ask for nothing pass."""

    def check(value: Any) -> Any:
        if value is None or value in harmless:
            return value
        choices = " or ".join(json.dumps(choice) for choice in harmless)
        hint = f"leave it out or send {choices}" if choices else "leave it out"
        raise ValueError(f"not supported by this server; {hint}")

    return AfterValidator(check)


def text_of_parts(value: Any) -> str | None:
    """A message's content: a string, or a list of text parts, joined with newlines."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be a string or a list of text parts")
    texts = []
    for number, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            named = f"{kind[:40]} parts are" if isinstance(kind, str) else "this is"
            raise ValueError(f"[{number}]: {named} not supported; this model takes text parts only")
        text = part.get("text")
        if not isinstance(text, str) or part.keys() != {"type", "text"}:
            raise ValueError(f'[{number}]: must be {{"type": "text", "text": STRING}}')
        texts.append(text)
    return "\n".join(texts)


def one_or_many_stops(value: Any) -> tuple[str, ...]:
    """Stop strings: null, a string or a list of strings, none of them empty."""
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError("must be a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise ValueError(f"must have at most {MAX_STOPS} strings")
    if not all(0 < len(stop) <= MAX_STOP_CHARS for stop in stops):
        raise ValueError(f"each string must have 1 to {MAX_STOP_CHARS} characters")
    return tuple(stops)


def one_or_many_prompts(
    value: Any, *, most: int = MAX_PROMPTS, noun: str = "prompts"
) -> tuple[str | tuple[int, ...], ...]:
    """Prompts in any of OpenAI's forms: text, texts, token ids, lists of token ids."""
    prompts = [value] if isinstance(value, str) else value
    if not isinstance(prompts, list):
        raise ValueError(_PROMPT_FORMS)
    kinds = set(map(type, prompts))
    if kinds == {int}:  # bool is an int by subclass, but not by type
        return (tuple(prompts),)
    if len(prompts) > most:
        raise ValueError(f"must have at most {most} {noun}")
    if not prompts or "" in prompts or [] in prompts:
        raise ValueError("must not be empty")
    if kinds == {str}:
        return tuple(prompts)
    if kinds == {list} and all(set(map(type, ids)) == {int} for ids in prompts):
        return tuple(map(tuple, prompts))
    raise ValueError(_PROMPT_FORMS)


def plain_variables(value: Any) -> dict[str, Any]:
    """Variables for the chat template: names with plain values."""
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MAX_TEMPLATE_VARIABLES:
        raise ValueError(f"must be an object with at most {MAX_TEMPLATE_VARIABLES} entries")
    for name, variable in value.items():
        if variable is not None and not isinstance(variable, bool | int | float | str):
            raise ValueError(f"{name[:100]!r} must be a string, a number, true, false or null")
        if isinstance(variable, float) and not math.isfinite(variable):
            raise ValueError(f"{name[:100]!r} must be a finite number")
        if isinstance(variable, str) and len(variable) > MAX_VARIABLE_CHARS:
            raise ValueError(f"{name[:100]!r} must have at most {MAX_VARIABLE_CHARS} characters")
    return value
