"""A KV cache that holds less than the model's context: who is told, and what to do about it."""

import httpx
import pytest
from serving import Serve, ask, deploy

from glowplug.cli.main import run
from glowplug.errors import InvalidRequest

pytestmark = pytest.mark.model

HELD = 176  # tokens in 4 MiB: 11 blocks of 16, 22.5 KiB a token


def test_the_context_that_the_cache_holds(
    server: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    with server.client() as client:
        assert deploy(client, "cramped", kv_cache_bytes="4MiB")["max_context"] is None
        ask(client, "cramped")
        assert client.function("cramped")["max_context"] == HELD
        models = httpx.get(f"{server.endpoint}/v1/models").json()["data"]
        shown = {model["id"]: model.get("max_model_len") for model in models}
        assert shown["cramped"] == HELD
        assert run(["describe", "cramped", "--endpoint", server.endpoint]) == 0
        assert f"context {HELD} tokens" in " ".join(capsys.readouterr().out.split())

        long = [{"role": "user", "content": "word " * 300}]
        with pytest.raises(InvalidRequest) as caught, client.chat("cramped", long) as answer:
            list(answer)
        assert f"maximum context length is {HELD} tokens" in caught.value.message
        assert "kv_cache_bytes, for the model itself takes 8192 tokens" in caught.value.message

        deploy(client, "cramped", max_context=64)  # another revision: not known again
        assert client.function("cramped")["max_context"] is None
        client.delete("cramped")
