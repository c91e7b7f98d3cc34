"""Sealing LoRA adapters: what comes out, what is refused and how, and that the base stays."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from lora import save_base, write_adapter

from glowplug.errors import CorruptSnapshot, NotFound, SnapshotError, UnsupportedModel
from glowplug.spec import parse_spec
from snapshot.adapter_config import AdapterConfig, read_adapter_config
from snapshot.adapter_layout import RANK_STEP
from snapshot.adapter_restore import restore_adapter
from snapshot.adapter_seal import seal_adapter
from snapshot.adapter_store import AdapterStore
from snapshot.manifest import read_manifest
from snapshot.node_cache import NodeCache
from snapshot.seal import seal
from snapshot.sealer import ProcessSealer

Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[NodeCache, str]:
    """A node cache with one sealed model in it."""
    folder = tmp_path_factory.mktemp("base")
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    save_base(config, folder / "model")
    cache = NodeCache(folder / "cache")
    model = str(folder / "model")
    return cache, seal(model, dtype="float32", cache=cache, progress=lambda _: None)


@pytest.fixture
def store(base: tuple[NodeCache, str]) -> AdapterStore:
    return AdapterStore(base[0])


@pytest.fixture
def folder(base: tuple[NodeCache, str], tmp_path: Path) -> Path:
    """A PEFT folder that fits the model."""
    config = read_manifest(base[0].path(base[1])).config
    return write_adapter(tmp_path / "adapter", config, seed=3, rank=5, size=0.3)


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "adapter_model.safetensors")


def change_tensors(folder: Path, **changes: torch.Tensor | None) -> None:
    tensors = tensors_of(folder) | changes
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    safetensors.torch.save_file(kept, folder / "adapter_model.safetensors")


def test_the_parts_are_fused_with_their_scales(base, store, folder):
    digest = seal_adapter(str(folder), snapshot=base[1], store=store)
    assert digest == store.path(digest).stem
    sealed = restore_adapter(store.path(digest))
    theirs = tensors_of(folder)
    a, b = sealed.pairs["layers.1.qkv"]
    assert a.shape == (RANK_STEP, 32)  # 3 x 5, rounded up
    assert b.shape == ((4 + 2 * 2) * 8, RANK_STEP)
    for row, part in ((0, "q"), (32, "k"), (48, "v")):
        stem = f"base_model.model.model.layers.1.self_attn.{part}_proj"
        delta = theirs[f"{stem}.lora_B.weight"] @ theirs[f"{stem}.lora_A.weight"] * 2.0
        torch.testing.assert_close((b @ a)[row : row + delta.shape[0]], delta)
    assert set(sealed.pairs) == {
        f"layers.{n}.{block}" for n in (0, 1) for block in ("qkv", "o", "gate_up", "down")
    }


def test_any_safetensors_reader_can_read_it(base, store, folder):
    digest = seal_adapter(str(folder), snapshot=base[1], store=store)
    tensors = safetensors.torch.load_file(store.path(digest))
    for name, (a, b) in restore_adapter(store.path(digest)).pairs.items():
        assert torch.equal(tensors[f"{name}.a"], a)
        assert torch.equal(tensors[f"{name}.b"], b)


def test_the_digest_is_the_contents_and_the_base_is_not_touched(base, store, folder, tmp_path):
    cache, snapshot = base

    def states() -> dict[str, int]:
        return {each.name: each.stat().st_mtime_ns for each in cache.path(snapshot).iterdir()}

    before = states()
    digest = seal_adapter(str(folder), snapshot=snapshot, store=store)
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert seal_adapter(str(copy), snapshot=snapshot, store=store) == digest
    change_config(copy, lora_alpha=3)
    assert seal_adapter(str(copy), snapshot=snapshot, store=store) != digest
    assert states() == before
    assert [each.digest for each in cache.list()] == [snapshot]


def test_sealed_again_only_when_a_file_changed(base, store, folder, monkeypatch):
    digest = seal_adapter(str(folder), snapshot=base[1], store=store)
    monkeypatch.setattr("snapshot.adapter_seal.open_adapter", None)  # would fail if it were called
    assert seal_adapter(str(folder), snapshot=base[1], store=store) == digest
    os.utime(folder / "adapter_model.safetensors", ns=(1, 1))
    with pytest.raises(TypeError):
        seal_adapter(str(folder), snapshot=base[1], store=store)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"peft_type": "IA3"}, UnsupportedModel, "peft_type 'IA3'"),
        ({"peft_type": None}, UnsupportedModel, "peft_type"),
        ({"bias": "all"}, UnsupportedModel, "bias: 'all'"),
        ({"bias": "lora_only"}, UnsupportedModel, "bias: 'lora_only'"),
        ({"use_dora": True}, UnsupportedModel, "use_dora: DoRA"),
        ({"modules_to_save": ["lm_head"]}, UnsupportedModel, "modules_to_save"),
        ({"trainable_token_indices": [3]}, UnsupportedModel, "trainable_token_indices"),
        ({"layer_replication": [[0, 2]]}, UnsupportedModel, "layer_replication"),
        ({"lora_bias": True}, UnsupportedModel, "lora_bias"),
        ({"fan_in_fan_out": True}, UnsupportedModel, "fan_in_fan_out"),
        ({"use_qalora": True}, UnsupportedModel, "use_qalora"),
        ({"target_parameters": ["x"]}, UnsupportedModel, "target_parameters"),
        ({"invented_in_2031": {"a": 1}}, UnsupportedModel, "invented_in_2031"),
        ({"init_lora_weights": "pissa_niter_4"}, UnsupportedModel, "init_lora_weights"),
        ({"init_lora_weights": "loftq"}, UnsupportedModel, "init_lora_weights"),
        ({"target_modules": ["q_proj", "embed_tokens"]}, UnsupportedModel, "'embed_tokens'"),
        ({"target_modules": ["lm_head"]}, UnsupportedModel, "'lm_head'"),
        ({"r": 257}, CorruptSnapshot, "r: "),
        ({"r": 0}, CorruptSnapshot, "r: "),
        ({"r": "8"}, CorruptSnapshot, "r: "),
        ({"lora_alpha": "much"}, CorruptSnapshot, "lora_alpha"),
        ({"r": 4}, CorruptSnapshot, "with rank 4"),
        ({"rank_pattern": {"(": 5}}, CorruptSnapshot, "no regular expression"),
        ({"alpha_pattern": {"(a+)+b": 5}}, UnsupportedModel, "too complicated"),
        ({"alpha_pattern": {".*.*.*.*b": 5}}, UnsupportedModel, "too complicated"),
        ({"rank_pattern": {"q_proj": 300}}, UnsupportedModel, "rank 300"),
    ],
)
def test_what_the_config_asks_for_and_is_refused(base, store, folder, changes, kind, message):
    change_config(folder, **changes)
    with pytest.raises(kind) as caught:
        seal_adapter(str(folder), snapshot=base[1], store=store)
    assert message in caught.value.message
    assert str(folder) in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "changes",
    [
        {"peft_version": "9.9", "task_type": "CAUSAL_LM", "base_model_name_or_path": "x"},
        {"use_dora": False, "modules_to_save": None, "loftq_config": {}, "lora_bias": False},
        {"init_lora_weights": "gaussian"},
        {"init_lora_weights": True, "lora_dropout": 0.1, "inference_mode": True},
        {"target_modules": "all-linear"},
        {"eva_config": {"rho": 2.0}, "init_lora_weights": "eva"},
    ],
)
def test_what_the_config_may_say_besides(base, store, folder, changes):
    digest = seal_adapter(str(folder), snapshot=base[1], store=store)
    change_config(folder, **changes)
    assert seal_adapter(str(folder), snapshot=base[1], store=store) == digest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({Q.format("A"): None}, "only lora_B"),
        ({Q.format("A"): None, Q.format("B"): None}, "target_modules names it"),
        ({Q.format("A"): torch.zeros(5, 31)}, "another model"),
        ({Q.format("B"): torch.zeros(33, 5)}, "another model"),
        ({Q.format("A"): torch.full((5, 32), float("nan"))}, "NaN"),
        ({Q.format("B"): torch.full((32, 5), float("inf"))}, "NaN or infinite"),
        ({Q.format("A"): torch.zeros(5, 32, dtype=torch.int32)}, "type I32"),
        ({Q.format("A").replace("layers.0", "layers.2"): torch.zeros(5, 32)}, "not in the model"),
        ({"base_model.model.lm_head.lora_A.weight": torch.zeros(5, 32)}, "no LoRA weight"),
        ({Q.format("magnitude_vector"): torch.zeros(32)}, "DoRA"),
        ({"../../etc/passwd": torch.zeros(1)}, "no LoRA weight"),
    ],
)
def test_weights_that_do_not_fit(base, store, folder, changes, message):
    change_tensors(folder, **changes)
    with pytest.raises(SnapshotError) as caught:
        seal_adapter(str(folder), snapshot=base[1], store=store)
    assert message in caught.value.message
    assert str(folder) in caught.value.message


def test_files_that_are_not_there_or_not_whole(base, store, folder, tmp_path):
    def refused(source: Path, message: str) -> None:
        with pytest.raises(SnapshotError, match=message):
            seal_adapter(str(source), snapshot=base[1], store=store)

    refused(tmp_path / "none", "no such folder")
    refused(tmp_path, "without adapter_config.json")
    weights = folder / "adapter_model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-10])
    refused(folder, "not a whole safetensors file")
    weights.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    refused(folder, "git lfs pull")
    weights.rename(folder / "adapter_model.bin")
    refused(folder, "pickle")
    (folder / "adapter_model.bin").unlink()
    refused(folder, "missing")
    (folder / "adapter_config.json").write_text("{")
    refused(folder, "not valid JSON")
    with pytest.raises(NotFound):
        seal_adapter(str(folder), snapshot="sha256-" + "0" * 64, store=store)


@pytest.mark.parametrize("at", [9, 3000, -4097, -1])
def test_a_changed_byte_is_noticed_when_it_is_loaded(base, store, folder, at, tmp_path):
    digest = seal_adapter(str(folder), snapshot=base[1], store=store)
    content = bytearray(store.path(digest).read_bytes())
    content[at] ^= 1
    changed = tmp_path / f"{digest}.safetensors"
    changed.write_bytes(content)
    with pytest.raises(CorruptSnapshot, match="changed since it was sealed"):
        restore_adapter(changed)
    changed.write_bytes(content[: len(content) // 2])
    with pytest.raises(CorruptSnapshot):
        restore_adapter(changed)
    changed.write_bytes(b"")
    with pytest.raises(CorruptSnapshot):
        restore_adapter(changed)
    with pytest.raises(NotFound):
        store.path("sha256-" + "1" * 64)
    with pytest.raises(NotFound):
        store.path("../" + digest)


@settings(derandomize=True, max_examples=200)
@given(
    pattern=st.text(alphabet="ab_.*+?()|\\[]^$0{", max_size=40),
    module=st.sampled_from(["model.layers.0.self_attn.q_proj", "model.layers.11.mlp.down_proj"]),
)
def test_patterns_from_strangers_end(pattern: str, module: str) -> None:
    """Whatever is not refused is matched at once."""
    try:
        from snapshot.adapter_config import _check_pattern

        _check_pattern(pattern, "config")
    except SnapshotError:
        return
    AdapterConfig(
        rank=1,
        alpha=1.0,
        rank_stabilised=False,
        rank_pattern={pattern: 2},
        alpha_pattern={},
        targets=None,
    ).rank_of(module)


def test_scales(folder):
    change_config(folder, use_rslora=True, lora_alpha=6, alpha_pattern={"down_proj": 3})
    config = read_adapter_config(folder)
    assert config.scale_of("model.layers.0.self_attn.q_proj") == pytest.approx(6 / 5**0.5)
    assert config.scale_of("model.layers.0.mlp.down_proj") == pytest.approx(3 / 5**0.5)


def test_sealed_in_a_child_process(base, folder, tmp_path):
    cache, snapshot = base
    spec = {"name": "f", "model": "/m", "adapters": {"one": str(folder), "two": str(folder)}}

    async def main() -> None:
        sealer = ProcessSealer(cache)
        first = await sealer.seal_adapters(parse_spec(spec), snapshot=snapshot)
        assert first["one"] == first["two"] == AdapterStore(cache).path(first["one"]).stem
        assert await sealer.seal_adapters(parse_spec(spec), snapshot=snapshot) == first
        missing = parse_spec(spec | {"adapters": {"bad": str(tmp_path / "none")}})
        with pytest.raises(SnapshotError, match=r"adapters\.bad: .*no such folder"):
            await sealer.seal_adapters(missing, snapshot=snapshot)
        change_config(folder, bias="all")
        with pytest.raises(UnsupportedModel, match=r"adapters\.one: .*bias"):
            await sealer.seal_adapters(parse_spec(spec), snapshot=snapshot)
        large = parse_spec(spec).model_copy(update={"adapter_cache_bytes": 10})
        change_config(folder, bias="none")
        with pytest.raises(SnapshotError, match="over adapter_cache_bytes"):
            await sealer.seal_adapters(large, snapshot=snapshot)

    asyncio.run(main())
