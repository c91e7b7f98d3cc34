"""Tokenizer files of a Hugging Face folder: what is sealed of them, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors

from glowplug.errors import CorruptSnapshot, UnsupportedModel
from snapshot.checkpoint import TextFormat
from snapshot.hf_tokenizer import hf_tokenizer

VOCAB_SIZE = 384


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    write(tmp_path, tokenizer)
    return tmp_path


def write(folder: Path, tokenizer: Tokenizer) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))


def settings(folder: Path, **fields: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))


def read(folder: Path, config: dict[str, Any] | None = None, vocab: int = VOCAB_SIZE) -> TextFormat:
    return hf_tokenizer(folder, config or {}, vocab)


def copy(tokenizer: Tokenizer) -> Tokenizer:
    return Tokenizer.from_str(tokenizer.to_str())


def with_bos(tokenizer: Tokenizer) -> Tokenizer:
    changed = copy(tokenizer)
    changed.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A $B", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return changed


def test_same_tokens(folder: Path, tokenizer: Tokenizer) -> None:
    sealed = Tokenizer.from_str(read(folder).tokenizer_json.decode())
    for text in ["", "Hello <s>world</s> 123", "日本語 🙂\n\tx  ", "<|user|>hi"]:
        assert sealed.encode(text).ids == tokenizer.encode(text).ids
        assert sealed.decode(sealed.encode(text).ids) == tokenizer.decode(
            tokenizer.encode(text).ids
        )


@pytest.mark.parametrize("bos", ["<s>", {"content": "<s>", "__type": "AddedToken"}])
@pytest.mark.parametrize(
    ("post_processor", "add_bos_token", "expected"),
    [
        (False, None, False),
        (False, False, False),
        (False, True, False),
        (True, None, True),
        (True, True, True),
        (True, False, True),
    ],
)
def test_add_bos_is_what_transformers_does(
    folder: Path,
    tokenizer: Tokenizer,
    bos: Any,
    post_processor: bool,
    add_bos_token: bool | None,
    expected: bool,
) -> None:
    from transformers import PreTrainedTokenizerFast

    if post_processor:
        write(folder, with_bos(tokenizer))
    flag = {} if add_bos_token is None else {"add_bos_token": add_bos_token}
    settings(folder, bos_token=bos, eos_token="</s>", **flag)
    text = read(folder)
    assert text.add_bos is expected
    assert text.bos_token_id == 1
    assert text.chat.bos_token == "<s>"
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)("Hello").input_ids
    sealed = Tokenizer.from_str(text.tokenizer_json.decode())
    plain = sealed.encode("Hello", add_special_tokens=True).ids
    assert plain == sealed.encode("Hello", add_special_tokens=False).ids
    ours = [1, *plain] if text.add_bos else plain
    assert theirs[: len(ours)] == ours  # theirs may end with </s>, which no prompt should


def test_bos_of_the_post_processor_alone(folder: Path, tokenizer: Tokenizer) -> None:
    write(folder, with_bos(tokenizer))
    text = read(folder)
    assert (text.add_bos, text.bos_token_id, text.chat.bos_token) == (True, 1, None)


def test_no_bos_at_all(folder: Path) -> None:
    settings(folder, bos_token=None, add_bos_token=True)
    assert (read(folder).add_bos, read(folder).bos_token_id) == (False, None)


def test_two_leading_tokens_are_refused(folder: Path, tokenizer: Tokenizer) -> None:
    changed = copy(tokenizer)
    changed.post_processor = processors.TemplateProcessing(
        single="<s> <|user|> $A", special_tokens=[("<s>", 1), ("<|user|>", 3)]
    )
    write(folder, changed)
    with pytest.raises(UnsupportedModel, match="more than one token"):
        read(folder)


def test_truncation_and_padding_are_dropped(folder: Path, tokenizer: Tokenizer) -> None:
    changed = copy(tokenizer)
    changed.enable_truncation(4)
    changed.enable_padding(length=64)
    write(folder, changed)
    sealed = Tokenizer.from_str(read(folder).tokenizer_json.decode())
    text = "a long text that is neither cut nor filled up"
    assert sealed.encode(text).ids == tokenizer.encode(text).ids


def test_added_tokens_beyond_the_embedding_become_text(folder: Path, tokenizer: Tokenizer) -> None:
    changed = copy(tokenizer)
    changed.add_special_tokens(["[PAD]"])
    write(folder, changed)
    sealed = Tokenizer.from_str(read(folder).tokenizer_json.decode())
    assert max(sealed.encode("a[PAD]b").ids) < VOCAB_SIZE
    assert sealed.decode(sealed.encode("a[PAD]b").ids) == "a[PAD]b"


def test_vocabulary_beyond_the_embedding_is_refused(folder: Path) -> None:
    with pytest.raises(CorruptSnapshot, match="a token 383, the model's vocabulary has 300"):
        read(folder, vocab=300)


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [3, 0]}, {"eos_token_id": 1}, (3, 0, 2)),
        ({"eos_token_id": 3}, {"eos_token_id": 1}, (3, 2)),
        ({}, {"eos_token_id": 1}, (1, 2)),
        ({}, {"eos_token_id": [2, 1]}, (2, 1)),
        (None, {"eos_token_id": None}, (2,)),
        (None, {}, (2,)),
    ],
)
def test_stop_tokens(
    folder: Path,
    generation: dict[str, Any] | None,
    config: dict[str, Any],
    expected: tuple[int, ...],
) -> None:
    settings(folder, eos_token="</s>")
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    assert read(folder, config).generation.eos_token_ids == expected


def test_sampling_defaults(folder: Path) -> None:
    path = folder / "generation_config.json"
    path.write_text(json.dumps({"temperature": 0.6, "top_p": 0.9, "top_k": 40}))
    found = read(folder).generation
    assert (found.temperature, found.top_p, found.top_k) == (0.6, 0.9, 40)
    path.write_text(json.dumps({"top_k": 0}))
    assert read(folder).generation.top_k is None
    for wrong in ({"temperature": -1}, {"top_p": 2}, {"top_k": "x"}):
        path.write_text(json.dumps(wrong))
        with pytest.raises(CorruptSnapshot, match=f"generation_config.json: {next(iter(wrong))}"):
            read(folder)


@pytest.mark.parametrize("wrong", [384, -1, "two", [1, 99999], {"a": 1}])
def test_wrong_stop_tokens(folder: Path, wrong: Any) -> None:
    with pytest.raises(CorruptSnapshot, match="eos_token_id"):
        read(folder, {"eos_token_id": wrong})


def test_chat_template(folder: Path) -> None:
    assert read(folder).chat.template is None
    settings(folder, chat_template="plain")
    assert read(folder).chat.template == "plain"
    named = [{"name": "rag", "template": "a"}, {"name": "default", "template": "b"}]
    settings(folder, chat_template=named)
    assert read(folder).chat.template == "b"
    settings(folder, chat_template=named[:1])
    assert read(folder).chat.template is None
    (folder / "chat_template.jinja").write_text("from the file")
    assert read(folder).chat.template == "from the file"
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CorruptSnapshot, match="not UTF-8"):
        read(folder)
    (folder / "chat_template.jinja").write_bytes(b"x" * (2 << 20))
    with pytest.raises(CorruptSnapshot, match="over 1 MiB"):
        read(folder)


def test_no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UnsupportedModel, match=r"no tokenizer.json; make it with transformers"):
        read(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"model": None},
        {"model": {"type": "BPE", "vocab": {}, "merges": []}},
        {"model": {"type": "BPE", "vocab": {"a": "b"}, "merges": []}},
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}},
        {"model": {"type": "Unheard", "vocab": {"a": 0}}},
        {"added_tokens": 3},
        {"added_tokens": [{"id": "x"}]},
        {"added_tokens": ["<s>"]},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}},
        {"pre_tokenizer": {"type": "Unheard"}},
        {"normalizer": []},
        {"decoder": 7},
    ],
    ids=str,
)
def test_damaged_tokenizer(folder: Path, change: dict[str, Any]) -> None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CorruptSnapshot, match=r"tokenizer.json"):
        read(folder)
