"""A grammar after reasoning on a random model's real engine: drafts, preemptions, company."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import torch

from runtime.engine.request import FinishReason
from runtime.models.registry import build_model
from runtime.server import constraint
from runtime.server.grammar_compiler import GrammarCompiler
from runtime.server.reasoning_grammar import AfterReasoning
from snapshot.layout import tensor_shapes
from tests.unit.server.test_structured_output import (
    CONFIG,
    EOS,
    PERSON,
    VOCAB,
    Running,
    tokens_of,
)

OPEN, CLOSE = 302, 303  # no text of the tokenizer's has these
ENDING = {CLOSE: 2.5}  # so that the reasoning ends after some tens of tokens


@pytest.fixture(scope="module")
def person(tiny_tokenizer) -> Any:
    compiler = GrammarCompiler(tiny_tokenizer, eos_token_ids=(EOS,), vocab_size=VOCAB)

    async def compile_it() -> Any:
        return await compiler.compile(constraint.of_schema(PERSON, param="x"))

    yield asyncio.run(compile_it())
    compiler.close()


@pytest.fixture(scope="module")
def start(tiny_tokenizer) -> Iterator[Any]:
    generator = torch.Generator().manual_seed(5)
    tensors = {
        name: torch.randn(shape, generator=generator) * (0.4 if len(shape) == 2 else 0.1)
        + (0.0 if len(shape) == 2 else 1.0)
        for name, shape in tensor_shapes(CONFIG).items()
    }
    started = []

    def start_one(**limits: Any) -> Running:
        started.append(Running(build_model(CONFIG, tensors), tiny_tokenizer, **limits))
        return started[-1]

    yield start_one
    for running in started:
        running.engine.stop()


def after(person: Any, *, opened: bool) -> AfterReasoning:
    return AfterReasoning(
        person, opened=opened, open_token=OPEN, close_token=CLOSE, vocab_size=VOCAB
    )


def answer_of(tokens: list[int], tokenizer: Any, *, opened: bool) -> str:
    """What comes after the reasoning, which there is where the prompt or the output opens it."""
    assert tokens[-1] == EOS
    if opened or tokens[0] == OPEN:
        place = tokens.index(CLOSE)
        assert EOS not in tokens[:place]
        tokens = tokens[place + 1 :]
    return tokenizer.decode(tokens)


@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize("bias", [{}, {OPEN: 4.0}], ids=["as it likes", "mostly reasons"])
def test_the_answer_is_valid_and_only_the_answer(start, person, tiny_tokenizer, opened, bias):
    running = start()
    lengths = []
    for seed in range(6):
        grammars = [after(person, opened=opened)] * 2 + [person, None]
        made = running.run(*grammars, seed=seed, logit_bias=ENDING | bias, max_tokens=900)
        for deltas in made[:2]:
            tokens = tokens_of(deltas)
            if deltas[-1].finish is FinishReason.LENGTH:  # it reasoned for too long
                continue
            answer = answer_of(tokens, tiny_tokenizer, opened=opened)
            jsonschema.validate(json.loads(answer), PERSON)
            lengths.append(len(tokens))
    assert len(lengths) >= 6


def test_drafts_and_preemptions_change_nothing(start, person):
    made = []
    for limits, drafts in (
        ({"speculation": False}, 0),
        ({}, 5),
        ({"kv_cache_bytes": 56 << 10}, 5),
    ):
        running = start(**limits)
        with pytest.MonkeyPatch.context() as eager:
            eager.setattr("runtime.engine.speculator.worthwhile", lambda drafts=drafts, **_: drafts)
            grammars = [after(person, opened=True), after(person, opened=False), person]
            made.append(
                running.run(
                    *grammars, prompt="the fox " * 12, logit_bias=ENDING | {OPEN: 5.0}, seed=2
                )
            )
        stats = running.engine.stats()
        assert bool(sum(stats.drafts_proposed)) == bool(drafts)
        assert bool(stats.preemptions) == ("kv_cache_bytes" in limits)
    plain, *others = ([tokens_of(deltas) for deltas in each] for each in made)
    assert all(other == plain for other in others)
