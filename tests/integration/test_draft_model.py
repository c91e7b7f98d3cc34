"""A function with a draft model, deployed and called as any other: it answers the same."""

import pytest
from serving import MODEL, STORY, Serve, deploy

from glowplug.client import Client

pytestmark = [pytest.mark.model, pytest.mark.slow]


def story(client: Client, name: str, **params: float) -> str:
    with client.chat(name, STORY, max_tokens=40, ignore_eos=True, **params) as answer:
        for _ in answer:
            pass
    assert answer.completion_tokens == 40
    return answer.text


def test_a_draft_model_changes_no_answer(server: Serve) -> None:
    """It is SmolLM2 itself: too slow to pay, so what is proposed are tries, but all of the way from
    the command's option to the engine is walked."""
    with server.client() as client:
        plain = deploy(client, "undrafted", speculation="off")
        drafted = deploy(client, "drafted", draft_model=MODEL)
        assert drafted["spec"]["draft_model"] == MODEL
        assert drafted["snapshot"] != plain["snapshot"]
        for params in ({"temperature": 0.0}, {"temperature": 0.9, "seed": 7}):
            texts = [story(client, name, **params) for name in ("undrafted", "drafted")]
            assert texts[0] == texts[1]
        for name in ("undrafted", "drafted"):
            client.delete(name)
