"""Every field: used, ignored, or refused with a 400 that names it."""

import asyncio
import json
from typing import Any

import pytest

from runtime.engine.request import SamplingParams
from snapshot.manifest import ChatFormat, GenerationDefaults

CHAT = "/v1/chat/completions"
PLAIN = "/v1/completions"
HI = [{"role": "user", "content": "hello"}]


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": HI, **fields}


def plain(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "hello", **fields}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


# (fields, param): the request differs from a good one by the fields; the error names the param.
REFUSED_BY_BOTH = [
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "0.5"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 1.01}, "top_p"),
    ({"top_p": -0.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"min_p": 1.5}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"),
    ({"seed": 2**63}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    ({"logit_bias": {"hello": 1}}, "logit_bias"),
    ({"logit_bias": {"300": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    ({"logit_bias": {"٣": 1}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": [1]}, "stop"),
    ({"stop": "x" * 1001}, "stop"),
    ({"stop": {"a": 1}}, "stop"),
    ({"stop_token_ids": [300]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": [True]}, "stop_token_ids[0]"),
    ({"stop_token_ids": list(range(129))}, "stop_token_ids"),
    ({"ignore_eos": "yes"}, "ignore_eos"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 1.0}, "max_tokens"),
    ({"max_tokens": 2**40}, "max_tokens"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"stream": "true"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"surprise": 1}}, "stream_options.surprise"),
    (
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "stream_options.include_obfuscation",
    ),
    ({"surprise": None}, "surprise"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"max_tokens": 4, "min_tokens": 5}, "min_tokens"),
    ({"guided_json": 5}, "guided_json"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": {"type": "nope"}}, "guided_json"),
    ({"guided_json": {"not": {}}}, "guided_json"),
    ({"guided_json": {"$ref": "http://example.com/a.json"}}, "guided_json"),
    ({"guided_json": {"title": "x" * 2**18}}, "guided_json"),
    ({"guided_json": nested(100)}, "guided_json"),
    ({"guided_regex": ""}, "guided_regex"),
    ({"guided_regex": "("}, "guided_regex"),
    ({"guided_regex": "x" * 2**18}, "guided_regex"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": ["a", ""]}, "guided_choice"),
    ({"guided_choice": "a"}, "guided_choice"),
    ({"guided_choice": ["a"] * 1025}, "guided_choice"),
    ({"guided_grammar": "start: nowhere"}, "guided_grammar"),
    ({"guided_grammar": ["a"]}, "guided_grammar"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
    ({"guided_regex": "a", "min_tokens": 1}, "min_tokens"),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        {"response_format": {"type": "json_object", "json_schema": {"name": "a"}}},
        "response_format.json_schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        "response_format.json_schema.name",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": 5}}},
        "response_format.json_schema.schema",
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"type": "nope"}},
            }
        },
        "response_format",
    ),
    ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
    ({"model": None}, "model"),
    ({"model": 5}, "model"),
]
REFUSED_BY_CHAT = [
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": HI * 4097}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content"),
    ({"messages": [*HI, {"role": "user", "content": [{"type": "text"}]}]}, "messages[1].content"),
    (
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
            ]
        },
        "messages[0].content",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
        "messages[0].content",
    ),
    ({"messages": [{"role": "user", "content": "x", "mood": "good"}]}, "messages[0].mood"),
    ({"messages": [{"role": "user", "content": "x", "audio": {"id": "a"}}]}, "messages[0].audio"),
    (
        {
            "messages": [
                {
                    "role": "user",
                    "content": "x",
                    "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
                }
            ]
        },
        "messages[0].tool_calls",
    ),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
    ({"logprobs": 1}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"tools": "all"}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"verbosity": "low"}, "verbosity"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"store": True}, "store"),
    ({"chat_template_kwargs": {"x": []}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": "x"}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"messages": "x"}}, "chat_template_kwargs"),
    ({"prompt": "x"}, "prompt"),
]
REFUSED_BY_PLAIN = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [1, True]}, "prompt"),
    ({"prompt": [1.0]}, "prompt"),
    ({"prompt": [[1, "a"]]}, "prompt"),
    ({"prompt": [300]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [10**100]}, "prompt"),
    ({"prompt": [[1], [300]]}, "prompt"),
    ({"prompt": ["a"] * 65}, "prompt"),
    ({"prompt": ["a"] * 64, "n": 3}, "prompt"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"echo": True, "logprobs": 21}, "logprobs"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1, "echo": True}, "max_tokens"),
    ({"best_of": 2}, "best_of"),
    ({"suffix": "end"}, "suffix"),
    ({"messages": HI}, "messages"),
    ({"max_completion_tokens": 5}, "max_completion_tokens"),
]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [(CHAT, chat(**fields), param) for fields, param in REFUSED_BY_BOTH + REFUSED_BY_CHAT]
    + [(PLAIN, plain(**fields), param) for fields, param in REFUSED_BY_BOTH + REFUSED_BY_PLAIN],
    ids=lambda value: str(value)[:60],
)
def test_refused(ask, path, body, param):
    response, r = ask(path, body)
    error = response.json()["error"]
    assert response.status_code == 400, response.text
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert param in error["message"]
    assert len(error["message"]) < 300
    assert not r.engine.submitted


@pytest.mark.parametrize("field", ["messages", "model"])
def test_missing_fields_are_named(ask, field):
    body = chat()
    del body[field]
    response, _ = ask(CHAT, body)
    assert response.json()["error"]["message"] == f"{field}: required"


# (fields, the SamplingParams fields that follow)
USED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "seed": None, "logprobs": None}),
    ({"temperature": 0}, {"temperature": 0}),
    ({"temperature": 1e-9}, {"temperature": 1e-9}),
    ({"top_p": 0.5}, {"top_p": 0.5}),
    ({"top_p": 0}, {"top_p": 0.0}),
    ({"top_k": 5}, {"top_k": 5}),
    ({"top_k": -1}, {"top_k": 0}),
    ({"min_p": 0.1}, {"min_p": 0.1}),
    ({"repetition_penalty": 1.2}, {"repetition_penalty": 1.2}),
    ({"presence_penalty": -2, "frequency_penalty": 2}, {"presence_penalty": -2.0}),
    ({"seed": -(2**63)}, {"seed": -(2**63)}),
    ({"logit_bias": {"5": -100, "299": 2.5}}, {"logit_bias": {5: -100.0, 299: 2.5}}),
    ({"stop": "a"}, {"stop": ("a",)}),
    ({"stop": ["a", "b"]}, {"stop": ("a", "b")}),
    ({"stop": []}, {"stop": ()}),
    ({"stop": None}, {"stop": ()}),
    ({"stop_token_ids": [3, 3, 299]}, {"stop_token_ids": frozenset({3, 299})}),
    ({"ignore_eos": True}, {"ignore_eos": True}),
    ({"max_tokens": 7}, {"max_tokens": 7}),
    ({"max_tokens": 7, "min_tokens": 7}, {"min_tokens": 7}),
]
USED_BY_CHAT = [
    ({"max_completion_tokens": 7}, {"max_tokens": 7}),
    ({"max_completion_tokens": 7, "max_tokens": 7}, {"max_tokens": 7}),
    ({"logprobs": True}, {"logprobs": 0}),
    ({"logprobs": True, "top_logprobs": 20}, {"logprobs": 20}),
    ({"logprobs": False, "top_logprobs": 0}, {"logprobs": None}),
]
USED_BY_PLAIN = [({"logprobs": 0}, {"logprobs": 0}), ({"logprobs": 5}, {"logprobs": 5})]


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [(CHAT, chat(**fields), expected) for fields, expected in USED + USED_BY_CHAT]
    + [(PLAIN, plain(**fields), expected) for fields, expected in USED + USED_BY_PLAIN],
    ids=lambda value: str(value)[:60],
)
def test_used(ask, path, body, expected):
    response, r = ask(path, body)
    assert response.status_code == 200, response.text
    [request] = r.engine.submitted
    assert {name: getattr(request.params, name) for name in expected} == expected


HARMLESS = {
    "user": "u",
    "metadata": {"a": "b"},
    "service_tier": "auto",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "n": None,
    "temperature": None,
    "stream": None,
    "stream_options": None,
    "logit_bias": None,
    "max_tokens": None,
    "min_tokens": 0,
    "response_format": {"type": "text"},
    "guided_json": None,
    "guided_regex": None,
    "guided_choice": None,
    "guided_grammar": None,
}
HARMLESS_TO_CHAT = {
    "store": False,
    "tools": [],
    "tool_choice": "none",
    "parallel_tool_calls": True,
    "functions": None,
    "modalities": ["text"],
    "audio": None,
    "reasoning_effort": "none",
    "verbosity": "medium",
}
HARMLESS_TO_PLAIN = {"best_of": 1, "suffix": "", "echo": False}


@pytest.mark.parametrize(
    ("path", "body"),
    [(CHAT, chat(**HARMLESS, **HARMLESS_TO_CHAT)), (PLAIN, plain(**HARMLESS, **HARMLESS_TO_PLAIN))],
)
def test_harmless_fields_change_nothing(ask, path, body):
    response, r = ask(path, body)
    assert response.status_code == 200, response.text
    default_tokens = 16 if path == PLAIN else r.engine.submitted[0].params.max_tokens
    assert r.engine.submitted[0].params == SamplingParams(max_tokens=default_tokens)


def test_an_answer_can_be_sent_back_as_the_client_library_dumps_it(ask):
    answer = {
        "content": "hi",
        "refusal": None,
        "role": "assistant",
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    response, _ = ask(CHAT, chat(messages=[*HI, answer, *HI]))
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"\xff\xfe", "invalid_json"),
        (b'{"model": "\\ud800"}', "invalid_json"),
        (b'{"prompt": ' + b"[" * 100_000, "invalid_json"),
        (b'{"model": "tiny", "prompt": "x", "seed": ' + b"9" * 10_000 + b"}", "invalid_json"),
        (b"[]", None),
        (b'"text"', None),
        (b"null", None),
    ],
    ids=range(9),
)
def test_bodies_that_are_no_request(ask, body, code):
    response, _ = ask(PLAIN, body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == code


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "presence_penalty"])
def test_numbers_that_are_none(ask, number, field):
    body = b'{"model": "tiny", "prompt": "x", "%s": %s}' % (field.encode(), number)
    response, _ = ask(PLAIN, body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field


@pytest.mark.parametrize("path", [CHAT, PLAIN])
def test_another_model_is_not_found(ask, path):
    body = {**(chat() if path == CHAT else plain()), "model": "gpt-4o"}
    response, _ = ask(path, body)
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")


def test_an_alias_is_served_and_named_in_the_answer(ask):
    response, _ = ask(PLAIN, plain(model="alias/of-tiny"))
    assert response.json()["model"] == "alias/of-tiny"


def test_sampling_defaults_come_from_the_model(ask):
    defaults = GenerationDefaults(eos_token_ids=(1,), temperature=0.6, top_p=0.9, top_k=20)
    _, r = ask(CHAT, chat(top_p=0.5), generation=defaults)
    params = r.engine.submitted[0].params
    assert (params.temperature, params.top_p, params.top_k) == (0.6, 0.5, 20)


def test_content_type_is_not_looked_at(replica):
    async def main():
        async with replica() as r:
            return await r.http.post(
                PLAIN,
                content=json.dumps(plain()).encode(),
                headers={"content-type": "text/plain"},
            )

    assert asyncio.run(main()).status_code == 200


def test_chat_without_a_template_points_to_completions(ask):
    response, _ = ask(CHAT, chat(), chat=ChatFormat(template=None))
    assert response.status_code == 400
    assert "/v1/completions" in response.json()["error"]["message"]


def test_the_templates_refusal_reaches_the_client(ask):
    template = "{{ raise_exception('After the optional system message, roles must alternate') }}"
    response, _ = ask(CHAT, chat(), chat=ChatFormat(template=template))
    assert response.status_code == 400
    assert "roles must alternate" in response.json()["error"]["message"]


def test_choices_are_told_apart(ask):
    response, r = ask(PLAIN, plain(prompt=["one", "two"], n=3, seed=1))
    assert [request.choice for request in r.engine.submitted] == [0, 1, 2, 0, 1, 2]
    ids = [request.id.rsplit("-", 1) for request in r.engine.submitted]
    assert ids == [[response.json()["id"], str(index)] for index in range(6)]
    assert [choice["index"] for choice in response.json()["choices"]] == list(range(6))
