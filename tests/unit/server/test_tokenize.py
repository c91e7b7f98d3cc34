"""/tokenize and /detokenize: vLLM's shapes, the encoder's tokens, the same limits."""

import pytest

from snapshot.manifest import ChatFormat

TEXT = "the quick é"
HI = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_there_and_back(ask, tiny_tokenizer, prefix):
    response, r = ask(f"{prefix}/tokenize", {"model": "tiny", "prompt": TEXT})
    ids = tiny_tokenizer.encode(TEXT).ids
    assert response.json() == {"count": len(ids), "max_model_len": 512, "tokens": ids}
    back, _ = ask(f"{prefix}/detokenize", {"model": "tiny", "tokens": ids})
    assert back.json() == {"prompt": TEXT}
    assert not r.engine.submitted


def test_special_tokens_of_a_prompt(ask):
    with_bos, _ = ask("/tokenize", {"prompt": TEXT}, add_bos=True)
    without, _ = ask("/tokenize", {"prompt": TEXT, "add_special_tokens": False}, add_bos=True)
    assert with_bos.json()["tokens"] == [0, *without.json()["tokens"]]
    shown, _ = ask("/detokenize", {"tokens": with_bos.json()["tokens"]})
    assert shown.json() == {"prompt": "<s>" + TEXT}


def test_messages_go_through_the_template(ask):
    def text(**fields):
        response, _ = ask("/tokenize", {"messages": HI, **fields})
        shown, _ = ask("/detokenize", {"tokens": response.json()["tokens"]})
        return shown.json()["prompt"]

    turn = "<|im_start|>user\nhello<|im_end|>\n"
    assert text() == turn + "<|im_start|>assistant\n"
    assert text(add_generation_prompt=False) == turn


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": ""}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": HI}, "prompt"),
        ("/tokenize", {"prompt": "x", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"prompt": "x", "chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
        ("/tokenize", {"messages": HI, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"prompt": "x", "surprise": 1}, "surprise"),
        ("/tokenize", {"prompt": "x" * 20_000}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": []}, "tokens"),
        ("/detokenize", {"tokens": [300]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_refused(ask, path, body, param):
    response, _ = ask(path, body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_another_model_is_not_found(ask):
    assert ask("/tokenize", {"model": "gpt-4o", "prompt": "x"})[0].status_code == 404
    assert ask("/detokenize", {"model": "gpt-4o", "tokens": [1]})[0].status_code == 404


def test_a_model_without_a_template_tokenises_prompts(ask):
    no_template = ChatFormat(template=None)
    assert ask("/tokenize", {"prompt": "x"}, chat=no_template)[0].status_code == 200
    assert ask("/tokenize", {"messages": HI}, chat=no_template)[0].status_code == 400
