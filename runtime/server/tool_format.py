"""The formats in which models write tool calls: which one a chat template asks for, its parser, and
the grammar that enforces it."""

import json
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from runtime.server import constraint
from runtime.server.constraint import Constraint
from runtime.server.tool_parser import LeadingCalls, MarkedCalls, ToolParser

_NO_PARAMETERS: dict[str, Any] = {"properties": {}, "additionalProperties": False}


class ToolFormat(StrEnum):
    """Named for the models that write it."""

    HERMES = "hermes"  # and Qwen
    MISTRAL = "mistral"
    LLAMA3 = "llama3"


@dataclass(frozen=True, slots=True)
class Function:
    """A function that the model may call; `parameters` is a JSON schema of an object."""

    name: str
    parameters: dict[str, Any] | None


def tool_format(template: str | None) -> ToolFormat | None:
    """The format that a chat template teaches; None: it knows no tools, or an unknown format."""
    if template is None or "tools" not in template:
        return None
    if "<tool_call>" in template:  # Qwen3-Coder puts XML between the marks
        return None if "<function=" in template else ToolFormat.HERMES
    if "[TOOL_CALLS]" in template:  # since 2025 followed by NAME[ARGS]{…}
        return None if "[ARGS]" in template else ToolFormat.MISTRAL
    if "<|python_tag|>" in template or "Environment: ipython" in template:
        return ToolFormat.LLAMA3
    return None


def parser_for(form: ToolFormat, functions: Collection[str]) -> ToolParser:
    """A parser of one choice's text."""
    if form is ToolFormat.HERMES:
        return MarkedCalls(functions)
    if form is ToolFormat.MISTRAL:
        return LeadingCalls(functions, mark="[TOOL_CALLS]", in_array=True)
    return LeadingCalls(functions, mark="<|python_tag|>", in_array=False)


def call_id(form: ToolFormat) -> str:
    """An id for a call. Mistral's templates take nine letters and digits, and nothing else."""
    return (
        secrets.token_hex(5)[:9] if form is ToolFormat.MISTRAL else f"call_{secrets.token_hex(12)}"
    )


def calls_grammar(
    form: ToolFormat, functions: Sequence[Function], *, several: bool, param: str
) -> Constraint:
    """Nothing but calls of these functions, with arguments that are valid; one, or one or more
    (Llama 3 makes one at a time)."""
    key = "parameters" if form is ToolFormat.LLAMA3 else "arguments"
    rules = [_rule(number, function, key) for number, function in enumerate(functions)]
    rules.append("call: " + " | ".join(f"call{number}" for number in range(len(functions))))
    if form is ToolFormat.HERMES:
        one = '"<tool_call>\\n" call "\\n</tool_call>"'
        start = f'{one} ("\\n" {one})*' if several else one
    elif form is ToolFormat.MISTRAL:
        start = '"[" call (", " call)* "]"' if several else '"[" call "]"'
    else:
        start = "call"
    return constraint.of_lark("\n".join([f"start: {start}", *rules]), param=param)


def _rule(number: int, function: Function, key: str) -> str:
    schema = _NO_PARAMETERS if function.parameters is None else function.parameters
    schema = {**schema, "type": "object", "x-guidance": constraint.JSON_STYLE}
    head = constraint.lark_string(f'{{"name": {json.dumps(function.name)}, "{key}": ')
    return f'call{number}: {head} %json {json.dumps(schema)} "}}"'
