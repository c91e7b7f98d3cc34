"""A draft model sealed beside the model that it guesses for: found, and checked against it.

A draft is a row of token ids. It means the same to both models only where their vocabularies are
the same; how text becomes tokens is the target's tokenizer's business alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from glowplug.errors import SnapshotError, UnsupportedModel
from snapshot.encoder_config import EncoderConfig
from snapshot.model_config import ModelConfig
from snapshot.source import Source, find_source

if TYPE_CHECKING:  # it brings torch, which those who only find a source do without
    from snapshot.checkpoint import Checkpoint

_SHOWN = 40


@contextmanager
def about_draft() -> Iterator[None]:
    """What goes wrong in this block is said to be the draft model's."""
    try:
        yield
    except SnapshotError as error:
        raise type(error)(f"draft_model: {error.message}") from None


def find_draft(text: str | None) -> Source | None:
    """Locate a draft model, where there is one. Raises as find_source does."""
    if text is None:
        return None
    with about_draft():
        return find_source(text)


def check_draft(target: "Checkpoint", draft: "Checkpoint") -> ModelConfig:
    """The draft model's config, if it speaks the target's tokens.

    Raises:
        UnsupportedModel: one of them generates no text, or another vocabulary, with the first
            difference.
    """
    if isinstance(target.config, EncoderConfig):
        raise UnsupportedModel(
            f"{target.name} is an encoder, which generates nothing to guess; leave draft_model out"
        )
    if isinstance(draft.config, EncoderConfig):
        raise UnsupportedModel(
            f"{draft.name} is an encoder, which generates nothing; give a decoder of the same "
            f"family as {target.name}"
        )
    sizes = target.config.vocab_size, draft.config.vocab_size
    if sizes[0] != sizes[1]:
        raise UnsupportedModel(
            f"{draft.name}: its vocabulary has {sizes[1]} tokens, that of {target.name} has "
            f"{sizes[0]}; give a draft model of the same family"
        )
    ours, theirs = target.text.tokenizer_json, draft.text.tokenizer_json
    if ours == theirs:
        return draft.config
    expected, found = _vocabulary(ours), _vocabulary(theirs)
    for token in sorted(expected.keys() | found.keys()):
        if expected.get(token) != found.get(token):
            raise UnsupportedModel(
                f"{draft.name}: its tokenizer is another than that of {target.name} (token "
                f"{token[:_SHOWN]!r} is {_number(found.get(token))} there, "
                f"{_number(expected.get(token))} here); give a draft model of the same family"
            )
    return draft.config


def _vocabulary(tokenizer_json: bytes) -> dict[str, int]:
    from tokenizers import Tokenizer

    return Tokenizer.from_buffer(tokenizer_json).get_vocab(with_added_tokens=True)


def _number(token_id: int | None) -> str:
    return "missing" if token_id is None else f"number {token_id}"
