"""POST /v1/embeddings: OpenAI's shape, what is refused, and what reaches the engine."""

import asyncio
import base64
from typing import Any

import numpy as np
import pytest

from runtime.engine.request import Delta, FinishReason, GenerationRequest
from runtime.server.embedding_protocol import MAX_INPUTS, MAX_TOTAL_TOKENS
from snapshot.encoder_config import EncoderConfig
from snapshot.manifest import ChatFormat, EmbeddingFormat

PATH = "/v1/embeddings"
SIZE = 8  # of the manifest's model


def vector_of(request: GenerationRequest) -> np.ndarray:
    """A vector that says what was embedded."""
    raw = np.arange(SIZE) + len(request.prompt) + np.asarray(request.prompt).mean() / 7
    return (raw / np.linalg.norm(raw)).astype(np.float32)


def embeds(request: GenerationRequest) -> list[Delta]:
    assert request.params.max_tokens == 0
    return [
        Delta(
            embedding=vector_of(request),
            finish=FinishReason.STOP,
            stages_ms={"queue": 1.5, "prefill": 20.25},
        )
    ]


@pytest.fixture
def embed(ask):
    """`embed(input, **fields)`: the response and the replica."""

    def run(text: Any, *, settings: dict[str, Any] | None = None, **fields: Any):
        body = {"model": "tiny", "input": text, **fields}
        return ask(PATH, body, script=embeds, **(settings or {}))

    return run


def test_one_text(embed, tiny_tokenizer):
    response, r = embed("the quick brown fox")
    [request] = r.engine.submitted
    ids = tiny_tokenizer.encode("the quick brown fox").ids
    assert request.prompt == tuple(ids)
    assert request.pooling == "last"
    assert response.status_code == 200
    assert response.json() == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": vector_of(request).tolist()},
        ],
        "model": "tiny",
        "usage": {"prompt_tokens": len(ids), "total_tokens": len(ids)},
    }
    assert response.headers["content-type"] == "application/json"
    stages = [entry.partition(";")[0] for entry in response.headers["server-timing"].split(", ")]
    assert stages == ["tokenize", "queue", "prefill"]


@pytest.mark.parametrize(
    ("text", "prompts"),
    [
        ([5, 6, 7], [(5, 6, 7)]),
        ([[5, 6], [7]], [(5, 6), (7,)]),
        ([[9] * 512], [(9,) * 512]),
    ],
    ids=["ids", "lists of ids", "as long as the context"],
)
def test_token_ids_are_taken_as_they_are(embed, text, prompts):
    response, r = embed(text, settings={"add_bos": True})
    assert [request.prompt for request in r.engine.submitted] == prompts
    assert response.json()["usage"]["total_tokens"] == sum(map(len, prompts))


def test_texts_get_the_bos_that_the_model_has(embed, tiny_tokenizer):
    _, r = embed(["fox", "dog"], settings={"add_bos": True})
    expected = [(0, *tiny_tokenizer.encode(text).ids) for text in ("fox", "dog")]
    assert [request.prompt for request in r.engine.submitted] == expected


def test_many_inputs_come_back_in_order(embed):
    inputs = [[n % 250 + 3] * (n % 5 + 1) for n in range(100)]  # more than a group and a piece
    response, r = embed(inputs)
    data = response.json()["data"]
    assert [entry["index"] for entry in data] == list(range(100))
    assert [request.prompt for request in r.engine.submitted] == [tuple(ids) for ids in inputs]
    for entry, request in zip(data, r.engine.submitted, strict=True):
        assert entry["embedding"] == vector_of(request).tolist()


def test_the_last_input_fails_the_request_before_anything_is_sent(ask):
    def script(request: GenerationRequest) -> list[Delta]:
        if request.prompt == (7,):
            return [Delta(finish=FinishReason.ERROR, error="this one cannot be")]
        return embeds(request)

    response, r = ask(PATH, {"model": "tiny", "input": [[5]] * 60 + [[7]]}, script=script)
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "this one cannot be"
    assert len(r.engine.submitted) == 61


def test_base64_is_little_endian_float32(embed):
    response, r = embed("fox", encoding_format="base64")
    data = base64.b64decode(response.json()["data"][0]["embedding"])
    assert np.frombuffer(data, "<f4").tolist() == vector_of(r.engine.submitted[0]).tolist()


def test_fewer_dimensions_are_of_unit_length_again(embed):
    response, r = embed("fox", dimensions=3)
    vector = np.array(response.json()["data"][0]["embedding"])
    whole = vector_of(r.engine.submitted[0])[:3].astype(float)
    np.testing.assert_allclose(vector, whole / np.linalg.norm(whole), atol=1e-7)
    full, r = embed("fox", dimensions=SIZE)
    assert full.json()["data"][0]["embedding"] == vector_of(r.engine.submitted[0]).tolist()


def test_harmless_fields(embed):
    response, _ = embed("fox", user="somebody", dimensions=None, encoding_format=None)
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [""]}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [[5], []]}, "input"),
        ({"input": ["a", 5]}, "input"),
        ({"input": [["a"]]}, "input"),
        ({"input": [True]}, "input"),
        ({"input": [1.5]}, "input"),
        ({"input": None}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": [300]}, "input"),
        ({"input": [[5], [-1]]}, "input"),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, "input"),
        ({"input": "a" * 20_000}, "input"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": -1}, "dimensions"),
        ({"dimensions": SIZE + 1}, "dimensions"),
        ({"dimensions": "8"}, "dimensions"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"model": None}, "model"),
        ({"surprise": 1}, "surprise"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_refused(ask, fields, param):
    response, r = ask(PATH, {"model": "tiny", "input": "fox"} | fields, script=embeds)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert param in response.json()["error"]["message"]
    assert not r.engine.submitted


def test_missing_fields(ask):
    response, _ = ask(PATH, {"model": "tiny"})
    assert response.json()["error"]["message"] == "input: required"


def test_another_model(ask):
    response, _ = ask(PATH, {"model": "other", "input": "fox"})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


def test_the_size_is_named_where_dimensions_are_over_it(embed):
    response, _ = embed("fox", dimensions=1536)
    assert "1536 is over 8" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("text", "where"),
    [([9] * 513, "your input has 513 tokens"), ([[9], [9] * 600], "input[1] has 600 tokens")],
)
def test_an_input_that_is_too_long(embed, text, where):
    response, r = embed(text)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "maximum context length is 512 tokens" in error["message"]
    assert where in error["message"]
    assert not r.engine.submitted


def test_too_many_tokens_in_all(embed):
    count = MAX_TOTAL_TOKENS // 500 + 1
    response, r = embed([[9] * 500] * count)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "max_tokens_per_request")
    assert f"{500 * count} tokens are over {MAX_TOTAL_TOKENS}" in error["message"]
    assert not r.engine.submitted


def test_tenants_are_kept_apart(replica):
    async def main() -> list[str]:
        async with replica(script=embeds) as r:
            body = {"model": "tiny", "input": "fox"}
            for headers in ({"x-glowplug-tenant": "blue"}, {}):
                await r.http.post(PATH, json=body, headers=headers)
            return [request.cache_salt for request in r.engine.submitted]

    assert asyncio.run(main()) == ["blue", ""]


def test_a_client_that_goes_away_frees_the_engine(served):
    async def main() -> None:
        async with served(script=lambda request: []) as r:  # runs for ever
            body = {"model": "tiny", "input": ["fox"] * 40}
            asking = asyncio.create_task(r.http.post(PATH, json=body))
            await r.engine.has(32)  # a group
            asking.cancel()
            await r.engine.saw_abort.wait()
            await r.admission.idle()
            assert sorted(r.engine.aborted) == sorted(each.id for each in r.engine.submitted)
            assert len(r.engine.submitted) == 32

    asyncio.run(main())


ENCODER = EncoderConfig(
    family="bert",
    vocab_size=300,
    hidden_size=SIZE,
    intermediate_size=8,
    num_layers=1,
    num_heads=1,
    position_rows=32,
    position_offset=0,
    max_positions=32,
    token_types=2,
    norm_eps=1e-12,
    activation="gelu",
)
AS_AN_ENCODER = {
    "config": ENCODER,
    "max_context": 32,
    "embedding": EmbeddingFormat(pooling="cls", before=(2,), after=(1,)),
    "chat": ChatFormat(template=None),
}


class TestEncoder:
    """A replica whose model only embeds."""

    def test_texts_stand_between_cls_and_sep(self, embed, tiny_tokenizer):
        response, r = embed("fox", settings=AS_AN_ENCODER)
        ids = (2, *tiny_tokenizer.encode("fox").ids, 1)
        [request] = r.engine.submitted
        assert (request.prompt, request.pooling) == (ids, "cls")
        assert response.json()["usage"]["prompt_tokens"] == len(ids)

    def test_token_ids_are_taken_as_they_are(self, embed):
        _, r = embed([5, 6], settings=AS_AN_ENCODER)
        assert r.engine.submitted[0].prompt == (5, 6)

    def test_the_special_tokens_count(self, embed):
        response, _ = embed([9] * 32, settings=AS_AN_ENCODER)
        assert response.status_code == 200
        response, _ = embed("x " * 16, settings=AS_AN_ENCODER)
        assert response.json()["error"]["code"] == "context_length_exceeded"

    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("/v1/completions", {"model": "tiny", "prompt": "fox"}),
            (
                "/v1/chat/completions",
                {"model": "tiny", "messages": [{"role": "user", "content": "fox"}]},
            ),
        ],
    )
    def test_it_does_not_generate(self, ask, path, body):
        response, r = ask(path, body, **AS_AN_ENCODER)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "model")
        assert error["code"] == "model_not_supported"
        assert "call /v1/embeddings" in error["message"]
        assert not r.engine.submitted

    def test_its_tokens(self, ask, tiny_tokenizer):
        plain = tiny_tokenizer.encode("fox").ids
        response, _ = ask("/v1/tokenize", {"prompt": "fox"}, **AS_AN_ENCODER)
        assert response.json() == {
            "count": len(plain) + 2,
            "max_model_len": 32,
            "tokens": [2, *plain, 1],
        }
        body = {"prompt": "fox", "add_special_tokens": False}
        response, _ = ask("/v1/tokenize", body, **AS_AN_ENCODER)
        assert response.json()["tokens"] == plain

    def test_its_model_list_says_so(self, replica):
        async def main() -> list[list[str]]:
            tasks = []
            for settings in ({}, AS_AN_ENCODER):
                async with replica(**settings) as r:
                    listed = (await r.http.get("/v1/models")).json()
                    tasks.append(listed["data"][0]["tasks"])
            return tasks

        assert asyncio.run(main()) == [["generate", "embed"], ["embed"]]


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
def test_the_functions_pooling_wins(embed, pooling):
    _, r = embed("fox", settings={"pooling": pooling})
    assert r.engine.submitted[0].pooling == pooling
    _, r = embed("fox", settings=AS_AN_ENCODER | {"pooling": pooling})
    assert r.engine.submitted[0].pooling == pooling
