"""Encoders' folders: what is sealed of them, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from encoders import TEXTS, byte_level, sealed_encoder, token_ids, write_encoder, write_pooling
from tokenizers import Tokenizer, processors

from glowplug.errors import CorruptSnapshot, SnapshotError, UnsupportedModel
from snapshot.encoder_config import EncoderConfig
from snapshot.hf_encoder import encoder_config
from snapshot.hf_pooling import hf_pooling, hf_text_length
from snapshot.manifest import TOKENIZER, EmbeddingFormat, Manifest, read_manifest
from snapshot.model_config import ModelConfig
from snapshot.node_cache import NodeCache
from snapshot.seal import seal
from snapshot.source import find_source, fingerprint

BERT: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
}
PATH = Path("config.json")


def seal_it(folder: Path) -> str:
    cache = NodeCache(folder.parent / "cache")
    return seal(str(folder), dtype="float32", cache=cache, progress=lambda _: None)


@pytest.mark.parametrize(
    ("family", "before", "after"),
    [("bert", (2,), (3,)), ("roberta", (0,), (2,)), ("xlm-roberta", (0,), (2,))],
)
def test_texts_get_the_tokens_that_transformers_gives_them(
    tmp_path: Path, family: str, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    write_encoder(tmp_path / "model", family)
    _, manifest = sealed_encoder(tmp_path / "model", tmp_path / "cache")
    assert manifest.embedding == EmbeddingFormat(pooling="mean", before=before, after=after)
    assert manifest.special_tokens == (before, after)
    assert manifest.add_bos is False
    assert manifest.chat.template is None
    [folder] = (tmp_path / "cache").glob("sha256-*")
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    for text in [*TEXTS, "Fox ÜBER 12", "the [MASK] fox"]:
        ids = [*before, *tokenizer.encode(text).ids, *after]
        assert ids == token_ids(tmp_path / "model", text)


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_encoder(tmp_path / "model", "roberta", pooling="cls_token")
    _, manifest = sealed_encoder(tmp_path / "model", tmp_path / "cache")
    again = Manifest.model_validate_json(manifest.to_bytes())
    assert again == manifest
    assert isinstance(again.config, EncoderConfig)
    assert again.embeddings.pooling == "cls"


def test_a_shorter_text_length_of_sentence_transformers(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_encoder(folder, "bert")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    encoder, _ = sealed_encoder(folder, tmp_path / "cache")
    assert encoder.config.max_positions == 20
    assert encoder.config.position_rows == 64


def test_a_changed_pooling_is_sealed_anew(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_encoder(folder, "bert", pooling="cls_token")
    before = fingerprint(find_source(str(folder)), "float32")
    write_pooling(folder, "mean_sqrt_len_tokens")
    assert fingerprint(find_source(str(folder)), "float32") != before
    _, manifest = sealed_encoder(folder, tmp_path / "cache")
    assert manifest.embeddings.pooling == "mean"


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"hidden_act": "silu"}, UnsupportedModel, "hidden_act"),
        ({"position_embedding_type": "relative_key"}, UnsupportedModel, "position_embedding_type"),
        ({"is_decoder": True}, UnsupportedModel, "is_decoder"),
        ({"add_cross_attention": True}, UnsupportedModel, "add_cross_attention"),
        ({"quantization_config": {"bits": 4}}, UnsupportedModel, "quantization_config"),
        ({"hidden_size": None}, CorruptSnapshot, "hidden_size"),
        ({"hidden_size": 50}, CorruptSnapshot, "no multiple"),
        ({"num_hidden_layers": 10**9}, CorruptSnapshot, "num_layers"),
        ({"max_position_embeddings": "x"}, CorruptSnapshot, "position"),
        ({"model_type": "roberta", "pad_token_id": -1}, CorruptSnapshot, "pad_token_id"),
        ({"model_type": "roberta", "pad_token_id": 63}, CorruptSnapshot, "max_positions"),
        ({"layer_norm_eps": float("nan")}, CorruptSnapshot, "norm_eps"),
    ],
    ids=str,
)
def test_refused_configs(changes: dict[str, Any], kind: type[SnapshotError], message: str) -> None:
    with pytest.raises(kind, match=message):
        encoder_config(BERT | changes, PATH)


def test_defaults_are_those_of_transformers() -> None:
    config = encoder_config(BERT, PATH)
    assert (config.token_types, config.norm_eps, config.activation) == (2, 1e-12, "gelu")
    assert encoder_config(BERT | {"model_type": "roberta"}, PATH).position_offset == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("encoder.layer.1.output.dense.bias"), "missing"),
        (
            lambda tensors: tensors.update({"encoder.layer.0.extra": torch.zeros(2)}),
            "encoder.layer.0.extra is no part of the bert model",
        ),
        (
            lambda tensors: tensors.update({"classifier.weight": torch.zeros(2)}),
            "classifier.weight is no part",
        ),
        (
            lambda tensors: tensors.update(
                {"embeddings.position_embeddings.weight": torch.zeros(9, 48)}
            ),
            "has the shape",
        ),
    ],
)
def test_refused_weights(tmp_path: Path, change: Any, message: str) -> None:
    folder = tmp_path / "model"
    write_encoder(folder, "bert")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    change(tensors)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(SnapshotError, match=message):
        seal_it(folder)


def write_decoder(folder: Path, *, base: bool) -> None:
    """A tied Qwen3 whose tokenizer puts an EOS after a text, as Qwen3-Embedding's does."""
    config = transformers.Qwen3Config(
        vocab_size=byte_level().get_vocab_size(),
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    kind = transformers.AutoModel if base else transformers.AutoModelForCausalLM
    torch.manual_seed(4)
    kind.from_config(config).float().save_pretrained(folder)
    tokenizer = byte_level()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", 2)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("base", [False, True], ids=["with a head", "saved without its head"])
def test_a_decoder_that_embeds(tmp_path: Path, base: bool) -> None:
    folder = tmp_path / "model"
    write_decoder(folder, base=base)
    write_pooling(folder, "lasttoken")
    manifest = read_manifest(tmp_path / "cache" / seal_it(folder))
    assert manifest.embedding == EmbeddingFormat(pooling="last", after=(2,))
    assert manifest.special_tokens == ((), ())  # a prompt to go on from has no EOS
    assert isinstance(manifest.config, ModelConfig)


class TestPooling:
    """The files of sentence-transformers."""

    @pytest.mark.parametrize(
        ("config", "pooling"),
        [
            ({"pooling_mode_mean_tokens": True}, "mean"),
            ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
            ({"pooling_mode_lasttoken": True, "include_prompt": True}, "last"),
            ({"pooling_mode": "lasttoken"}, "last"),
            ({"pooling_mode": ["mean"]}, "mean"),
        ],
    )
    def test_modes(self, tmp_path: Path, config: dict[str, Any], pooling: str) -> None:
        write_pooling(tmp_path, "mean_tokens")
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
        assert hf_pooling(tmp_path) == pooling

    @pytest.mark.parametrize("config", [{}, {"pooling_mode_max_tokens": True}, {"pooling_mode": 3}])
    def test_unknown_modes(self, tmp_path: Path, config: dict[str, Any]) -> None:
        write_pooling(tmp_path, "mean_tokens")
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
        with pytest.raises(UnsupportedModel, match="it pools by"):
            hf_pooling(tmp_path)

    def test_two_modes_at_once(self, tmp_path: Path) -> None:
        write_pooling(tmp_path, "mean_tokens")
        config = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
        with pytest.raises(UnsupportedModel, match="cls, mean"):
            hf_pooling(tmp_path)

    def test_a_step_that_would_change_the_vectors(self, tmp_path: Path) -> None:
        write_pooling(tmp_path, "mean_tokens")
        modules = json.loads((tmp_path / "modules.json").read_text())
        modules.append({"idx": 9, "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
        (tmp_path / "modules.json").write_text(json.dumps(modules))
        with pytest.raises(UnsupportedModel, match="Dense"):
            hf_pooling(tmp_path)

    def test_a_folder_that_does_not_say(self, tmp_path: Path) -> None:
        assert hf_pooling(tmp_path) is None
        assert hf_text_length(tmp_path) is None

    @pytest.mark.parametrize(
        "modules",
        [
            "{}",
            "[3]",
            "nonsense",
            json.dumps([{"type": "a.Pooling", "path": "../elsewhere"}]),
            json.dumps([{"type": "a.Pooling", "path": "/etc"}]),
            json.dumps([{"type": "a.Pooling", "path": 3}]),
            json.dumps([{"type": "a.Pooling", "path": "not_there"}]),
            json.dumps([{"type": "a.Normalize", "path": "n"}] * 17),
            "[" * 100_000,
        ],
        ids=lambda text: text[:40],
    )
    def test_damaged_modules(self, tmp_path: Path, modules: str) -> None:
        (tmp_path / "modules.json").write_text(modules)
        with pytest.raises(CorruptSnapshot):
            hf_pooling(tmp_path)

    @pytest.mark.parametrize(
        ("fields", "kind"),
        [
            ({"max_seq_length": 0}, CorruptSnapshot),
            ({"max_seq_length": "long"}, CorruptSnapshot),
            ({"do_lower_case": True}, UnsupportedModel),
        ],
    )
    def test_refused_text_settings(
        self, tmp_path: Path, fields: dict[str, Any], kind: type[SnapshotError]
    ) -> None:
        (tmp_path / "sentence_bert_config.json").write_text(json.dumps(fields))
        with pytest.raises(kind):
            hf_text_length(tmp_path)
