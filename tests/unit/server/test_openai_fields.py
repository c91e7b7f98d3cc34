"""Every field that the openai package's types have: it works, it is ignored on purpose, or it is
refused by its name. A new field there fails here until it is sorted into one of the three."""

from typing import Any, get_args, get_type_hints

import pytest
from openai.types import chat as chat_package
from openai.types import completion_create_params as plain_types
from openai.types.chat import completion_create_params as chat_types

from runtime.engine.request import SamplingParams
from snapshot.manifest import ChatFormat

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f"}}
TEMPLATE = "{% if tools %}<tool_call>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"

USED: dict[str, dict[str, Any]] = {  # field → what to send, with what it needs
    "messages": {"messages": HI},
    "prompt": {"prompt": "hello"},
    "model": {"model": "tiny"},
    "max_tokens": {"max_tokens": 5},
    "max_completion_tokens": {"max_completion_tokens": 5},
    "n": {"n": 2},
    "stop": {"stop": ["a"]},
    "stream": {"stream": True},
    "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
    "temperature": {"temperature": 0.5},
    "top_p": {"top_p": 0.5},
    "presence_penalty": {"presence_penalty": 1},
    "frequency_penalty": {"frequency_penalty": 1},
    "logit_bias": {"logit_bias": {"5": 1}},
    "seed": {"seed": 1},
    "top_logprobs": {"logprobs": True, "top_logprobs": 2},
    "response_format": {"response_format": {"type": "json_object"}},
    "tools": {"tools": [TOOL]},
    "tool_choice": {"tools": [TOOL], "tool_choice": "required"},
    "parallel_tool_calls": {"tools": [TOOL], "parallel_tool_calls": False},
    "echo": {"echo": True},
}
LOGPROBS = {CHAT: {"logprobs": True}, PLAIN: {"logprobs": 2}}  # of another type in each
IGNORED: dict[str, Any] = {  # they ask for nothing of the model
    "user": "somebody",
    "metadata": {"a": "b"},
    "service_tier": "flex",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "24h",
}
REFUSED: dict[str, tuple[Any, Any]] = {  # what is refused, and what asks for nothing
    "audio": ({"voice": "alloy", "format": "wav"}, None),
    "best_of": (3, 1),
    "function_call": ({"name": "f"}, "auto"),
    "functions": ([{"name": "f"}], []),
    "modalities": (["audio"], ["text"]),
    "moderation": ({"model": "m"}, None),
    "prediction": ({"type": "content", "content": "x"}, None),
    "reasoning_effort": ("high", "none"),
    "store": (True, False),
    "suffix": ("end", ""),
    "verbosity": ("low", "medium"),
    "web_search_options": ({}, None),
}


def fields_of(types: Any) -> set[str]:
    variants = get_args(types.CompletionCreateParams)
    return set().union(*(variant.__annotations__ for variant in variants)) | set(
        types.CompletionCreateParamsBase.__annotations__
    )


FIELDS = {CHAT: fields_of(chat_types), PLAIN: fields_of(plain_types)}


def body(path: str, **fields: Any) -> dict[str, Any]:
    least = {"messages": HI} if path == CHAT else {"prompt": "hello"}
    return {"model": "tiny", **least, **fields}


def of(path: str, table: dict[str, Any]) -> list[str]:
    return sorted(FIELDS[path] & table.keys())


@pytest.mark.parametrize("path", [CHAT, PLAIN])
def test_every_field_is_sorted(path):
    assert {"model", "stream", "temperature"} <= FIELDS[path]
    assert FIELDS[path] - USED.keys() - IGNORED.keys() - REFUSED.keys() == {"logprobs"}


@pytest.mark.parametrize(
    ("path", "field"), [(path, field) for path in (CHAT, PLAIN) for field in of(path, USED)]
)
def test_used(ask, path, field):
    response, r = ask(path, body(path, **USED[field]), chat=ChatFormat(template=TEMPLATE))
    assert response.status_code == 200, response.text
    assert r.engine.submitted


@pytest.mark.parametrize("path", [CHAT, PLAIN])
def test_logprobs(ask, path):
    response, r = ask(path, body(path, **LOGPROBS[path]))
    assert response.status_code == 200, response.text
    assert r.engine.submitted[0].params.logprobs is not None


@pytest.mark.parametrize(
    ("path", "field"), [(path, field) for path in (CHAT, PLAIN) for field in of(path, IGNORED)]
)
def test_ignored_on_purpose(ask, path, field):
    response, r = ask(path, body(path, **{field: IGNORED[field]}))
    assert response.status_code == 200, response.text
    [request] = r.engine.submitted
    assert request.params == SamplingParams(max_tokens=request.params.max_tokens)


@pytest.mark.parametrize(
    ("path", "field"), [(path, field) for path in (CHAT, PLAIN) for field in of(path, REFUSED)]
)
def test_refused_by_name(ask, path, field):
    asks, harmless = REFUSED[field]
    response, r = ask(path, body(path, **{field: asks}))
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == field
    assert error["message"].startswith(f"{field}: not supported by this server; ")
    assert not r.engine.submitted
    for nothing in (harmless, None):
        response, _ = ask(path, body(path, **{field: nothing}))
        assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].role"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "data:,"}}],
                    }
                ]
            },
            "messages[0].content",
        ),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
            "tool_choice",
        ),
        ({"response_format": {"type": "grammar", "grammar": "x"}}, "response_format.type"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options"),
    ],
)
def test_refused_inside_of_fields(ask, fields, param):
    response, _ = ask(CHAT, body(CHAT, **fields), chat=ChatFormat(template=TEMPLATE))
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"].startswith(param)
    assert error["message"].startswith(error["param"])


def test_the_roles_of_messages():
    """Those that the openai package has, but for `function`, which `tool` replaced in 2023."""
    variants = get_args(chat_package.ChatCompletionMessageParam)
    roles = {get_args(get_type_hints(variant)["role"])[0] for variant in variants}
    assert roles == {"system", "developer", "user", "assistant", "tool", "function"}
