"""One token's bytes, for every kind of decoder."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from runtime.server.token_text import TokenText


@pytest.fixture(scope="module")
def byte_level(tiny_tokenizer):
    tokenizer = Tokenizer.from_str(tiny_tokenizer.to_str())
    tokenizer.add_special_tokens([AddedToken("<｜end▁of｜>", special=True)])
    return tokenizer


@settings(derandomize=True, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_byte_level_tokens_add_up_to_the_text(byte_level, text):
    bytes_of = TokenText(byte_level).bytes_of
    ids = byte_level.encode(text, add_special_tokens=False).ids
    assert b"".join(map(bytes_of, ids)).decode() == text


@pytest.mark.parametrize("text", ["<|im_end|>", "<｜end▁of｜>"])
def test_added_tokens_are_their_own_text(byte_level, text):
    token = byte_level.token_to_id(text)
    assert TokenText(byte_level).text_of(token) == text


SENTENCEPIECE = ["▁the", "<0xC3>", "<0xA9>", "fox", "▁"]


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        ),
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
    ],
)
def test_sentencepiece_tokens_keep_their_space_and_byte_tokens_are_bytes(decoder):
    vocabulary = {piece: number for number, piece in enumerate(SENTENCEPIECE)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoder
    bytes_of = TokenText(tokenizer).bytes_of
    assert list(map(bytes_of, range(5))) == [b" the", b"\xc3", b"\xa9", b"fox", b" "]


def test_other_decoders_decode():
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "##ing": 1, "go": 2}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    assert TokenText(tokenizer).text_of(2) == "go"


def test_a_padded_vocabulary_has_tokens_without_text(byte_level):
    assert TokenText(byte_level).bytes_of(5000) == b""
    assert TokenText(byte_level).text_of(5000) == ""
