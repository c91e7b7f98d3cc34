"""Prompt and output have to fit the context; OpenAI's words and numbers when they do not."""

import asyncio
from typing import Any

import httpx
import pytest

from runtime.engine.context import context_limit
from runtime.server.admission import Admission
from runtime.server.app import build_app

CHAT = "/v1/chat/completions"
PLAIN = "/v1/completions"
HI = [{"role": "user", "content": "hello"}]


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": HI, **fields}


def plain(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "hello", **fields}


class TestContextLength:
    """Prompts of token ids, so that lengths are exact; the context is 32 tokens."""

    @pytest.mark.parametrize(
        ("prompt_tokens", "max_tokens", "given"),
        [(10, 22, 22), (31, 1, 1), (10, None, 16), (20, None, 12), (31, None, 1)],
    )
    def test_what_fits(self, ask, prompt_tokens, max_tokens, given):
        body = plain(prompt=[5] * prompt_tokens, max_tokens=max_tokens)
        response, r = ask(PLAIN, body, max_context=32)
        assert response.status_code == 200, response.text
        assert r.engine.submitted[0].params.max_tokens == given

    @pytest.mark.parametrize(
        ("prompt_tokens", "max_tokens", "numbers"),
        [
            (10, 23, "33 tokens (10 in your prompt; 23 for the completion)"),
            (32, None, "33 tokens (32 in your prompt; 1 for the completion)"),
            (40, None, "41 tokens (40 in your prompt; 1 for the completion)"),
            (40, 5, "45 tokens (40 in your prompt; 5 for the completion)"),
        ],
    )
    def test_what_does_not(self, ask, prompt_tokens, max_tokens, numbers):
        body = plain(prompt=[5] * prompt_tokens, max_tokens=max_tokens)
        response, r = ask(PLAIN, body, max_context=32)
        error = response.json()["error"]
        assert response.status_code == 400
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
        assert "maximum context length is 32 tokens" in error["message"]
        assert numbers in error["message"]
        assert not r.engine.submitted

    def test_chat_takes_what_remains(self, ask, tiny_tokenizer):
        text = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
        length = len(tiny_tokenizer.encode(text).ids)
        response, r = ask(CHAT, chat())
        assert r.engine.submitted[0].params.max_tokens == 512 - length
        assert response.json()["usage"]["prompt_tokens"] == length

    def test_chat_says_it_in_its_own_words(self, ask):
        response, _ = ask(CHAT, chat(max_tokens=510))
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
        assert "510 in the completion)" in error["message"]

    @pytest.mark.parametrize(("path", "param"), [(CHAT, "messages"), (PLAIN, "prompt")])
    def test_what_cannot_fit_is_refused_before_it_is_tokenised(self, ask, path, param):
        text = "x" * 20_000
        body = chat(messages=[{"role": "user", "content": text}]) if path == CHAT else plain()
        response, _ = ask(path, body if path == CHAT else {**body, "prompt": ["a", text]})
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", param)
        assert "over 10240 characters" in error["message"]


@pytest.mark.parametrize(
    ("asked", "held", "tokens", "words"),
    [
        (None, 4096, 2048, ""),
        (4096, 4096, 2048, ""),
        (2048, 4096, 2048, ""),
        (512, 4096, 512, "the function's max_context"),
        (None, 1024, 1024, "the function's kv_cache_bytes"),
        (512, 256, 256, "the function's kv_cache_bytes"),
        (512, 512, 512, "the function's max_context"),
    ],
)
def test_what_sets_the_context(asked, held, tokens, words):
    limit = context_limit(model=2048, asked=asked, held=held)
    assert limit.tokens == tokens
    assert words in limit.note
    assert bool(limit.note) == bool(words)
    assert not words or "takes 2048 tokens; raise it" in limit.note


@pytest.mark.parametrize("prompt", [[5] * 600, "x" * 20_000])
def test_the_error_says_which_setting_to_raise(replica, tiny_tokenizer, manifest_for, prompt):
    note = context_limit(model=8192, asked=None, held=512).note

    async def main() -> httpx.Response:
        async with replica() as r:
            app = build_app(
                engine=r.client,
                tokenizer=tiny_tokenizer,
                manifest=manifest_for(300),
                model_names=["tiny"],
                revision="r",
                admission=Admission(),
                context_note=note,
            )
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://r") as http:
                return await http.post(PLAIN, json=plain(prompt=prompt))

    error = asyncio.run(main()).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"].endswith(
        "This is set by the function's kv_cache_bytes, for the model itself takes 8192 tokens; "
        "raise it for longer ones."
    )
