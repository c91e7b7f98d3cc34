"""Models that reason first: reasoning apart from content, with tools, a grammar after it."""

import asyncio
import json
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models

from runtime.engine.grammar import Allowed
from runtime.engine.request import FinishReason
from runtime.server import constraint
from runtime.server.grammar_compiler import GrammarCompiler
from runtime.server.reasoning import Reasoning, ReasoningSplitter, reasoning_of
from runtime.server.reasoning_grammar import AfterReasoning, after_reasoning
from snapshot.manifest import ChatFormat
from tests.unit.server.conftest import make_tokenizer
from tests.unit.server.test_tools import ADD, CALL, WEATHER, calls_of, says, shown_prompt

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hello"}]
# As Qwen 3's: enable_thinking false closes the reasoning at once
QWEN = (
    "{% if tools %}<tool_call>{% endif %}{% for m in messages %}{{ m.role }}:"
    "{{ m.content.split('</think>')[-1] }}\n{% endfor %}assistant:\n"
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "<think>\n\n</think>\n\n{% endif %}"
)
# As DeepSeek-R1's: opens it
DEEPSEEK = (
    "{% for m in messages %}{{ m.role }}:{{ m.content.split('</think>')[-1] }}\n{% endfor %}"
    "assistant:<think>\n"
)
THOUGHT = "<think>\nTwo and two, hm < 5?\n</think>\n\nIt is 4. <think> is a word."
SETTINGS = {"max_context": 4096}


def reasoning_tokenizer() -> Tokenizer:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([AddedToken("<think>"), AddedToken("</think>")])
    return tokenizer


@pytest.fixture(scope="module")
def thinking():
    """Settings of a model that reasons as Qwen 3 does."""
    return {"chat": ChatFormat(template=QWEN), "tokenizer": reasoning_tokenizer(), **SETTINGS}


def split(text: str, *, opened: bool = False, size: int = 1000) -> tuple[str, str]:
    splitter = ReasoningSplitter(opened=opened)
    parts = [splitter.feed(text[at : at + size]) for at in range(0, len(text), size)]
    parts.append(splitter.finish())
    return "".join(part.reasoning for part in parts), "".join(part.content for part in parts)


@pytest.mark.parametrize(
    ("text", "opened", "reasoning", "content"),
    [
        (THOUGHT, False, "Two and two, hm < 5?", "It is 4. <think> is a word."),
        ("  \n<think>a</think>b", False, "a", "b"),
        ("no thought", False, "", "no thought"),
        ("  spaces stay", False, "", "  spaces stay"),
        ("<thinking> is another word", False, "", "<thinking> is another word"),
        ("<thi", False, "", "<thi"),
        ("", False, "", ""),
        ("<think>cut o", False, "cut o", ""),
        ("<think>cut </thi", False, "cut </thi", ""),
        ("\nsome\n\nlines\n</think>\n\nb", True, "some\n\nlines", "b"),
        ("<think>said again</think>b", True, "said again", "b"),
        ("</think>\nat once", True, "", "at once"),
        ("never ends", True, "never ends", ""),
        ("<", True, "<", ""),
        ("a</think> </think>b", True, "a", "</think>b"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_the_two_parts(text, opened, reasoning, content, size):
    assert split(text, opened=opened, size=size) == (reasoning, content)


@settings(derandomize=True)
@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "</", "th", "\n", " ", "é", "x"])),
    st.booleans(),
    st.integers(1, 9),
)
def test_the_cuts_do_not_matter(pieces, opened, size):
    text = "".join(pieces)
    whole = split(text, opened=opened)
    assert split(text, opened=opened, size=size) == whole
    assert len("".join(whole)) <= len(text)


def test_which_models_reason():
    tokenizer = reasoning_tokenizer()
    qwen = reasoning_of(QWEN, tokenizer)
    assert qwen == Reasoning(
        open_token=tokenizer.token_to_id("<think>"),
        close_token=tokenizer.token_to_id("</think>"),
        switchable=True,
    )
    assert reasoning_of(DEEPSEEK, make_tokenizer()) == Reasoning(
        open_token=None, close_token=None, switchable=False
    )
    assert reasoning_of("{{ messages }}", tokenizer) is None
    assert reasoning_of(None, tokenizer) is None
    hidden = Tokenizer(models.BPE())
    hidden.add_special_tokens(
        [AddedToken("<think>", special=True), AddedToken("</think>", special=True)]
    )
    assert reasoning_of(QWEN, hidden) is None


def test_whole(ask, thinking):
    answer = ask(CHAT, {"model": "tiny", "messages": HI}, script=says(THOUGHT), **thinking)[
        0
    ].json()
    (choice,) = answer["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "It is 4. <think> is a word.",
        "refusal": None,
        "reasoning_content": "Two and two, hm < 5?",
    }
    assert choice["finish_reason"] == "stop"


def test_a_model_that_does_not_reason_has_no_such_field(ask):
    answer = ask(CHAT, {"model": "tiny", "messages": HI}, script=says(THOUGHT))[0].json()
    assert answer["choices"][0]["message"] == {
        "role": "assistant",
        "content": THOUGHT,
        "refusal": None,
    }


def test_the_prompt_that_opens_the_reasoning(ask):
    answer = ask(
        CHAT,
        {"model": "tiny", "messages": HI},
        script=says("hm\n</think>\n\n4"),
        chat=ChatFormat(template=DEEPSEEK),
        **SETTINGS,
    )[0].json()
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "4")


def test_reasoning_that_is_cut_off(ask, thinking):
    script = says("<think>\nhm, let me", finish=FinishReason.LENGTH)
    choice = ask(CHAT, {"model": "tiny", "messages": HI}, script=script, **thinking)[0].json()[
        "choices"
    ][0]
    assert choice["message"]["reasoning_content"] == "hm, let me"
    assert choice["message"]["content"] == ""
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize(
    "fields",
    [{"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}],
)
def test_thinking_is_switched_off(ask, thinking, fields):
    body = {"model": "tiny", "messages": HI, **fields}
    response, r = ask(CHAT, body, script=says("4 <think>"), **thinking)
    message = response.json()["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("4 <think>", None)
    assert shown_prompt(r, thinking["tokenizer"]).endswith("<think>\n\n</think>\n\n")


def test_what_the_request_says_goes_before_reasoning_effort(ask, thinking):
    fields = {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}
    _, r = ask(CHAT, {"model": "tiny", "messages": HI, **fields}, **thinking)
    assert not shown_prompt(r, thinking["tokenizer"]).endswith("</think>\n\n")


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"reasoning_effort": "none"}, "reasoning_effort", "always reasons"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format", "reasons first"),
        ({"chat_template_kwargs": {"a": float("nan")}}, "chat_template_kwargs", "finite"),
        ({"chat_template_kwargs": {"a": [1]}}, "chat_template_kwargs", "a number"),
        ({"chat_template_kwargs": {"a": "x" * 5000}}, "chat_template_kwargs", "at most 4096"),
        ({"chat_template_kwargs": {"messages": "x"}}, "chat_template_kwargs", "set by the server"),
    ],
)
def test_refused(ask, fields, param, words):
    body = json.dumps({"model": "tiny", "messages": HI, **fields}).encode()
    error = ask(CHAT, body, chat=ChatFormat(template=DEEPSEEK), **SETTINGS)[0].json()["error"]
    assert error["param"] == param
    assert words in error["message"]


@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize("text", [THOUGHT, "<think>I call.</think>\n\n" + CALL + " done"])
def test_a_stream_adds_up_to_the_whole(served, thinking, text, size):
    async def main() -> None:
        async with served(script=says(text, size=size), **thinking) as r:
            client = openai.AsyncOpenAI(base_url=f"{r.base_url}/v1", api_key="none", max_retries=0)
            params: dict[str, Any] = {"model": "tiny", "messages": HI, "tools": [WEATHER, ADD]}
            whole = await client.chat.completions.create(**params)
            async with client.chat.completions.stream(**params) as stream:
                reasoning = ""
                async for event in stream:
                    if event.type == "chunk":
                        delta = event.chunk.choices[0].delta
                        reasoning += getattr(delta, "reasoning_content", None) or ""
                streamed = await stream.get_final_completion()
            mine, theirs = streamed.choices[0], whole.choices[0]
            assert (mine.message.content or "") == (theirs.message.content or "")
            assert calls_of(mine) == calls_of(theirs)
            assert mine.finish_reason == theirs.finish_reason
            assert reasoning == theirs.message.reasoning_content
            assert "<think>" not in reasoning
            if CALL in text:
                assert calls_of(theirs) == [("weather", '{"city": "Paris"}')]
            await client.close()

    asyncio.run(main())


def test_logprobs_cover_reasoning_and_content(ask, thinking):
    body = {"model": "tiny", "messages": HI, "logprobs": True}
    whole = ask(CHAT, body, script=says(THOUGHT), **thinking)[0].json()["choices"][0]
    streamed = ask(CHAT, {**body, "stream": True}, script=says(THOUGHT), **thinking)[0].text
    chunks = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    tokens = [
        token
        for chunk in chunks
        if chunk["choices"][0]["logprobs"]
        for token in chunk["choices"][0]["logprobs"]["content"]
    ]
    assert len(tokens) == len(whole["logprobs"]["content"]) == -(-len(THOUGHT) // 5)


# The grammar after the reasoning ----------------------------------------------------------------


@pytest.fixture(scope="module")
def yes_or_no():
    """The grammar, the tokenizer, and its marks' ids."""
    tokenizer = reasoning_tokenizer()
    compiler = GrammarCompiler(tokenizer, eos_token_ids=(1,), vocab_size=tokenizer.get_vocab_size())
    wanted = constraint.of_choices(["yes", "no"], param="guided_choice")

    async def compile_it():
        return await compiler.compile(wanted)

    grammar = asyncio.run(compile_it())
    compiler.close()
    marks = tokenizer.token_to_id("<think>"), tokenizer.token_to_id("</think>")
    return grammar, tokenizer, marks


def make(yes_or_no, *, opened: bool) -> AfterReasoning:
    grammar, tokenizer, (open_token, close_token) = yes_or_no
    return AfterReasoning(
        grammar,
        opened=opened,
        open_token=open_token,
        close_token=close_token,
        vocab_size=tokenizer.get_vocab_size(),
    )


def tokens_of(allowed: Allowed | None, vocab: int) -> set[int]:
    assert allowed is not None
    return {token for token in range(vocab) if allowed.tokens[token // 8] >> token % 8 & 1}


@pytest.mark.parametrize("opened", [True, False])
def test_the_grammar_begins_after_the_reasoning(yes_or_no, opened):
    grammar, tokenizer, (open_token, close_token) = yes_or_no
    vocab = tokenizer.get_vocab_size()
    state = make(yes_or_no, opened=opened).start()
    if not opened:
        first = tokens_of(state.allowed(()), vocab)
        assert first == tokens_of(grammar.start().allowed(()), vocab) | {open_token}
        state.advance(open_token)
    for token in tokenizer.encode("why, yes").ids:
        allowed = state.allowed(())
        assert tokens_of(allowed, vocab) == set(range(vocab))
        assert not allowed.complete  # it must not end before it has answered
        state.advance(token)
    state.advance(close_token)
    assert tokens_of(state.allowed(()), vocab) == tokens_of(grammar.start().allowed(()), vocab)
    for token in tokenizer.encode("yes").ids:
        assert token in tokens_of(state.allowed(()), vocab)
        state.advance(token)
    assert state.allowed(()).complete


def test_an_answer_without_reasoning_follows_the_grammar_at_once(yes_or_no):
    _, tokenizer, (open_token, _) = yes_or_no
    vocab = tokenizer.get_vocab_size()
    state = make(yes_or_no, opened=False).start()
    (first, *_) = tokenizer.encode("no").ids
    state.advance(first)
    assert open_token not in tokens_of(state.allowed(()), vocab)


@settings(derandomize=True)
@given(st.data(), st.booleans())
def test_looking_ahead_is_the_same_as_going_there(yes_or_no, data, opened):
    """What speculation relies on: drafts that mark the reasoning's begin or end included."""
    _, tokenizer, marks = yes_or_no
    words = [*marks, *tokenizer.encode("yesno why").ids]
    path = tuple(data.draw(st.lists(st.sampled_from(words), max_size=9)))
    cut = data.draw(st.integers(0, len(path)))
    grammar = make(yes_or_no, opened=opened)
    ahead, there = grammar.start(), grammar.start()
    for number, token in enumerate(path):
        allowed = there.allowed(())
        if allowed is None or token not in tokens_of(allowed, tokenizer.get_vocab_size()):
            path = path[:number]
            break
        there.advance(token)
        if number < cut:
            ahead.advance(token)
    looked = ahead.allowed(path[cut:])
    assert looked == there.allowed(())
    assert ahead.allowed(path[cut:]) == looked  # and it has not moved


def test_marks_that_are_not_tokens(yes_or_no):
    grammar, _, _ = yes_or_no
    words = Reasoning(open_token=None, close_token=None, switchable=False)
    assert after_reasoning(grammar, words, opened=False, vocab_size=304) is grammar
    assert after_reasoning(grammar, words, opened=True, vocab_size=304) is None


def test_an_enforced_call_comes_after_the_reasoning(ask, thinking):
    body = {"model": "tiny", "messages": HI, "tools": [ADD], "tool_choice": "required"}
    call = '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'
    response, r = ask(CHAT, body, script=says("<think>\nadd!\n</think>\n\n" + call), **thinking)
    message = response.json()["choices"][0]["message"]
    assert message["reasoning_content"] == "add!"
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["add"]
    assert isinstance(r.engine.submitted[0].grammar, AfterReasoning)


def test_completions_are_plain_text(ask, thinking):
    """A completion has no reasoning: its text is all there, and its grammar begins at once."""
    body = {"model": "tiny", "prompt": "a", "guided_choice": ["x"]}
    response, r = ask("/v1/completions", body, script=says(THOUGHT), **thinking)
    assert response.json()["choices"][0]["text"] == THOUGHT
    assert not isinstance(r.engine.submitted[0].grammar, AfterReasoning)
