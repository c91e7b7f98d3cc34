"""The official openai client, sync and async, against the server under uvicorn on a real socket.

The engine is a parrot that repeats the last word of its prompt; some words make it misbehave.
"""

import asyncio
import socket
import threading
from concurrent.futures import Future

import openai
import pytest
import uvicorn
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from runtime.engine.request import Delta, FinishReason, TokenLogprob
from runtime.server.admission import Admission
from runtime.server.app import build_app
from runtime.server.engine_client import EngineClient
from snapshot.manifest import ChatFormat, GenerationDefaults, Manifest
from snapshot.model_config import ModelConfig

MAX_CONTEXT = 64
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}"
    "{% endif %}{{ m.content }} {% endfor %}"
)


def byte_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=256, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([], trainer)
    return tokenizer


TOKENIZER = byte_tokenizer()
MANIFEST = Manifest(
    source="test",
    dtype="float32",
    config=ModelConfig(
        family="llama",
        vocab_size=256,
        hidden_size=8,
        intermediate_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
        max_positions=MAX_CONTEXT,
        tie_embeddings=True,
    ),
    add_bos=False,
    bos_token_id=None,
    generation=GenerationDefaults(eos_token_ids=(0,)),
    chat=ChatFormat(template=TEMPLATE),
    files={},
)


class Parrot:
    """Emits each letter as an engine step, from the submitting thread: emit may come from any."""

    max_context = MAX_CONTEXT
    vocab_size = 256

    def __init__(self, emit):
        self.emit = emit
        self.aborted = threading.Event()
        self.waiting = threading.Event()

    def submit(self, request):
        word = TOKENIZER.decode(list(request.prompt)).split()[-1]
        for place, letter in enumerate(word):
            [token] = TOKENIZER.encode(letter).ids
            logprobs = ()
            if request.params.logprobs is not None:
                top = tuple((token, -0.5) for _ in range(request.params.logprobs))
                logprobs = (TokenLogprob(token, -0.5, top),)
            length = place + 1 == request.params.max_tokens
            delta = Delta(
                text=letter,
                tokens=(token,),
                logprobs=logprobs,
                finish=FinishReason.LENGTH if length else None,
            )
            if word not in ("wait", "error-now"):
                self.emit([(request.id, delta)])
            if length:
                return
        if word == "wait":
            self.waiting.set()
        elif word in ("error-now", "error-later"):
            error = Delta(finish=FinishReason.ERROR, error="the parrot is ill")
            self.emit([(request.id, error)])
        elif word != "hold":
            self.emit([(request.id, Delta(tokens=(0,), finish=FinishReason.STOP))])

    def abort(self, request_id):
        self.aborted.set()


class Served:
    """The server in a thread of its own, so that the sync client can block."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.base_url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/v1"
        self.ready: Future[None] = Future()
        self.thread = threading.Thread(target=lambda: asyncio.run(self.serve()))

    def __enter__(self):
        self.thread.start()
        self.ready.result(timeout=10)
        return self

    def __exit__(self, *_exc):
        self.server.should_exit = True
        self.thread.join(timeout=10)
        self.listener.close()

    async def serve(self):
        self.loop = asyncio.get_running_loop()
        client = EngineClient(self.loop)
        self.engine = Parrot(client.emit)
        client.connect(self.engine)
        self.admission = Admission(max_running=2)
        app = build_app(
            engine=client,
            tokenizer=TOKENIZER,
            manifest=MANIFEST,
            model_names=["parrot"],
            revision="r1",
            admission=self.admission,
            max_body_bytes=10_000,
        )
        config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1)
        self.server = uvicorn.Server(config)
        self.ready.set_result(None)
        await self.server.serve(sockets=[self.listener])


@pytest.fixture
def served():
    with Served() as server:
        yield server


@pytest.fixture
def client(served):
    with openai.OpenAI(base_url=served.base_url, api_key="none", max_retries=0) as client:
        yield client


def user(text):
    return [{"role": "user", "content": text}]


def test_chat(client):
    answer = client.chat.completions.create(model="parrot", messages=user("please say hello"))
    [choice] = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "hello")
    assert choice.finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.system_fingerprint == "r1"
    assert answer.usage.completion_tokens == 6
    assert answer.usage.prompt_tokens == len("please say hello ")


def test_chat_goes_on(client):
    first = client.chat.completions.create(model="parrot", messages=user("a"))
    history = [*user("a"), first.choices[0].message, *user([{"type": "text", "text": "bye"}])]
    second = client.chat.completions.create(model="parrot", messages=history)
    assert second.choices[0].message.content == "bye"


def test_chat_stream(client):
    stream = client.chat.completions.create(
        model="parrot",
        messages=user("hello"),
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].delta.content for chunk in chunks[1:]] == [*"hello", None]
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert last.choices == []
    assert last.usage.completion_tokens == 6


def test_the_stream_helper_adds_up(client):
    with client.chat.completions.stream(
        model="parrot", messages=user("hello"), logprobs=True, top_logprobs=2
    ) as stream:
        completion = stream.get_final_completion()
    assert completion.choices[0].message.content == "hello"
    assert [t.token for t in completion.choices[0].logprobs.content] == [*"hello"]


def test_chat_options(client):
    answer = client.chat.completions.create(
        model="parrot",
        messages=user("hello"),
        n=2,
        max_completion_tokens=3,
        temperature=0,
        top_p=0.9,
        seed=7,
        stop=["x"],
        logit_bias={"5": -100},
        presence_penalty=0.5,
        frequency_penalty=0.5,
        logprobs=True,
        top_logprobs=1,
        user="someone",
        extra_body={"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1},
    )
    assert [choice.message.content for choice in answer.choices] == ["hel", "hel"]
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    token = answer.choices[1].logprobs.content[0]
    assert (token.token, token.bytes, token.logprob) == ("h", [104], -0.5)
    assert token.top_logprobs[0].token == "h"


def test_completions(client):
    answer = client.completions.create(
        model="parrot", prompt=["say one", "say two"], logprobs=1, max_tokens=3
    )
    assert [choice.text for choice in answer.choices] == ["one", "two"]
    logprobs = answer.choices[1].logprobs
    assert logprobs.tokens == ["t", "w", "o"]
    assert logprobs.text_offset == [0, 1, 2]
    assert logprobs.top_logprobs[0] == {"t": -0.5}


def test_completions_stream(client):
    ids = TOKENIZER.encode("say hello").ids
    stream = client.completions.create(model="parrot", prompt=ids, stream=True, echo=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "say hellohello"


def test_models(client):
    assert [model.id for model in client.models.list()] == ["parrot"]
    assert client.models.retrieve("parrot").id == "parrot"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("cat")


def test_timings_are_in_the_headers(client):
    raw = client.chat.completions.with_raw_response.create(model="parrot", messages=user("a"))
    assert raw.headers["server-timing"].startswith("tokenize;dur=")


@pytest.mark.parametrize(
    ("kind", "status", "code", "request_"),
    [
        (openai.BadRequestError, 400, None, {"temperature": 3}),
        (openai.BadRequestError, 400, "unknown_parameter", {"extra_body": {"magic": 1}}),
        (openai.BadRequestError, 400, None, {"tools": [{"type": "function"}]}),
        (openai.BadRequestError, 400, "context_length_exceeded", {"max_tokens": 64}),
        (openai.BadRequestError, 400, "context_length_exceeded", {"messages": user("x" * 5000)}),
        (openai.BadRequestError, 400, None, {"messages": [{"role": "tool", "content": "x"}]}),
        (openai.NotFoundError, 404, "model_not_found", {"model": "cat"}),
        (openai.APIStatusError, 413, None, {"messages": user("x" * 20_000)}),
        (openai.InternalServerError, 500, None, {"messages": user("error-now")}),
    ],
    ids=lambda value: str(value)[:50],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors(client, kind, status, code, request_, stream):
    request = {"model": "parrot", "messages": user("hello"), "stream": stream, **request_}
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**request)
    assert caught.value.status_code == status
    assert caught.value.code == code
    assert caught.value.body["message"] in str(caught.value)


def test_an_unknown_route(client):
    with pytest.raises(openai.NotFoundError):
        client.moderations.create(model="parrot", input="x")


def test_an_error_in_the_middle_of_a_stream(client):
    stream = client.chat.completions.create(
        model="parrot", messages=user("error-later"), stream=True
    )
    shown = ""
    with pytest.raises(openai.APIError, match="the parrot is ill"):
        for chunk in stream:
            shown += chunk.choices[0].delta.content or ""
    assert shown == "error-later"


def test_too_many_at_once_then_draining(served, client):
    streams = [
        client.chat.completions.create(model="parrot", messages=user("hold"), stream=True)
        for _ in range(2)
    ]
    with pytest.raises(openai.RateLimitError) as limited:
        client.chat.completions.create(model="parrot", messages=user("a"))
    assert limited.value.response.headers["retry-after"] == "1"
    served.loop.call_soon_threadsafe(served.admission.drain)
    with pytest.raises(openai.InternalServerError) as refused:
        client.chat.completions.create(model="parrot", messages=user("a"))
    assert refused.value.status_code == 503
    for stream in streams:
        stream.close()
    assert served.engine.aborted.wait(timeout=10)


def test_a_client_that_gives_up(served):
    hasty = openai.OpenAI(base_url=served.base_url, api_key="none", max_retries=0, timeout=0.3)
    with hasty, pytest.raises(openai.APITimeoutError):
        hasty.chat.completions.create(model="parrot", messages=user("wait"))
    assert served.engine.waiting.is_set()
    assert served.engine.aborted.wait(timeout=10)


def test_the_async_client(served):
    async def main():
        async with openai.AsyncOpenAI(
            base_url=served.base_url, api_key="none", max_retries=0
        ) as client:
            answer = await client.chat.completions.create(model="parrot", messages=user("hello"))
            assert answer.choices[0].message.content == "hello"
            stream = await client.chat.completions.create(
                model="parrot", messages=user("hello"), stream=True
            )
            text = "".join([c.choices[0].delta.content or "" async for c in stream])
            assert text == "hello"
            done = await client.completions.create(model="parrot", prompt="say bye")
            assert done.choices[0].text == "bye"
            for wrong, kind in [
                ({"model": "cat"}, openai.NotFoundError),
                ({"n": 99}, openai.BadRequestError),
                ({"messages": user("error-now")}, openai.InternalServerError),
            ]:
                with pytest.raises(kind):
                    await client.chat.completions.create(
                        **{"model": "parrot", "messages": user("a"), **wrong}
                    )
            held = await client.chat.completions.create(
                model="parrot", messages=user("hold"), stream=True
            )
            await anext(aiter(held))
            await held.close()
            await asyncio.to_thread(served.engine.aborted.wait, 10)
            assert served.engine.aborted.is_set()

    asyncio.run(main())
