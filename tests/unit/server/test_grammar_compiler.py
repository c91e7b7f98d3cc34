"""Compiling grammars: errors that name the field, time limits, and tokenizers that cannot."""

import asyncio
import threading

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from glowplug.errors import InvalidRequest, Overloaded
from runtime.server import constraint, grammar_compiler
from runtime.server.grammar_compiler import GrammarCompiler, grammar_tokenizer


@pytest.fixture
def compile_one(tiny_tokenizer):
    def run(wanted, tokenizer=None, eos=(1,)):
        async def main():
            compiler = GrammarCompiler(
                tokenizer or tiny_tokenizer, eos_token_ids=eos, vocab_size=300
            )
            try:
                return await compiler.compile(wanted)
            finally:
                compiler.close()

        return asyncio.run(main())

    return run


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (constraint.of_schema({"type": "nope"}, param="f"), "nope"),
        (constraint.of_schema({"uniqueItems": True}, param="f"), "uniqueItems"),
        (constraint.of_regex("(a", param="f"), "unclosed group"),
        (constraint.of_regex("a(?=b)", param="f"), "look-ahead"),
        (constraint.of_lark("start: foo", param="f"), "foo"),
    ],
    ids=["type", "keyword", "regex", "look-ahead", "lark"],
)
def test_what_is_wrong_is_said(compile_one, wanted, words):
    with pytest.raises(InvalidRequest) as error:
        compile_one(wanted)
    assert error.value.param == "f"
    assert error.value.message.startswith("f: ")
    assert words in error.value.message
    assert len(error.value.message) < 600


def test_a_tokenizer_or_a_model_that_cannot(compile_one):
    regex = constraint.of_regex("a", param="f")
    words = Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a"))
    with pytest.raises(InvalidRequest, match="f: this model's tokenizer"):
        compile_one(regex, eos=())
    if grammar_tokenizer(words, eos_token_ids=(1,), vocab_size=300) is None:
        with pytest.raises(InvalidRequest, match="f: this model's tokenizer"):
            compile_one(regex, tokenizer=words)


def test_time_is_limited_and_busy_workers_are_told_from_a_hard_grammar(tiny_tokenizer, monkeypatch):
    done = threading.Event()
    monkeypatch.setattr(grammar_compiler, "_COMPILE_LIMIT_S", 0.1)
    monkeypatch.setattr(grammar_compiler, "_compile", lambda *_: done.wait(30))
    regex = constraint.of_regex("a", param="f")

    async def main():
        prepared = grammar_tokenizer(tiny_tokenizer, eos_token_ids=(1,), vocab_size=300)
        compiler = GrammarCompiler(
            tiny_tokenizer, eos_token_ids=(1,), vocab_size=300, prepared=prepared
        )
        hard = await asyncio.gather(
            *(compiler.compile(regex) for _ in range(2)), return_exceptions=True
        )
        with pytest.raises(Overloaded):
            await compiler.compile(regex)
        done.set()
        compiler.close()
        return hard

    for error in asyncio.run(main()):
        assert isinstance(error, InvalidRequest)
        assert error.message.startswith("f: takes over 0.1 s")


def test_the_mask_after_drafts_leaves_the_state_where_it_is(compile_one, tiny_tokenizer):
    state = compile_one(constraint.of_regex("ab[cd]e?", param="f")).start()
    a, b, c, e = (tiny_tokenizer.encode(letter).ids[0] for letter in "abce")
    before = state.allowed(())
    assert state.allowed((a, b, c)).complete
    assert not state.allowed((a, b)).complete
    assert state.allowed((a, e)) is None
    assert state.allowed((e,)) is None
    assert state.allowed(()) == before
    state.advance(a)
    assert state.allowed((b,)) is not None
    assert state.allowed((a,)) is None
