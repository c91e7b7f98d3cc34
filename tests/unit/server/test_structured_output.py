"""Structured output on a random model: whatever it would rather say, the grammar is followed.

The model is real (two layers, no sense), and so are the engine and the compiler. That each output
is valid by its schema is checked with the jsonschema library.
"""

import asyncio
import json
import queue
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from runtime.engine.draft_policy import DraftPolicy
from runtime.engine.grammar import Grammar
from runtime.engine.limits import EngineLimits
from runtime.engine.loop import Engine
from runtime.engine.request import Delta, FinishReason, GenerationRequest, SamplingParams
from runtime.engine.speculator import LookupProposer
from runtime.models.registry import build_model
from runtime.server import constraint
from runtime.server.constraint import Constraint
from runtime.server.grammar_compiler import GrammarCompiler
from runtime.server.tool_answer import ToolAnswers
from runtime.server.tool_format import Function, ToolFormat, calls_grammar
from snapshot.layout import tensor_shapes
from snapshot.model_config import ModelConfig

EOS = 1
VOCAB = 304  # more than the tokenizer has, as models' often are
CONFIG = ModelConfig(
    family="llama",
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rms_norm_eps=1e-5,
    rope_theta=1000.0,
    max_positions=1024,
    tie_embeddings=True,
)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["é", '"', "c"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model():
    generator = torch.Generator().manual_seed(5)
    tensors = {
        name: torch.randn(shape, generator=generator) * (0.4 if len(shape) == 2 else 0.1)
        + (0.0 if len(shape) == 2 else 1.0)
        for name, shape in tensor_shapes(CONFIG).items()
    }
    return build_model(CONFIG, tensors)


class Running:
    """An engine, and the constrained requests that it gets."""

    def __init__(self, model, tokenizer, *, draft=None, **limits: Any) -> None:
        self._batches: queue.Queue[list[tuple[str, Delta]]] = queue.Queue()
        self._deltas: dict[str, list[Delta]] = defaultdict(list)
        self._tokenizer = tokenizer
        self.engine = Engine(
            model,
            tokenizer,
            eos_token_ids=(EOS,),
            limits=EngineLimits(**({"kv_cache_bytes": 4 << 20, "block_size": 4} | limits)),
            emit=self._batches.put,
            draft=draft,
        )
        self.engine.start()

    def run(
        self, *grammars: Grammar | None, prompt: str = "hello", **params: Any
    ) -> list[list[Delta]]:
        """The deltas of one sequence for each grammar, all in one batch."""
        self._deltas.clear()
        names = [str(number) for number in range(len(grammars))]
        ids = tuple(self._tokenizer.encode(prompt).ids)
        sampling = SamplingParams(**({"max_tokens": 400, "temperature": 1.0, "seed": 3} | params))
        for name, grammar in zip(names, grammars, strict=True):
            self.engine.submit(
                GenerationRequest(
                    id=name, prompt=ids, params=sampling, choice=int(name), grammar=grammar
                )
            )
        while not all(self._deltas[name] and self._deltas[name][-1].finish for name in names):
            for name, delta in self._batches.get(timeout=60):
                self._deltas[name].append(delta)
        stats = self.engine.stats()
        assert stats.free_blocks == stats.blocks
        return [list(self._deltas[name]) for name in names]


@pytest.fixture(scope="module")
def start(model, tiny_tokenizer) -> Iterator[Any]:
    """Starts engines that end with the module."""
    started = []

    def start_one(**limits: Any) -> Running:
        started.append(Running(model, tiny_tokenizer, **limits))
        return started[-1]

    yield start_one
    for running in started:
        running.engine.stop()


@pytest.fixture(scope="module")
def running(start) -> Running:
    return start()


@pytest.fixture(scope="module")
def plodding(start) -> Running:
    return start(speculation=False)


@pytest.fixture(scope="module")
def compiled(tiny_tokenizer):
    """`compiled(constraint, ...)`: their grammars."""

    def compile_all(*constraints: Constraint) -> list[Grammar]:
        async def main() -> list[Grammar]:
            compiler = GrammarCompiler(tiny_tokenizer, eos_token_ids=(EOS,), vocab_size=VOCAB)
            try:
                return [await compiler.compile(each) for each in constraints]
            finally:
                compiler.close()

        return asyncio.run(main())

    return compile_all


def text_of(deltas: list[Delta]) -> str:
    assert deltas[-1].finish is FinishReason.STOP, deltas[-1]
    return "".join(delta.text for delta in deltas)


def tokens_of(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.tokens]


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    """Schemas whose longest value is short."""
    texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=4)
    leaves = st.one_of(
        st.just({"type": "boolean"}),
        st.just({"type": "null"}),
        st.builds(lambda most: {"type": "string", "maxLength": most}, st.integers(0, 5)),
        st.builds(
            lambda low, width: {"type": "integer", "minimum": low, "maximum": low + width},
            st.integers(-200, 200),
            st.integers(0, 300),
        ),
        st.builds(lambda texts: {"enum": texts}, st.lists(texts, min_size=1, max_size=4)),
    )

    def containers(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
        return st.one_of(
            st.builds(
                lambda items, least, more: {
                    "type": "array",
                    "items": items,
                    "minItems": least,
                    "maxItems": least + more,
                },
                inner,
                st.integers(0, 2),
                st.integers(0, 2),
            ),
            st.builds(
                lambda properties, required: {
                    "type": "object",
                    "properties": properties,
                    "required": [name for name in properties if name in required],
                    "additionalProperties": False,
                },
                st.dictionaries(texts, inner, max_size=3),
                st.sets(texts),
            ),
            st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3)),
        )

    return st.recursive(leaves, containers, max_leaves=6)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    wanted=st.lists(schemas(), min_size=1, max_size=3),
    temperature=st.sampled_from([0.0, 1.0, 1.7]),
    seed=st.integers(0, 100),
)
def test_json_is_always_valid_by_its_schema(running, compiled, wanted, temperature, seed):
    grammars = compiled(*(constraint.of_schema(schema, param="x") for schema in wanted))
    made = running.run(*grammars, None, temperature=temperature, seed=seed)
    for schema, deltas in zip(wanted, made, strict=False):
        jsonschema.validate(json.loads(text_of(deltas)), schema)


@settings(max_examples=12, deadline=None, derandomize=True, phases=[Phase.generate])
@given(wanted=st.lists(schemas(), min_size=1, max_size=3), seed=st.integers(0, 100))
def test_speculation_changes_nothing(running, plodding, compiled, wanted, seed):
    grammars = compiled(*(constraint.of_schema(schema, param="x") for schema in wanted))
    prompt = json.dumps(wanted) * 2  # text that drafts are found in, right and wrong ones
    plain = plodding.run(*grammars, None, prompt=prompt[:400], seed=seed)
    with pytest.MonkeyPatch.context() as eager:
        eager.setattr("runtime.engine.speculator.worthwhile", lambda **_: 5)
        speculated = running.run(*grammars, None, prompt=prompt[:400], seed=seed)
    # The free one is company only: float32 sums depend on the batch's shape in the last bit, which
    # four hundred tokens of a flat distribution may show.
    assert list(map(tokens_of, speculated[:-1])) == list(map(tokens_of, plain[:-1]))
    assert list(map(text_of, speculated[:-1])) == list(map(text_of, plain[:-1]))


REPEATING = {"type": "array", "items": {"const": "the quick brown"}, "minItems": 12, "maxItems": 12}


def test_drafts_are_accepted_where_the_grammar_allows_them(start, compiled, monkeypatch):
    [grammar] = compiled(constraint.of_schema(REPEATING, param="x"))
    [plain] = start(speculation=False).run(grammar, temperature=0.0)
    monkeypatch.setattr("runtime.engine.speculator.worthwhile", lambda **_: 5)
    running = start()
    [speculated] = running.run(grammar, temperature=0.0)
    assert json.loads(text_of(speculated)) == ["the quick brown"] * 12
    assert tokens_of(speculated) == tokens_of(plain)
    assert running.engine.stats().drafts_accepted[0] > 10
    assert len(speculated) < 0.7 * len(plain)


@pytest.mark.parametrize("temperature", [0.0, 1.2])
@pytest.mark.parametrize("limits", [{}, {"kv_cache_bytes": 64 * 1024}], ids=["roomy", "preempted"])
def test_a_draft_model_follows_the_grammar_too(
    start, compiled, model, monkeypatch, temperature, limits
):
    """It is the target here, so all that it proposes is right, and nothing is that it may not."""
    grammars = compiled(*[constraint.of_schema(PERSON, param="x")] * 4)
    plain = start(speculation=False).run(*grammars, temperature=temperature)
    monkeypatch.setattr(DraftPolicy, "_count", lambda _, ask, *a, **k: min(5, ask.room))
    monkeypatch.setattr(LookupProposer, "propose", lambda _, candidates, **k: candidates)
    running = start(draft=model, **limits)
    drafted = running.run(*grammars, temperature=temperature)
    assert list(map(tokens_of, drafted)) == list(map(tokens_of, plain))
    assert sum(map(len, drafted)) < 0.5 * sum(map(len, plain))
    stats = running.engine.stats()
    assert sum(stats.drafts_accepted) > 0.97 * sum(stats.drafts_proposed)
    assert bool(stats.preemptions) == bool(limits)


def test_preemption_changes_nothing(start, compiled):
    grammars = compiled(*[constraint.of_schema(PERSON, param="x")] * 4)
    roomy = start().run(*grammars)
    tight = start(kv_cache_bytes=32 * 1024)
    assert list(map(tokens_of, tight.run(*grammars))) == list(map(tokens_of, roomy))
    assert tight.engine.stats().preemptions > 0
    for deltas in roomy:
        jsonschema.validate(json.loads(text_of(deltas)), PERSON)


def test_a_free_sequence_is_not_touched_by_its_company(running, compiled):
    [grammar] = compiled(constraint.of_schema(PERSON, param="x"))
    [alone] = running.run(None, max_tokens=40, temperature=0.0)
    together = running.run(None, grammar, max_tokens=40, temperature=0.0)
    assert tokens_of(together[0]) == tokens_of(alone)


def test_choices_of_one_request_share_the_grammar_and_nothing_else(running, compiled):
    [grammar] = compiled(constraint.of_schema(PERSON, param="x"))
    made = [text_of(deltas) for deltas in running.run(*[grammar] * 5)]
    assert len(set(made)) > 1
    for text in made:
        jsonschema.validate(json.loads(text), PERSON)


CHOICES = ['say "hi"', "new\nline", "日本", "back\\slash", "/slash/", "🎉 party", "\x00"]


def test_choice(running, compiled):
    [grammar] = compiled(constraint.of_choices(CHOICES, param="x"))
    made = {text_of(deltas) for deltas in running.run(*[grammar] * 16, temperature=2.0)}
    assert made <= set(CHOICES)
    assert len(made) > 1
    for choice in CHOICES:  # each alone, so that each is shown to be possible
        assert text_of(running.run(*compiled(constraint.of_choices([choice], param="x")))[0]) == (
            choice
        )


def test_regex(running, compiled):
    regex = r"(\d{3}-\d{4}|[a-f]{2,5}) (é|ü)!"
    [grammar] = compiled(constraint.of_regex(regex, param="x"))
    for deltas in running.run(*[grammar] * 8):
        assert re.fullmatch(regex, text_of(deltas))


def test_lark(running, compiled):
    lark = 'start: "(" start ")" | NUMBER\nNUMBER: /[0-9]{1,3}/'
    [grammar] = compiled(constraint.of_lark(lark, param="x"))
    for deltas in running.run(*[grammar] * 8):
        text = text_of(deltas)
        number = text.strip("()")
        depth = (len(text) - len(number)) // 2
        assert number.isdecimal()
        assert text == "(" * depth + number + ")" * depth


@pytest.mark.parametrize("form", ToolFormat)
@pytest.mark.parametrize("several", [False, True])
def test_enforced_tool_calls_are_calls(running, compiled, form, several):
    functions = [
        Function("person", PERSON),
        Function("nothing", None),
        Function(
            ".to-do", {"properties": {"n": {"enum": ["a", "é"]}}, "additionalProperties": False}
        ),
    ]
    wanted = {each.name: each.parameters or {"maxProperties": 0} for each in functions}
    choices = [functions, *([each] for each in functions)]  # required, and each by name
    grammars = compiled(
        *(calls_grammar(form, choice, several=several, param="tools") for choice in choices)
    )
    tools = ToolAnswers(form=form, functions=list(wanted), several=True)
    made = running.run(*grammars, *grammars, max_tokens=900, temperature=1.5)
    finished = 0
    for choice, deltas in zip([*choices, *choices], made, strict=True):
        if deltas[-1].finish is FinishReason.LENGTH:
            assert several  # a random model may call on and on
            continue
        finished += 1
        message = tools.choice().message(text_of(deltas))
        assert message["content"] is None
        assert several or len(message["tool_calls"]) == 1
        for call in message["tool_calls"]:
            assert call["function"]["name"] in [each.name for each in choice]
            arguments = json.loads(call["function"]["arguments"])
            jsonschema.validate(arguments, wanted[call["function"]["name"]])
    assert finished >= len(choices)


def test_the_end_comes_only_where_the_grammar_is_complete(running, compiled):
    [grammar] = compiled(constraint.of_regex("a{3,40}", param="x"))
    eager_to_end = {EOS: 100.0, 5: 100.0}
    [deltas] = running.run(
        grammar, logit_bias=eager_to_end, stop_token_ids=frozenset({5}), temperature=0.0
    )
    assert text_of(deltas) == "aaa"


def test_a_stop_token_that_is_all_the_grammar_allows_is_an_error(running, compiled, tiny_tokenizer):
    [letter] = tiny_tokenizer.encode("a").ids
    [grammar] = compiled(constraint.of_regex("aaa", param="x"))
    [deltas] = running.run(grammar, stop_token_ids=frozenset({letter}))
    assert deltas[-1].finish is FinishReason.ERROR
    assert "grammar" in deltas[-1].error
    [after] = running.run(*compiled(constraint.of_regex("b", param="x")))  # the engine goes on
    assert text_of(after) == "b"


def test_penalties_bias_and_truncation_choose_among_what_is_allowed(running, compiled):
    [grammar] = compiled(constraint.of_schema(PERSON, param="x"))
    params = {"top_k": 2, "top_p": 0.5, "presence_penalty": 2.0, "repetition_penalty": 1.5}
    for deltas in running.run(*[grammar] * 4, **params, logit_bias={7: 100.0}, logprobs=2):
        jsonschema.validate(json.loads(text_of(deltas)), PERSON)
