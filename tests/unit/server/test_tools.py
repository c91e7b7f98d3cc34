"""Tools on chat completions: what the template gets, how calls are answered, what is refused."""

import asyncio
import json
from typing import Any

import openai
import pytest

from runtime.engine.request import Delta, FinishReason, TokenLogprob
from snapshot.manifest import ChatFormat

CHAT = "/v1/chat/completions"
TEMPLATE = (
    "{% if tools %}<tool_call>{{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls %}[{{ c.function.name }} {{ c.function.arguments.city }}]{% endfor %}"
    "{% if m.tool_call_id %}({{ m.tool_call_id }}){% endif %}\n{% endfor %}"
)
WITH_TOOLS = {"chat": ChatFormat(template=TEMPLATE), "max_context": 4096}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"default": None}},
            "required": ["city"],
        },
    },
}
ADD: dict[str, Any] = {"type": "function", "function": {"name": "add"}}
HI = [{"role": "user", "content": "hello"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
SECOND = '\n<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": HI, "tools": [WEATHER, ADD], **fields}


def says(text: str, *, size: int = 5, finish: FinishReason = FinishReason.STOP):
    """A script that says the text in pieces of that many characters."""
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    deltas = [
        Delta(text=piece, tokens=(7,), logprobs=(TokenLogprob(7, -0.5, ()),)) for piece in pieces
    ]
    return lambda _request: [*deltas, Delta(tokens=(1,), finish=finish)]


def calls_of(choice) -> list[tuple[str, str]]:
    calls = choice.message.tool_calls or []
    return [(call.function.name, call.function.arguments) for call in calls]


def shown_prompt(r, tokenizer) -> str:
    return tokenizer.decode(list(r.engine.submitted[0].prompt), skip_special_tokens=False)


def test_the_template_gets_the_tools_as_they_were_sent(ask, tiny_tokenizer):
    _, r = ask(CHAT, body(), **WITH_TOOLS)
    tools = shown_prompt(r, tiny_tokenizer).split("\n")[0].removeprefix("<tool_call>")
    assert json.loads(tools) == [WEATHER, ADD]
    assert r.engine.submitted[0].grammar is None


def test_a_choice_of_none_hides_them(ask, tiny_tokenizer):
    response, r = ask(CHAT, body(tool_choice="none"), script=says(CALL), **WITH_TOOLS)
    assert shown_prompt(r, tiny_tokenizer) == "user:hello"
    [choice] = response.json()["choices"]
    assert choice["message"]["content"] == CALL
    assert choice["finish_reason"] == "stop"


def test_calls_and_results_of_earlier_turns(ask, tiny_tokenizer):
    call = {"id": "c1", "type": "function", "function": {"name": "weather"}}
    call["function"]["arguments"] = '{"city": "Rome"}'
    history = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    _, r = ask(CHAT, body(messages=history, tool_choice="none"), **WITH_TOOLS)
    assert shown_prompt(r, tiny_tokenizer) == ("user:helloassistant:[weather Rome]tool:sunny(c1)")


def test_whole(ask):
    response, _ = ask(CHAT, body(), script=says("Let me see. " + CALL + SECOND), **WITH_TOOLS)
    [choice] = response.json()["choices"]
    message = choice["message"]
    ids = [call.pop("id") for call in message["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(call_id.startswith("call_") for call_id in ids)
    assert message == {
        "role": "assistant",
        "content": "Let me see. ",
        "refusal": None,
        "tool_calls": [
            {
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
            },
            {"type": "function", "function": {"name": "add", "arguments": "{}"}},
        ],
    }
    assert choice["finish_reason"] == "tool_calls"


def test_only_a_call_has_no_content(ask):
    response, _ = ask(CHAT, body(), script=says(CALL), **WITH_TOOLS)
    assert response.json()["choices"][0]["message"]["content"] is None


def test_text_is_text(ask):
    response, _ = ask(CHAT, body(), script=says("Hello there"), **WITH_TOOLS)
    [choice] = response.json()["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello there", "refusal": None}
    assert choice["finish_reason"] == "stop"


def test_one_call_at_most(ask):
    script = says(CALL + SECOND)
    response, _ = ask(CHAT, body(parallel_tool_calls=False), script=script, **WITH_TOOLS)
    [call] = response.json()["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"


def test_a_call_that_is_cut_off_ends_for_length(ask):
    script = says(CALL[:50], finish=FinishReason.LENGTH)
    response, _ = ask(CHAT, body(), script=script, **WITH_TOOLS)
    [choice] = response.json()["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"cit'


@pytest.mark.parametrize("size", [1, 3, 7, 50, 200])
@pytest.mark.parametrize("text", ["Let me see. " + CALL + SECOND, CALL, "Hello there", "a <tool"])
def test_a_stream_adds_up_to_the_whole(served, text, size):
    """With the official client, which puts the deltas together itself."""

    async def main():
        async with served(script=says(text, size=size), **WITH_TOOLS) as r:
            base_url = f"{r.base_url}/v1"
            async with openai.AsyncOpenAI(base_url=base_url, api_key="x", max_retries=0) as client:
                asked = body(logprobs=True, n=2)
                whole = await client.chat.completions.create(**asked)
                async with client.chat.completions.stream(**asked) as stream:
                    streamed = await stream.get_final_completion()
        for one, other in zip(whole.choices, streamed.choices, strict=True):
            assert one.finish_reason == other.finish_reason
            assert (one.message.content or "") == (other.message.content or "")
            assert calls_of(one) == calls_of(other)
            assert len(one.logprobs.content) == len(other.logprobs.content)

    asyncio.run(main())


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_an_enforced_call_has_a_grammar(ask, choice):
    _, r = ask(CHAT, body(tool_choice=choice), **WITH_TOOLS)
    assert r.engine.submitted[0].grammar is not None


REFUSED = [
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [ADD, ADD]}, "tools"),
    ({"tools": [ADD] * 129}, "tools"),
    (
        {
            "tools": [
                {"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}
            ]
        },
        "tools[0].function.parameters",
    ),
    ({"tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice"),
    ({"tools": None, "tool_choice": "required"}, "tool_choice"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"guided_regex": "a"}, "guided_regex"),
    ({"tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
    ({"tool_choice": "required", "min_tokens": 2}, "min_tokens"),
    ({"chat_template_kwargs": {"tools": "x"}}, "chat_template_kwargs"),
    (
        {
            "tool_choice": "required",
            "tools": [
                {
                    "type": "function",
                    "function": {"name": "f", "parameters": {"properties": {"a": {"not": {}}}}},
                }
            ],
        },
        "tools",
    ),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[str(case)[:60] for case in REFUSED])
def test_refused(ask, fields, param):
    response, r = ask(CHAT, body(**fields), **WITH_TOOLS)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert not r.engine.submitted


def test_a_model_without_tools_says_so(ask):
    response, _ = ask(CHAT, body())
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools"
    assert ask(CHAT, body(tool_choice="none"))[0].status_code == 200
