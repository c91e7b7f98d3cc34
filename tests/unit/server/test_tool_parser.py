"""The three formats of tool calls, whole and cut anywhere."""

import json
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.server.tool_format import ToolFormat, parser_for, tool_format
from runtime.server.tool_parser import Arguments, CallStart, Text

FUNCTIONS = ["weather", "add"]
PARIS = '{"city": "Paris {\\"x\\"}"}'
ADD = '{"a": [1, {"b": 2}], "c": "]}"}'


def read(form: ToolFormat, pieces) -> tuple[str, list[tuple[str, str]]]:
    """The text, and the calls with their arguments."""
    parser = parser_for(form, FUNCTIONS)
    text, calls = "", []
    events = [event for piece in pieces for event in parser.feed(piece)]
    for event in events + parser.finish():
        match event:
            case Text(more):
                text += more
            case CallStart(name):
                calls.append((name, ""))
            case Arguments(more):
                calls[-1] = (calls[-1][0], calls[-1][1] + more)
    return text, calls


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


CALLS = [("weather", PARIS), ("add", ADD)]
CASES = {
    "hermes": (ToolFormat.HERMES, hermes(*CALLS[0]), "", CALLS[:1]),
    "hermes, two": (
        ToolFormat.HERMES,
        hermes(*CALLS[0]) + "\n" + hermes(*CALLS[1]) + "\n",
        "",
        CALLS,
    ),
    "hermes, compact": (
        ToolFormat.HERMES,
        f'<tool_call>{{"name":"add","arguments":{ADD}}}</tool_call>',
        "",
        CALLS[1:],
    ),
    "hermes, text around": (
        ToolFormat.HERMES,
        "Let me see.\n" + hermes(*CALLS[0]) + "\n and done",
        "Let me see.\n\n and done",
        CALLS[:1],
    ),
    "hermes, other order": (
        ToolFormat.HERMES,
        f'<tool_call>{{"arguments": {ADD}, "name": "add"}}</tool_call>',
        "",
        CALLS[1:],
    ),
    "hermes, cut off": (
        ToolFormat.HERMES,
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Pa',
        "",
        [("weather", '{"city": "Pa')],
    ),
    "hermes, cut off before the name": (
        ToolFormat.HERMES,
        '<tool_call>\n{"name": "wea',
        '<tool_call>\n{"name": "wea',
        [],
    ),
    "hermes, unknown function": (
        ToolFormat.HERMES,
        hermes("nobody", "{}"),
        hermes("nobody", "{}"),
        [],
    ),
    "hermes, no object": (
        ToolFormat.HERMES,
        "<tool_call> is a mark, <tool_cal is not",
        "<tool_call> is a mark, <tool_cal is not",
        [],
    ),
    "hermes, no closing mark": (
        ToolFormat.HERMES,
        hermes(*CALLS[0]).removesuffix("</tool_call>"),
        "",
        CALLS[:1],
    ),
    "hermes, no call": (ToolFormat.HERMES, ' plain {"a": 1} text <', ' plain {"a": 1} text <', []),
    "llama": (ToolFormat.LLAMA3, f'{{"name": "weather", "parameters": {PARIS}}}', "", CALLS[:1]),
    "llama, marked": (
        ToolFormat.LLAMA3,
        f'\n<|python_tag|>{{"name": "weather", "parameters": {PARIS}}}',
        "",
        CALLS[:1],
    ),
    "llama, two": (
        ToolFormat.LLAMA3,
        f'{{"name": "weather", "parameters": {PARIS}}}; {{"name": "add", "parameters": {ADD}}}',
        "",
        CALLS,
    ),
    "llama, JSON that is no call": (
        ToolFormat.LLAMA3,
        ' {"name": "Bob", "parameters": {"age": 3}} is an object',
        ' {"name": "Bob", "parameters": {"age": 3}} is an object',
        [],
    ),
    "llama, text": (ToolFormat.LLAMA3, 'It is {"name": "add"}', 'It is {"name": "add"}', []),
    "llama, half a mark": (ToolFormat.LLAMA3, "<|pyth", "<|pyth", []),
    "mistral": (
        ToolFormat.MISTRAL,
        f'[TOOL_CALLS] [{{"name": "weather", "arguments": {PARIS}}}, '
        f'{{"name": "add", "arguments": {ADD}}}]',
        "",
        CALLS,
    ),
    "mistral, the mark not shown": (
        ToolFormat.MISTRAL,
        f' [ {{"name": "add", "arguments": {ADD}}}]',
        "",
        CALLS[1:],
    ),
    "mistral, a list": (ToolFormat.MISTRAL, "[1, 2] is a list", "[1, 2] is a list", []),
    "mistral, text": (ToolFormat.MISTRAL, "[TOOL", "[TOOL", []),
    "mistral, an object": (ToolFormat.MISTRAL, '{"name": "add"}', '{"name": "add"}', []),
    "nothing": (ToolFormat.MISTRAL, "", "", []),
    "blanks": (ToolFormat.LLAMA3, " \n", " \n", []),
}


@pytest.mark.parametrize(("form", "text", "shown", "calls"), CASES.values(), ids=CASES)
def test_cut_anywhere(form, text, shown, calls):
    assert read(form, [text]) == (shown, calls)
    assert read(form, text) == (shown, calls)  # character by character
    for cut in range(len(text)):
        assert read(form, [text[:cut], text[cut:]]) == (shown, calls)


SCRAPS = st.lists(
    st.sampled_from(
        [
            *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<tool"),
            *('{"name": "add", "arguments": ', '{"name": "add", "parameters": ', '"name": "add"'),
            *("[", "]", "{", "}", '"', "\\", "{}", "}}", " ", "\n", ",", ";", "text"),
            hermes(*CALLS[0]),
        ]
    ),
    max_size=8,
)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    form=st.sampled_from(ToolFormat),
    scraps=SCRAPS,
    cuts=st.lists(st.integers(0, 200), max_size=6),
)
def test_any_text_reads_the_same_however_it_is_cut(form, scraps, cuts):
    text = "".join(scraps)
    whole = read(form, [text])
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    assert read(form, [text[a:b] for a, b in pairwise(places)]) == whole
    assert read(form, text) == whole


def test_arguments_come_before_the_call_is_over():
    parser = parser_for(ToolFormat.HERMES, FUNCTIONS)
    parser.feed('<tool_call>{"name": "weather", "argum')
    assert parser.feed('ents": {"city": "Pa') == [CallStart("weather"), Arguments('{"city": "Pa')]
    assert parser.feed('ris"') == [Arguments('ris"')]
    assert parser.feed("}}</tool_call>") == [Arguments("}")]


def test_long_arguments_take_linear_time():
    arguments = json.dumps({"city": "x" * 1_000_000})
    began_s = time.perf_counter()
    assert read(ToolFormat.HERMES, [hermes("add", arguments)]) == ("", [("add", arguments)])
    assert time.perf_counter() - began_s < 5


@pytest.mark.parametrize(
    ("arguments", "expected"), [('"{\\"a\\": 1}"', {"a": 1}), ("null", {}), ("{}", {})]
)
def test_arguments_in_other_shapes(arguments, expected):
    _, [(name, text)] = read(ToolFormat.HERMES, [hermes("add", arguments)])
    assert (name, json.loads(text)) == ("add", expected)


def test_the_format_is_read_off_the_template():
    assert tool_format(None) is None
    assert tool_format("{{ messages }}<tool_call>") is None
    assert tool_format("{{ tools }} in my own way") is None
    assert tool_format("{% if tools %}<tool_call>") is ToolFormat.HERMES
    assert tool_format("{% if tools %}[AVAILABLE_TOOLS][TOOL_CALLS]") is ToolFormat.MISTRAL
    assert tool_format("{% if tools %}Environment: ipython") is ToolFormat.LLAMA3
    assert tool_format("{% if tools %}<tool_call>\n<function=name>") is None
    assert tool_format("{% if tools %}[TOOL_CALLS]name[ARGS]{}") is None
