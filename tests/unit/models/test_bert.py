"""Encoders against transformers, on tiny random checkpoints of every family."""

import pytest
import torch
import transformers
from encoders import TEXTS, reference, sealed_encoder, token_ids, write_encoder

from runtime.engine.encoder_batch import build_encoder_batch

FAMILIES = ["bert", "roberta", "xlm-roberta"]


def run(encoder, texts):
    """Hidden states of each text, in a batch without padding, in the order given."""
    order = sorted(range(len(texts)), key=lambda n: len(texts[n]))
    with torch.inference_mode():
        hidden = encoder.forward(build_encoder_batch([texts[n] for n in order], device="cpu"))
    parts = hidden.split([len(texts[n]) for n in order])
    return [parts[order.index(n)] for n in range(len(texts))]


def theirs(model, ids):
    with torch.inference_mode():
        return model(torch.tensor([ids])).last_hidden_state[0].float()


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_are_those_of_transformers(family, tmp_path):
    model = write_encoder(tmp_path / "model", family)
    encoder, _ = sealed_encoder(tmp_path / "model", tmp_path / "cache")
    texts = [token_ids(tmp_path / "model", text) for text in TEXTS]
    longest = encoder.config.max_positions
    texts += [texts[0][::-1], [7] * longest, [5]]  # two of one length; the longest; the shortest
    assert longest == (64 if family == "bert" else 62)
    for ours, ids in zip(run(encoder, texts), texts, strict=True):
        torch.testing.assert_close(ours, theirs(model, ids), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "gelu_new"},
        {"type_vocab_size": 1},
        {"layer_norm_eps": 1e-3},
        {"num_attention_heads": 1},
    ],
    ids=str,
)
def test_what_differs_between_models(changes, tmp_path):
    model = write_encoder(tmp_path / "model", "bert", **changes)
    encoder, _ = sealed_encoder(tmp_path / "model", tmp_path / "cache")
    ids = token_ids(tmp_path / "model", TEXTS[1])
    [ours] = run(encoder, [ids])
    torch.testing.assert_close(ours, theirs(model, ids), atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "BertForPreTraining", "RobertaForMaskedLM"])
def test_a_checkpoint_with_a_head(kind, tmp_path):
    family = "bert" if kind.startswith("Bert") else "roberta"
    write_encoder(tmp_path / "model", family)
    torch.manual_seed(9)
    with_head = getattr(transformers, kind).from_pretrained(tmp_path / "model").eval()
    with_head.save_pretrained(tmp_path / "model")
    encoder, _ = sealed_encoder(tmp_path / "model", tmp_path / "cache")
    ids = token_ids(tmp_path / "model", TEXTS[1])
    [ours] = run(encoder, [ids])
    torch.testing.assert_close(ours, theirs(with_head.base_model, ids), atol=1e-4, rtol=0)


def test_a_batch_gives_what_each_text_gives_alone(tmp_path):
    write_encoder(tmp_path / "model", "bert")
    encoder, _ = sealed_encoder(tmp_path / "model", tmp_path / "cache")
    texts = [token_ids(tmp_path / "model", text) for text in TEXTS] * 2
    for together, ids in zip(run(encoder, texts), texts, strict=True):
        [alone] = run(encoder, [ids])
        torch.testing.assert_close(together, alone, atol=2e-6, rtol=0)


@pytest.mark.parametrize(
    "changes",
    [{}, {"hidden_size": 64, "num_attention_heads": 2}],  # heads of 32 numbers: our own kernels
    ids=["torch", "ours"],
)
def test_bfloat16_is_no_further_from_float32_than_transformers(changes, tmp_path):
    model = write_encoder(tmp_path / "model", "bert", **changes)
    encoder, _ = sealed_encoder(tmp_path / "model", tmp_path / "cache", "bfloat16")
    texts = [token_ids(tmp_path / "model", text) for text in TEXTS]
    exact = [theirs(model, ids) for ids in texts]
    ours = run(encoder, texts)
    model.bfloat16()
    rounded = [theirs(model, ids) for ids in texts]

    def error(hidden):
        return torch.cat([a - b for a, b in zip(hidden, exact, strict=True)]).pow(2).mean()

    assert 0 < error(ours) <= 1.1 * error(rounded)


@pytest.mark.parametrize(("quantization", "likeness"), [("int8", 0.998), ("int4", 0.85)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_quantised_weights(quantization, likeness, dtype, tmp_path):
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2}
    model = write_encoder(tmp_path / "model", "bert", **sizes)
    encoder, _ = sealed_encoder(
        tmp_path / "model", tmp_path / "cache", dtype, quantization=quantization
    )
    texts = [token_ids(tmp_path / "model", text) for text in TEXTS]
    for ours, ids in zip(run(encoder, texts), texts, strict=True):
        cosines = torch.cosine_similarity(ours.mean(0), theirs(model, ids).mean(0), dim=0)
        assert cosines > likeness


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("mode", "pooling"), [("mean_tokens", "mean"), ("cls_token", "cls"), ("lasttoken", "last")]
)
def test_pooled_vectors(family, mode, pooling, tmp_path):
    from runtime.engine.pooling import pooled_rows, sum_rows, unit_length

    model = write_encoder(tmp_path / "model", family, pooling=mode)
    encoder, manifest = sealed_encoder(tmp_path / "model", tmp_path / "cache")
    assert manifest.embeddings.pooling == pooling
    ids = token_ids(tmp_path / "model", TEXTS[1])
    [hidden] = run(encoder, [ids])
    rows = pooled_rows(manifest.embeddings.pooling, start=0, end=len(ids), length=len(ids))
    vector = torch.from_numpy(unit_length(sum_rows(hidden[rows.start : rows.stop])))
    torch.testing.assert_close(vector, reference(model, ids, mode), atol=1e-5, rtol=0)
