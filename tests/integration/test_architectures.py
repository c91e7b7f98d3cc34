"""Models of other architectures than Llama through the real program: the tokens of transformers."""

from pathlib import Path

import httpx
import pytest
import transformers
from serving import Serve, deploy, start_serve
from tiny_models import PROMPTS, SIZES, reference, save_checkpoint

GEMMA = {"head_dim": 32, "sliding_window": 5, "sliding_window_pattern": 2}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
CONFIGS = {
    "gemma": transformers.Gemma3TextConfig(**SIZES, **GEMMA),
    "phi": transformers.Phi3Config(**SIZES, pad_token_id=0),
    "mixture": transformers.Qwen2MoeConfig(**SIZES, **EXPERTS, shared_expert_intermediate_size=40),
}


@pytest.mark.slow
def test_greedy_completions(tmp_path: Path) -> None:
    serve = start_serve(tmp_path / "data")
    try:
        for name, config in CONFIGS.items():
            model = save_checkpoint(config, tmp_path / name)
            with serve.client() as client:
                deploy(client, name, model=str(tmp_path / name), dtype="float32")
            for prompt in PROMPTS:
                expected = reference(model, prompt, 8).argmax(-1).tolist()
                assert complete(serve, name, prompt, 8) == [f"t{token}" for token in expected]
    finally:
        serve.stop()


def complete(serve: Serve, name: str, prompt: list[int], tokens: int) -> list[str]:
    """The words of a greedy completion: each token of the tiny models is one."""
    body = {"model": name, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    url = f"{serve.endpoint}/f/{name}/v1/completions"
    response = httpx.post(url, json={**body, "ignore_eos": True}, timeout=60)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"]).split()
