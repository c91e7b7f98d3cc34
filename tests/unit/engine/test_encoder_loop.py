"""The encoder's engine: a vector for each text, whatever runs beside it."""

import queue
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.engine.encoder_batch import build_encoder_batch
from runtime.engine.encoder_loop import EncoderEngine
from runtime.engine.request import Delta, FinishReason, GenerationRequest, SamplingParams
from runtime.models.registry import build_encoder
from snapshot.encoder_config import EncoderConfig
from snapshot.layout import tensor_shapes

CONFIG = EncoderConfig(
    family="bert",
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    position_rows=48,
    position_offset=2,
    max_positions=46,
    token_types=1,
    norm_eps=1e-5,
    activation="gelu",
)
RNG = random.Random(8)
TEXTS = [RNG.choices(range(64), k=RNG.randint(1, 46)) for _ in range(20)]


@pytest.fixture(scope="module")
def encoder():
    generator = torch.Generator().manual_seed(3)
    tensors = {
        name: torch.randn(shape, generator=generator) * (0.4 if len(shape) == 2 else 0.1)
        + (1.0 if name.endswith("norm") else 0.0)
        for name, shape in tensor_shapes(CONFIG).items()
    }
    return build_encoder(CONFIG, tensors)


class Running:
    """An encoder's engine and what it emits."""

    def __init__(self, encoder, **settings):
        self.steps: queue.Queue[list[tuple[str, Delta]]] = queue.Queue()
        self.crashed = False
        self.engine = EncoderEngine(
            encoder,
            emit=self.steps.put,
            on_crash=self.crash,
            **({"max_batch_tokens": 64} | settings),
        )

    def crash(self):
        self.crashed = True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.engine.stop()

    def submit(self, name, text, pooling="mean"):
        self.engine.submit(
            GenerationRequest(
                id=name, prompt=tuple(text), params=SamplingParams(max_tokens=0), pooling=pooling
            )
        )

    def take(self, count) -> dict[str, Delta]:
        taken = {}
        while len(taken) < count:
            taken |= dict(self.steps.get(timeout=30))
        return taken


def alone(encoder, text, pooling="mean"):
    with torch.inference_mode():
        hidden = encoder.forward(build_encoder_batch([text], device="cpu")).double()
    vector = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[pooling]
    return (vector / vector.norm()).numpy()


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("budget", [1, 50, 10_000], ids=lambda n: f"{n} tokens")
def test_each_text_gets_its_own_vector(encoder, pooling, budget):
    with Running(encoder, max_batch_tokens=budget) as running:
        for n, text in enumerate(TEXTS):
            running.submit(f"t{n}", text, pooling)
        running.engine.start()
        deltas = running.take(len(TEXTS))
    for n, text in enumerate(TEXTS):
        delta = deltas[f"t{n}"]
        assert delta.finish is FinishReason.STOP
        assert delta.stages_ms.keys() == {"queue", "prefill"}
        np.testing.assert_allclose(delta.embedding, alone(encoder, text, pooling), atol=2e-6)


def test_steps_hold_the_budget_and_the_order(encoder):
    with Running(encoder, max_batch_tokens=64) as running:
        for n, text in enumerate(TEXTS):
            running.submit(f"t{n}", text)
        running.engine.start()
        order = []
        while len(order) < len(TEXTS):
            step = [int(name[1:]) for name, _ in running.steps.get(timeout=30)]
            total = sum(len(TEXTS[n]) for n in step)
            assert total <= 64
            if (after := max(step) + 1) < len(TEXTS):
                assert total + len(TEXTS[after]) > 64
            order += step
    assert order == list(range(len(TEXTS)))


def test_aborted_before_its_turn(encoder):
    with Running(encoder) as running:
        running.submit("gone", TEXTS[0])
        running.submit("stays", TEXTS[1])
        running.engine.abort("gone")
        running.engine.abort("never heard of")
        running.engine.start()
        assert running.take(1).keys() == {"stays"}


def test_a_step_that_fails_fails_its_texts_only(encoder, monkeypatch):
    forward = encoder.forward

    def fail_once(batch):
        monkeypatch.setattr(encoder, "forward", forward)
        raise RuntimeError("out of luck")

    monkeypatch.setattr(encoder, "forward", fail_once)
    with Running(encoder, max_batch_tokens=1) as running:
        running.submit("bad", TEXTS[0])
        running.submit("good", TEXTS[1])
        running.engine.start()
        deltas = running.take(2)
    assert deltas["bad"].finish is FinishReason.ERROR
    assert deltas["good"].finish is FinishReason.STOP
    assert not running.crashed


def test_numbers_that_are_not_finite(encoder, monkeypatch):
    forward = encoder.forward

    def spoiled(batch):
        hidden = forward(batch)
        hidden[0] = float("inf")
        return hidden

    monkeypatch.setattr(encoder, "forward", spoiled)
    with Running(encoder) as running:
        running.submit("short", TEXTS[0][:1])
        running.submit("longer", TEXTS[1])
        running.engine.start()
        deltas = running.take(2)
    assert deltas["short"].finish is FinishReason.ERROR
    assert "not finite" in deltas["short"].error
    assert deltas["longer"].finish is FinishReason.STOP


def test_stopping_ends_what_waits(encoder, monkeypatch):
    with Running(encoder) as running:
        running.engine.stop = lambda: None  # already done below
        running.submit("early", TEXTS[0])
        running.engine._inbox.put(None)
        running.engine.start()
        running.engine._thread.join(timeout=30)
        assert dict(running.steps.get(timeout=30))["early"].finish is FinishReason.ABORT


def test_the_context_is_the_smaller_of_the_models_and_the_functions(encoder):
    def context(asked):
        return EncoderEngine(encoder, max_context=asked, emit=lambda _: None).max_context

    assert [context(None), context(20), context(999)] == [46, 20, 46]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12).map(sorted))
def test_runs_cover_the_rows_without_a_gap(lengths):
    batch = build_encoder_batch([[1] * length for length in lengths], device="cpu")
    assert [run.length for run in batch.runs for _ in range(run.count)] == lengths
    assert batch.runs[0].start == 0
    assert [run.start for run in batch.runs[1:]] == [run.end for run in batch.runs[:-1]]
    assert batch.runs[-1].end == len(batch.tokens) == len(batch.positions) == sum(lengths)
