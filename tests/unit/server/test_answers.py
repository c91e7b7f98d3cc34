"""What the client reads: streamed and whole answers say the same, in OpenAI's shapes."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glowplug.stages import from_server_timing
from runtime.engine.request import Delta, FinishReason, TokenLogprob

CHAT = "/v1/chat/completions"
PLAIN = "/v1/completions"
HI = [{"role": "user", "content": "hello"}]
PROMPT = {CHAT: {"messages": HI}, PLAIN: {"prompt": "hello"}}


def events(response) -> list[Any]:
    """The data of a stream's events; the last one is [DONE]."""
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    assert blocks[-1] == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-1]]


def script_of(*sequences):
    """Plays `sequences[i]` for the i-th sequence of the request."""
    return lambda request: sequences[int(request.id.rsplit("-", 1)[1])]


def say(*texts, finish=FinishReason.STOP):
    deltas = [Delta(text=text, tokens=(7,)) for text in texts]
    return [*deltas, Delta(tokens=(1,), finish=finish)]


class TestChat:
    def test_whole(self, ask):
        body = {"model": "tiny", **PROMPT[CHAT], "n": 2}
        texts = script_of(say("Hel", "", "lo"), say("Bye", finish=FinishReason.LENGTH))
        response, _ = ask(CHAT, body, script=texts)
        answer = response.json()
        assert answer["id"].startswith("chatcmpl-")
        assert answer["created"] > 1_700_000_000
        del answer["id"], answer["created"]
        prompt_tokens = answer["usage"]["prompt_tokens"]
        assert answer == {
            "object": "chat.completion",
            "model": "tiny",
            "system_fingerprint": "0123456789",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "Hello", "refusal": None},
                    "logprobs": None,
                    "finish_reason": "stop",
                },
                {
                    "index": 1,
                    "message": {"role": "assistant", "content": "Bye", "refusal": None},
                    "logprobs": None,
                    "finish_reason": "length",
                },
            ],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": 6,
                "total_tokens": prompt_tokens + 6,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        }

    def test_streamed(self, ask):
        body = {"model": "tiny", **PROMPT[CHAT], "stream": True}
        chunks = events(ask(CHAT, body, script=script_of(say("Hel", "", 'lo "\n😀')))[0])
        assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
        assert all(
            chunk.keys() == {"id", "object", "created", "model", "system_fingerprint", "choices"}
            for chunk in chunks
        )
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert [chunk["choices"] for chunk in chunks] == [
            [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]
            for delta, reason in [
                ({"role": "assistant", "content": ""}, None),
                ({"content": "Hel"}, None),
                ({"content": 'lo "\n😀'}, None),
                ({}, "stop"),
            ]
        ]

    def test_cached_tokens_of_a_prompt_count_once(self, ask):
        first = Delta(text="a", tokens=(7,), cached_tokens=4)
        scripts = [[first, *say("b")], [replace(first, cached_tokens=8), *say("c")]]
        body = {"model": "tiny", **PROMPT[CHAT], "n": 2}
        usage = ask(CHAT, body, script=script_of(*scripts))[0].json()["usage"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": 4}

    def test_usage_chunk_comes_last_and_only_on_request(self, ask):
        body = {"model": "tiny", **PROMPT[CHAT], "stream": True}
        body["stream_options"] = {"include_usage": True}
        *chunks, last = events(ask(CHAT, body, script=script_of(say("a", "b")))[0])
        assert all(chunk["usage"] is None for chunk in chunks)
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 3
        assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + 3


class TestPlain:
    def test_whole_with_echo(self, ask, tiny_tokenizer):
        ids = tiny_tokenizer.encode("the fox").ids
        body = {"model": "tiny", "prompt": [ids, ids[:1]], "n": 2, "echo": True}
        sequences = script_of(say("A"), say("B"), say("C"), say("D"))
        answer = ask(PLAIN, body, script=sequences)[0].json()
        first = tiny_tokenizer.decode(ids[:1])
        assert [choice["text"] for choice in answer["choices"]] == [
            "the foxA",
            "the foxB",
            first + "C",
            first + "D",
        ]
        assert answer["object"] == "text_completion"
        assert answer["id"].startswith("cmpl-")
        assert answer["usage"]["prompt_tokens"] == len(ids) + 1

    def test_streamed_with_echo(self, ask):
        body = {"model": "tiny", "prompt": "the fox", "echo": True, "stream": True}
        chunks = events(ask(PLAIN, body, script=script_of(say("A")))[0])
        assert [chunk["choices"] for chunk in chunks] == [
            [{"index": 0, "text": text, "logprobs": None, "finish_reason": reason}]
            for text, reason in [("the fox", None), ("A", None), ("", "stop")]
        ]


class TestLogprobs:
    """The token `Ġthe` and halves of a two-byte character."""

    @pytest.fixture
    def tokens(self, tiny_tokenizer):
        ids = tiny_tokenizer.encode(" the").ids + tiny_tokenizer.encode("é").ids
        assert len(ids) == 3
        return ids

    @pytest.fixture
    def script(self, tokens):
        the, first, second = tokens
        return script_of(
            [
                Delta(
                    text=" the",
                    tokens=(the,),
                    logprobs=(TokenLogprob(the, -0.5, ((the, -0.5), (first, -math.inf))),),
                ),
                Delta(tokens=(first,), logprobs=(TokenLogprob(first, -1.0, ((the, -0.25),)),)),
                Delta(
                    text="é",
                    tokens=(second,),
                    logprobs=(TokenLogprob(second, math.nan, ((second, -math.inf),)),),
                    finish=FinishReason.LENGTH,
                ),
            ]
        )

    @pytest.mark.parametrize("stream", [False, True])
    def test_chat(self, ask, script, stream):
        body = {"model": "tiny", **PROMPT[CHAT], "stream": stream}
        response, _ = ask(CHAT, body | {"logprobs": True, "top_logprobs": 2}, script=script)
        if stream:
            chunks = [chunk["choices"][0] for chunk in events(response)]
            assert [len((chunk["logprobs"] or {}).get("content", ())) for chunk in chunks] == [
                0,
                1,
                2,
                0,
            ]
            found = [token for c in chunks if c["logprobs"] for token in c["logprobs"]["content"]]
        else:
            found = response.json()["choices"][0]["logprobs"]["content"]
            assert response.json()["choices"][0]["logprobs"]["refusal"] is None
        the = {"token": " the", "bytes": [32, 116, 104, 101]}
        half = {"token": "\ufffd", "bytes": [0xC3]}
        other_half = {"token": "\ufffd", "bytes": [0xA9]}
        assert found == [
            the
            | {"logprob": -0.5}
            | {"top_logprobs": [the | {"logprob": -0.5}, half | {"logprob": -9999.0}]},
            half | {"logprob": -1.0} | {"top_logprobs": [the | {"logprob": -0.25}]},
            other_half
            | {"logprob": -9999.0}
            | {"top_logprobs": [other_half | {"logprob": -9999.0}]},
        ]

    @pytest.mark.parametrize("stream", [False, True])
    def test_plain(self, ask, script, stream):
        body = {"model": "tiny", **PROMPT[PLAIN], "stream": stream, "logprobs": 2}
        response, _ = ask(PLAIN, body, script=script)
        if stream:
            chunks = [chunk["choices"][0]["logprobs"] for chunk in events(response)]
            parts = [chunk for chunk in chunks if chunk is not None]
            found = {key: [x for part in parts for x in part[key]] for key in parts[0]}
        else:
            found = response.json()["choices"][0]["logprobs"]
        assert found == {
            "tokens": [" the", "\ufffd", "\ufffd"],
            "token_logprobs": [-0.5, -1.0, -9999.0],
            "top_logprobs": [
                {" the": -0.5, "\ufffd": -9999.0},
                {" the": -0.25, "\ufffd": -1.0},
                {"\ufffd": -9999.0},
            ],
            "text_offset": [0, 4, 5],
        }

    def test_plain_without_alternatives(self, ask, script):
        body = {"model": "tiny", **PROMPT[PLAIN], "logprobs": 0}
        logprobs = ask(PLAIN, body, script=script)[0].json()["choices"][0]["logprobs"]
        assert logprobs["top_logprobs"] is None
        assert len(logprobs["token_logprobs"]) == 3

    def test_those_of_a_stop_string_come_with_the_end(self, ask, tokens):
        the = tokens[0]
        script = script_of(
            [
                Delta(text="a", tokens=(the,), logprobs=(TokenLogprob(the, -1.0, ()),)),
                Delta(tokens=(the,), logprobs=(TokenLogprob(the, -2.0, ()),)),
                Delta(finish=FinishReason.STOP),
            ]
        )
        body = {"model": "tiny", **PROMPT[CHAT], "stream": True, "logprobs": True}
        chunks = [chunk["choices"][0] for chunk in events(ask(CHAT, body, script=script)[0])]
        assert [
            [token["logprob"] for token in (chunk["logprobs"] or {}).get("content", ())]
            for chunk in chunks
        ] == [[], [-1.0], [-2.0], []]


texts = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from('\n\r\0\u2028"\\'), max_size=6
)


@st.composite
def sequences(draw):
    """A sequence's deltas: text now and then, log probabilities for each token."""
    deltas = []
    for _ in range(draw(st.integers(0, 6))):
        tokens = tuple(draw(st.lists(st.integers(0, 299), min_size=1, max_size=3)))
        logprobs = tuple(TokenLogprob(token, -float(token), ()) for token in tokens)
        deltas.append(Delta(text=draw(texts), tokens=tokens, logprobs=logprobs))
    finish = draw(st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]))
    return [*deltas, Delta(text=draw(texts), finish=finish)]


@settings(
    derandomize=True,
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    path=st.sampled_from([CHAT, PLAIN]),
    scripted=st.lists(sequences(), min_size=1, max_size=3),
    with_logprobs=st.booleans(),
)
def test_a_stream_adds_up_to_the_whole_answer(ask, path, scripted, with_logprobs):
    wanted = {CHAT: {"logprobs": with_logprobs}, PLAIN: {"logprobs": 1 if with_logprobs else None}}
    body = {"model": "tiny", **PROMPT[path], **wanted[path], "n": len(scripted)}
    if not with_logprobs:
        scripted = [[replace(delta, logprobs=()) for delta in deltas] for deltas in scripted]
    whole = ask(path, body, script=script_of(*scripted))[0].json()
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = events(ask(path, body | stream, script=script_of(*scripted))[0])
    assert last["usage"] == whole["usage"]
    for choice in whole["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        if path == CHAT:
            assert mine.pop(0)["delta"] == {"role": "assistant", "content": ""}
            text = choice["message"]["content"]
            shown = [chunk["delta"].get("content", "") for chunk in mine]
        else:
            text = choice["text"]
            shown = [chunk["text"] for chunk in mine]
        assert "".join(shown) == text
        assert [chunk["finish_reason"] for chunk in mine] == [None] * (len(mine) - 1) + [
            choice["finish_reason"]
        ]
        assert shown[-1] == ""
        for piece, chunk in zip(shown[:-1], mine[:-1], strict=True):
            assert piece or chunk["logprobs"]  # nothing is sent while text is held
        if with_logprobs:
            key = "content" if path == CHAT else "text_offset"
            found = [entry for c in mine if c["logprobs"] for entry in c["logprobs"][key]]
            assert found == choice["logprobs"][key]
            if path == PLAIN:
                assert found == sorted(found)
                assert all(offset <= len(text) for offset in found)


@pytest.mark.parametrize("path", [CHAT, PLAIN])
@pytest.mark.parametrize("stream", [False, True])
def test_server_timing_has_every_stage(ask, path, stream):
    response, _ = ask(path, {"model": "tiny", **PROMPT[path], "stream": stream})
    stages = from_server_timing(response.headers["server-timing"])
    assert list(stages) == ["tokenize", "queue", "prefill"]
    assert (stages["queue"], stages["prefill"]) == (1.5, 20.25)


def test_a_stream_is_not_to_be_buffered(ask):
    response, _ = ask(CHAT, {"model": "tiny", **PROMPT[CHAT], "stream": True})
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"


FAILURE = Delta(finish=FinishReason.ERROR, error="the sequence could not be run")


class TestFailures:
    @pytest.mark.parametrize("path", [CHAT, PLAIN])
    @pytest.mark.parametrize("stream", [False, True])
    def test_before_the_first_token_it_is_an_http_error(self, ask, path, stream):
        body = {"model": "tiny", **PROMPT[path], "stream": stream}
        response, _ = ask(path, body, script=script_of([FAILURE]))
        assert response.status_code == 500
        assert response.json()["error"]["message"] == FAILURE.error

    def test_a_whole_answer_fails_as_a_whole(self, ask):
        body = {"model": "tiny", **PROMPT[CHAT], "n": 2}
        running = [Delta(text="x", tokens=(1,))] * 5
        script = script_of([Delta(text="x", tokens=(1,)), FAILURE], running)
        response, r = ask(CHAT, body, script=script)
        assert response.status_code == 500
        assert r.engine.aborted == [r.engine.submitted[1].id]

    def test_after_the_first_token_it_is_in_the_stream(self, ask):
        body = {"model": "tiny", **PROMPT[CHAT], "stream": True}
        response, _ = ask(CHAT, body, script=script_of([Delta(text="x", tokens=(1,)), FAILURE]))
        assert response.status_code == 200
        *_, last, end = response.text.split("\n\n")
        assert end == ""
        assert json.loads(last.removeprefix("data: ")) == {
            "error": {
                "message": FAILURE.error,
                "type": "server_error",
                "param": None,
                "code": None,
            }
        }

    def test_an_abort_by_the_engine_says_try_again(self, ask):
        body = {"model": "tiny", **PROMPT[CHAT]}
        response, _ = ask(CHAT, body, script=script_of([Delta(finish=FinishReason.ABORT)]))
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
