"""The official openai client against the invoke URL: answers, streams, and each class of error."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from serving import CAPITAL, STORY, Serve, StartServe, deploy, eventually

pytestmark = pytest.mark.model

NAME = "openai"


@pytest.fixture(scope="module")
def function(server: Serve) -> Iterator[dict[str, Any]]:
    with server.client() as client:
        yield deploy(client, NAME, idle_s=60)
        client.delete(NAME)


@pytest.fixture
def client(function: dict[str, Any]) -> Iterator[openai.OpenAI]:
    with connect(function["openai_base_url"]) as client:
        yield client


def connect(base_url: str, *, api_key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=60)


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=NAME, messages=CAPITAL, max_tokens=24, temperature=0
    )
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == NAME
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 30},
        "country": {"type": "string", "maxLength": 30},
        "population": {"type": "integer", "minimum": 1, "maximum": 100_000_000},
        "continent": {"enum": ["Europe", "Asia", "Africa"]},
    },
    "required": ["city", "country", "population", "continent"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("stream", [False, True])
def test_json_schema(client: openai.OpenAI, stream: bool) -> None:
    answer: Any = client.chat.completions.create(
        model=NAME,
        messages=[{"role": "user", "content": "Describe Paris as JSON."}],
        max_tokens=200,
        temperature=0,
        stream=stream,
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}},
    )
    if stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    else:
        assert answer.choices[0].finish_reason == "stop"
        text = answer.choices[0].message.content
    jsonschema.validate(json.loads(text), CITY)
    assert json.loads(text)["city"] == "Paris"


def test_guided_choice_and_json_object(client: openai.OpenAI) -> None:
    choices = ["Paris", "London", "Rome"]
    answer = client.chat.completions.create(
        model=NAME, messages=CAPITAL, temperature=0, extra_body={"guided_choice": choices}
    )
    assert answer.choices[0].message.content == "Paris"
    answer = client.chat.completions.create(
        model=NAME,
        messages=[{"role": "user", "content": "Give me a JSON object with a name and an age."}],
        temperature=0,
        max_tokens=100,
        response_format={"type": "json_object"},
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)
    assert (answer.choices[0].message.content or "").startswith("{")


def test_a_schema_that_is_wrong_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(
            model=NAME, messages=CAPITAL, extra_body={"guided_json": {"type": "nope"}}
        )
    assert error.value.param == "guided_json"


def test_tools_are_refused_by_a_model_whose_template_has_none(client: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", "function": {"name": "weather"}}]
    with pytest.raises(openai.BadRequestError, match="chat template has no tools"):
        client.chat.completions.create(model=NAME, messages=CAPITAL, tools=tools)


def test_tokenize_there_and_back(client: openai.OpenAI, function: dict[str, Any]) -> None:
    tokens = client.post(
        "/tokenize", body={"model": NAME, "prompt": "Hello world"}, cast_to=dict[str, Any]
    )
    assert tokens["count"] == len(tokens["tokens"]) == 2
    text = client.post(
        "/detokenize", body={"model": NAME, "tokens": tokens["tokens"]}, cast_to=dict[str, Any]
    )
    assert text == {"prompt": "Hello world"}


def test_cached_tokens_are_reported(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Count with me: " + "one two three " * 20}]
    usages = [
        client.chat.completions.create(model=NAME, messages=messages, max_tokens=1).usage
        for _ in range(2)
    ]
    cached = [usage.prompt_tokens_details.cached_tokens for usage in usages]
    assert cached[0] < 16 * 4 < usages[1].prompt_tokens - 16 <= cached[1]


def test_chat_streaming_says_the_same(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=NAME,
        messages=CAPITAL,
        max_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == (
        "The capital of France is Paris."
    )
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens > 0


def test_choices_logprobs_stop_and_seed(client: openai.OpenAI) -> None:
    def sample() -> list[str | None]:
        answer = client.chat.completions.create(
            model=NAME, messages=STORY, max_tokens=12, n=2, seed=7, temperature=1, stop=["\n\n"]
        )
        return [choice.message.content for choice in answer.choices]

    assert len(set(sample())) == 2
    assert sample() == sample()
    answer = client.chat.completions.create(
        model=NAME, messages=CAPITAL, max_tokens=2, temperature=0, logprobs=True, top_logprobs=3
    )
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    first = answer.choices[0].logprobs.content[0]
    assert first.logprob <= 0
    assert first.token == first.top_logprobs[0].token
    assert len(first.top_logprobs) == 3


def test_completions(client: openai.OpenAI) -> None:
    whole = client.completions.create(
        model=NAME, prompt="Once upon a time", max_tokens=12, temperature=0
    )
    stream = client.completions.create(
        model=NAME, prompt="Once upon a time", max_tokens=12, temperature=0, stream=True
    )
    text = "".join(chunk.choices[0].text for chunk in stream)
    assert text == whole.choices[0].text
    assert len(text.split()) > 4


def test_models(client: openai.OpenAI, server: Serve) -> None:
    assert [model.id for model in client.models.list()] == [NAME]
    with connect(f"{server.endpoint}/v1") as shared:
        assert NAME in [model.id for model in shared.models.list()]
        answer = shared.chat.completions.create(
            model=NAME, messages=CAPITAL, max_tokens=24, temperature=0
        )
    assert "Paris" in (answer.choices[0].message.content or "")


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"messages": []}, "messages"),
        ({"extra_body": {"temprature": 1}}, "temprature"),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, "messages"),
    ],
)
def test_bad_requests_name_the_parameter(
    client: openai.OpenAI, params: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**({"model": NAME, "messages": CAPITAL} | params))
    assert caught.value.param is not None
    assert caught.value.param.startswith(param)
    assert caught.value.type == "invalid_request_error"


def test_a_model_that_does_not_exist(server: Serve) -> None:
    with connect(f"{server.endpoint}/v1") as client, pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nobody", messages=CAPITAL)
    assert caught.value.code == "model_not_found"


def test_a_full_queue_and_a_start_that_takes_too_long(server: Serve) -> None:
    with server.client() as control:
        function = deploy(
            control, "narrow", idle_s=60, start_timeout_s=2, queue={"max_requests": 1}
        )
        supervisor = server.supervisor()
        supervisor.suspend()  # so that nothing starts
        try:
            with connect(function["openai_base_url"]) as client:
                late: list[Exception] = []

                def wait_in_vain() -> None:
                    try:
                        client.chat.completions.create(model="narrow", messages=CAPITAL)
                    except openai.APIError as error:
                        late.append(error)

                waiting = threading.Thread(target=wait_in_vain)
                waiting.start()
                eventually(lambda: control.function("narrow")["queued"] == 1, what="one waits")
                with pytest.raises(openai.RateLimitError) as caught:
                    client.chat.completions.create(model="narrow", messages=CAPITAL)
                assert int(caught.value.response.headers["retry-after"]) >= 1
                waiting.join()
        finally:
            supervisor.resume()
        control.delete("narrow")
    assert isinstance(late[0], openai.InternalServerError)
    assert late[0].status_code == 504
    assert late[0].type == "timeout_error"


def test_a_request_that_takes_too_long(client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(
            model=NAME,
            messages=STORY,
            max_tokens=4000,
            extra_body={"ignore_eos": True},
            extra_headers={"X-Request-Timeout": "500ms"},
        )
    assert caught.value.status_code == 504


def test_a_model_that_cannot_be_sealed(server: Serve, tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF but not really")
    with server.client() as control:
        function = control.deploy({"name": "broken", "model": str(tmp_path / "broken.gguf")})
        eventually(lambda: control.function("broken")["state"] == "failed", what="it failed")
        with (
            connect(function["openai_base_url"]) as client,
            pytest.raises(openai.InternalServerError) as caught,
        ):
            client.chat.completions.create(model="broken", messages=CAPITAL)
        control.delete("broken")
    assert caught.value.status_code == 503
    assert "broken.gguf" in caught.value.message


def test_an_error_in_a_stream(client: openai.OpenAI, server: Serve) -> None:
    stream = client.chat.completions.create(
        model=NAME, messages=STORY, max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
    )
    next(stream)
    server.replica().kill()
    with pytest.raises(openai.APIError) as caught:
        for _ in stream:
            pass
    assert "replica" in caught.value.message


def test_keys(start: StartServe, tmp_path: Path) -> None:
    user, admin = "sk-user-0123456789", "sk-admin-0123456789"
    (tmp_path / "keys.txt").write_text(f"{user} team-a\n{admin} operations admin\n")
    serve = start("--keys", str(tmp_path / "keys.txt"))
    base_url = f"{serve.endpoint}/v1"
    with (
        connect(base_url, api_key="sk-wrong-0123456789") as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()
    with connect(base_url, api_key=user) as client:
        assert list(client.models.list()) == []
        with pytest.raises(openai.PermissionDeniedError):
            client.get("/functions", cast_to=object)
    with connect(base_url, api_key=admin) as client:
        spec = {"name": "once", "model": "/none"}
        client.post("/functions", body=spec, cast_to=object)
        with pytest.raises(openai.ConflictError):
            client.post("/functions", body=spec, cast_to=object)
