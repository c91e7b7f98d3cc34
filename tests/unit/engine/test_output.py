"""Text never splits a character and never shows a part of a stop string."""

import pytest
from hypothesis import given, settings
from hypothesis.strategies import integers, lists, sampled_from, text
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from runtime.engine.output import Detokenizer, OutputText, StopMatcher


def byte_tokenizer() -> Tokenizer:
    """One token a byte: every character beyond ASCII takes several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    return tokenizer


def metaspace_tokenizer() -> Tokenizer:
    """Llama 2's way: a leading space is part of a token and dropped at the start of a text."""
    vocab = {"<unk>": 0, "▁Hello": 1, "▁world": 2, "s": 3, "</s>": 4}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return tokenizer


BYTES = byte_tokenizer()
END = BYTES.token_to_id("<|end|>")


def ids(string: str) -> tuple[int, ...]:
    return tuple(BYTES.encode(string, add_special_tokens=False).ids)


def stream(string: str, *, prompt: str = "", stops: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    """The pieces that a client sees for this output, and whether a stop string ended it."""
    output = OutputText(BYTES, prompt=ids(prompt), stops=stops)
    pieces = []
    for token in ids(string):
        piece, stopped = output.push(token)
        pieces.append(piece)
        if stopped:
            return pieces, True
    piece, stopped = output.flush()
    return [*pieces, piece], stopped


@given(text(max_size=40), text(max_size=10))
@settings(derandomize=True, max_examples=200)
def test_the_pieces_make_the_text(string, prompt):
    pieces, _ = stream(string, prompt=prompt)
    assert "".join(pieces) == string


@given(text(alphabet="aé漢😀", min_size=1, max_size=20))
@settings(derandomize=True, max_examples=100)
def test_no_piece_splits_a_character(string):
    pieces, _ = stream(string)
    assert "\ufffd" not in "".join(pieces)
    assert [piece for piece in pieces if piece] == list(string)


@given(text(alphabet="abé", max_size=25), lists(text(alphabet="abé", min_size=1, max_size=4)))
@settings(derandomize=True, max_examples=300)
def test_stops_end_the_text_before_the_first_of_them(string, stops):
    pieces, stopped = stream(string, stops=tuple(stops))
    cuts = [string.find(stop) for stop in stops if stop in string]
    assert stopped == bool(cuts)
    shown = "".join(pieces)
    if not stopped:
        assert shown == string
    else:
        # A stop is acted on when its last character arrives, so an earlier end wins.
        end = min(string.find(stop) + len(stop) for stop in stops if stop in string)
        seen = string[:end]
        assert shown == seen[: min(seen.find(stop) for stop in stops if stop in seen)]


@pytest.mark.parametrize("stop", ["STOP", "\n\n", "é!", "😀😀"])
def test_a_part_of_a_stop_string_is_held_and_then_shown_if_it_was_none(stop):
    part = stop[:-1]
    pieces, stopped = stream(f"x{part}y", stops=(stop,))
    assert ("".join(pieces), stopped) == (f"x{part}y", False)
    matcher = StopMatcher((stop,))
    assert matcher.push(f"x{part}") == ("x", False)
    assert matcher.flush() == part


def test_a_prompt_that_ends_inside_a_character_does_not_leak_into_the_output():
    character = BYTES.encode("é", add_special_tokens=False).ids
    detokenizer = Detokenizer(BYTES, (*ids("caf"), character[0]))
    pieces = [detokenizer.push(token) for token in (character[1], *ids("!"))]
    assert "caf" not in "".join(pieces)
    assert "".join(pieces).endswith("!")


@given(lists(integers(0, 255), max_size=40))
@settings(derandomize=True, max_examples=200)
def test_broken_bytes_are_not_held_for_ever(tokens):
    detokenizer = Detokenizer(BYTES, ())
    shown, held = "", 0
    for token in tokens:
        piece = detokenizer.push(token)
        shown += piece
        held = 0 if piece else held + 1
        assert held < 8
    shown += detokenizer.flush()
    assert shown.replace("\ufffd", "") == BYTES.decode(tokens).replace("\ufffd", "")


def test_special_tokens_have_no_text_and_do_not_disturb_spaces():
    tokenizer = metaspace_tokenizer()
    detokenizer = Detokenizer(tokenizer, (1,))
    assert [detokenizer.push(token) for token in (4, 2, 3)] == ["", " world", "s"]
    fresh = Detokenizer(BYTES, ids("a"))
    assert [fresh.push(token) for token in (END, *ids("b"))] == ["", "b"]


@given(lists(sampled_from([1, 2, 3]), min_size=1, max_size=20), integers(0, 3))
@settings(derandomize=True, max_examples=100)
def test_leading_spaces_survive_for_metaspace_tokenizers(tokens, prompt_length):
    tokenizer = metaspace_tokenizer()
    prompt = tuple([1, 2, 3][:prompt_length])
    detokenizer = Detokenizer(tokenizer, prompt)
    shown = "".join(detokenizer.push(token) for token in tokens) + detokenizer.flush()
    assert tokenizer.decode([*prompt, *tokens]) == tokenizer.decode(list(prompt)) + shown
