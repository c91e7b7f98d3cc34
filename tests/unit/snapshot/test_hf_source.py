"""Hugging Face folders made by transformers, sealed and restored, and what is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from glowplug.errors import CorruptSnapshot, SnapshotError, UnsupportedModel
from snapshot.hf_source import open_huggingface
from snapshot.layout import tensor_shapes
from snapshot.node_cache import NodeCache
from snapshot.restore import restore
from snapshot.seal import seal

SaveHf = Callable[..., tuple[Path, Any]]

FUSED = {
    "qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "gate_up": ["mlp.gate_proj", "mlp.up_proj"],
    "attn_norm": ["input_layernorm"],
    "q_norm": ["self_attn.q_norm"],
    "k_norm": ["self_attn.k_norm"],
    "o": ["self_attn.o_proj"],
    "mlp_norm": ["post_attention_layernorm"],
    "down": ["mlp.down_proj"],
}


def reference(model: Any, name: str) -> torch.Tensor:
    """A sealed tensor, put together from the transformers model."""
    state = model.state_dict()
    top = {"embed": "model.embed_tokens", "norm": "model.norm", "lm_head": "lm_head"}
    if name in top:
        return state[f"{top[name]}.weight"]
    _, layer, last = name.split(".")
    kind = "bias" if last.endswith("_bias") else "weight"
    modules = FUSED[last.removesuffix("_bias")]
    return torch.cat([state[f"model.layers.{layer}.{module}.{kind}"] for module in modules])


@pytest.mark.parametrize("shard_bytes", [1 << 30, 20_000], ids=["whole", "sharded"])
@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
        ("llama", {"head_dim": 16, "num_key_value_heads": 4}),
        ("mistral", {}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen3", {"head_dim": 12}),
        ("qwen3", {"attention_bias": True}),
    ],
)
def test_every_family(
    save_hf: SaveHf, cache: NodeCache, family: str, fields: dict[str, Any], shard_bytes: int
) -> None:
    folder, model = save_hf(family, shard_bytes=shard_bytes, **fields)
    assert (folder / "model.safetensors").exists() == (shard_bytes == 1 << 30)
    for dtype in ("float32", "bfloat16"):
        digest = seal(str(folder), dtype=dtype, cache=cache, progress=lambda _: None)
        restored = restore(cache.path(digest))
        assert restored.tensors.keys() == tensor_shapes(restored.manifest.config).keys()
        for name, tensor in restored.tensors.items():
            expected = reference(model, name).to(getattr(torch, dtype))
            assert torch.equal(tensor, expected), name
        assert ("lm_head" in restored.tensors) != bool(fields.get("tie_word_embeddings"))
        sealed = sum(tensor.numel() for tensor in restored.tensors.values())
        assert sealed == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_files(save_hf: SaveHf, cache: NodeCache, dtype: str) -> None:
    folder, model = save_hf(dtype=dtype)
    digest = seal(str(folder), dtype="float32", cache=cache, progress=lambda _: None)
    for name, tensor in restore(cache.path(digest)).tensors.items():
        assert torch.equal(tensor, reference(model, name).float()), name


def change_json(path: Path, **fields: Any) -> None:
    content = json.loads(path.read_text())
    content |= fields
    path.write_text(json.dumps({key: value for key, value in content.items() if value != "DROP"}))


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def refused(folder: Path, error: type[SnapshotError], message: str, cache: NodeCache) -> None:
    with pytest.raises(error, match=message) as caught:
        seal(str(folder), dtype="bfloat16", cache=cache, progress=lambda _: None)
    assert type(caught.value) is error
    assert cache.list() == []
    assert list((cache.root / "partial").iterdir()) == []


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "m.pkl", "m.ckpt"])
def test_pickles_are_refused_unread(save_hf: SaveHf, cache: NodeCache, name: str) -> None:
    folder, _ = save_hf()
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(b"\x80\x02cos\nsystem\n(S'exit 1'\ntR.")
    refused(folder, UnsupportedModel, f"only pickled weights .{name}.", cache)


def test_pickle_index_is_refused(save_hf: SaveHf, cache: NodeCache) -> None:
    folder, _ = save_hf(shard_bytes=20_000)
    path = folder / "model.safetensors.index.json"
    change_json(path, weight_map={"model.norm.weight": "pytorch_model-00001.bin"})
    refused(folder, UnsupportedModel, r"'pytorch_model-00001.bin'; only .safetensors", cache)


@pytest.mark.parametrize("file", ["../secret.safetensors", "/etc/x.safetensors", "a/b.safetensors"])
def test_index_cannot_leave_the_folder(save_hf: SaveHf, cache: NodeCache, file: str) -> None:
    folder, _ = save_hf(shard_bytes=20_000)
    path = folder / "model.safetensors.index.json"
    change_json(path, weight_map={"model.norm.weight": file})
    refused(folder, UnsupportedModel, "only .safetensors files beside it", cache)


def test_missing_shard(save_hf: SaveHf, cache: NodeCache) -> None:
    folder, _ = save_hf(shard_bytes=20_000)
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.unlink()
    refused(folder, CorruptSnapshot, f"{shard.name}: missing", cache)


def test_swapped_shard(save_hf: SaveHf, cache: NodeCache) -> None:
    folder, _ = save_hf(shard_bytes=20_000)
    shards = sorted(folder.glob("model-*.safetensors"))
    shutil.copy(shards[0], shards[1])
    refused(folder, CorruptSnapshot, f"{shards[1].name}: the tensor .* is in", cache)


def test_no_weights(save_hf: SaveHf, cache: NodeCache) -> None:
    folder, _ = save_hf()
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    refused(folder, UnsupportedModel, "an adapter without its base model", cache)
    (folder / "adapter_model.safetensors").unlink()
    refused(folder, CorruptSnapshot, "no model.safetensors", cache)


def test_truncated_weights(save_hf: SaveHf, cache: NodeCache) -> None:
    folder, _ = save_hf()
    path = folder / "model.safetensors"
    data = path.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    for length in [0, 1, 7, 8, 9, 100, header - 1, header, header + 1, len(data) - 1]:
        path.write_bytes(data[:length])
        refused(folder, CorruptSnapshot, "not a whole safetensors file", cache)
    path.write_bytes(data + b"x")
    refused(folder, CorruptSnapshot, "not a whole safetensors file", cache)


def test_mislabelled_weights(save_hf: SaveHf, cache: NodeCache) -> None:
    folder, _ = save_hf()
    path = folder / "model.safetensors"
    size = path.stat().st_size
    for content in [
        b"PK\x03\x04" + bytes(1000),  # torch.save
        b"GGUF" + bytes(1000),
        (1 << 62).to_bytes(8, "little") + bytes(1000),
        (64).to_bytes(8, "little") + b"[" * 64,
        bytes(size),
    ]:
        path.write_bytes(content)
        refused(folder, CorruptSnapshot, "not a whole safetensors file", cache)
    path.write_text("version https://git-lfs.github.com/spec/v1\n")
    refused(folder, CorruptSnapshot, "git lfs pull", cache)


def test_wrong_tensors(save_hf: SaveHf, cache: NodeCache) -> None:
    folder, _ = save_hf()
    name = "model.layers.1.mlp.up_proj.weight"
    whole = (folder / "model.safetensors").read_bytes()

    def check(
        error: type[SnapshotError], message: str, change: Callable[[dict[str, torch.Tensor]], None]
    ) -> None:
        (folder / "model.safetensors").write_bytes(whole)
        change_tensors(folder, change)
        refused(folder, error, message, cache)

    check(CorruptSnapshot, f"{name} is missing", lambda t: t.__delitem__(name))
    check(
        CorruptSnapshot,
        rf"{name} has the shape \[64, 31\], the model's config asks for \[64, 32\]",
        lambda t: t.update({name: torch.zeros(64, 31)}),
    )
    check(
        UnsupportedModel,
        "score.weight is no part of the llama model",
        lambda t: t.update({"score.weight": torch.zeros(2, 32)}),
    )
    check(
        UnsupportedModel,
        f"{name} has the type I8; only F32",
        lambda t: t.update({name: torch.zeros(64, 32, dtype=torch.int8)}),
    )
    for value in (torch.nan, torch.inf, -torch.inf):
        check(
            CorruptSnapshot,
            "layers.1.gate_up holds NaN or infinite",
            lambda t, value=value: t[name].__setitem__((3, 4), value),  # type: ignore[misc]
        )


def test_tensors_that_old_versions_add(save_hf: SaveHf, cache: NodeCache) -> None:
    folder, _ = save_hf(tie_word_embeddings=True)
    seal(str(folder), dtype="float32", cache=cache, progress=lambda _: None)
    change_tensors(
        folder,
        lambda t: t.update(
            {
                "lm_head.weight": t["model.embed_tokens.weight"].clone(),
                "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
            }
        ),
    )
    again = open_huggingface(folder)
    assert again.config.tie_embeddings


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"model_type": "gpt2"}, UnsupportedModel, "'gpt2' is not supported; these are: llama"),
        ({"model_type": "DROP"}, UnsupportedModel, "'None' is not supported"),
        ({"model_type": ["llama"]}, UnsupportedModel, "is not supported"),
        ({"quantization_config": {"quant_method": "awq"}}, UnsupportedModel, "are quantised"),
        ({"hidden_act": "gelu"}, UnsupportedModel, "hidden_act 'gelu'"),
        ({"hidden_size": "DROP"}, CorruptSnapshot, "hidden_size"),
        ({"hidden_size": "wide"}, CorruptSnapshot, "hidden_size"),
        ({"num_hidden_layers": 10**9}, CorruptSnapshot, "num_layers"),
        ({"num_hidden_layers": 2}, UnsupportedModel, "model.layers.2.*is no part"),
        ({"num_hidden_layers": 4}, CorruptSnapshot, "model.layers.3.* is missing"),
        ({"num_key_value_heads": 3}, CorruptSnapshot, "cannot share 3"),
        ({"num_attention_heads": 0}, CorruptSnapshot, "num_heads"),
        ({"vocab_size": 383}, CorruptSnapshot, "model.embed_tokens.weight has the shape"),
        ({"rms_norm_eps": -1}, CorruptSnapshot, "rms_norm_eps"),
    ],
)
def test_wrong_config(
    save_hf: SaveHf,
    cache: NodeCache,
    fields: dict[str, Any],
    error: type[SnapshotError],
    message: str,
) -> None:
    folder, _ = save_hf()
    change_json(folder / "config.json", **fields)
    refused(folder, error, message, cache)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 200_000, b'{"a":' * 200_000]
)
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_damaged_json(save_hf: SaveHf, cache: NodeCache, name: str, content: bytes) -> None:
    folder, _ = save_hf()
    (folder / name).write_bytes(content)
    refused(folder, CorruptSnapshot, name, cache)


def test_text_that_is_no_unicode(save_hf: SaveHf, cache: NodeCache) -> None:
    folder, _ = save_hf()
    change_json(folder / "tokenizer_config.json", chat_template="half of a pair: \ud800")
    refused(folder, CorruptSnapshot, "surrogates not allowed", cache)


def test_huge_config(save_hf: SaveHf, cache: NodeCache) -> None:
    folder, _ = save_hf()
    (folder / "config.json").write_bytes(b" " * (2 << 20))
    refused(folder, CorruptSnapshot, "over 1 MiB", cache)


@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_flipped_bits(save_hf: SaveHf, tmp_path: Path, data: st.DataObject) -> None:
    """In any file but the weights themselves: one of our errors, or a readable model."""
    folder = tmp_path / "hf-llama"
    if not folder.exists():
        save_hf(shard_bytes=20_000)
    path = data.draw(st.sampled_from(sorted(folder.iterdir())))
    whole = path.read_bytes()
    end = len(whole)
    if path.suffix == ".safetensors":
        end = 8 + int.from_bytes(whole[:8], "little")
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, end - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    try:
        open_huggingface(folder)
    except SnapshotError as error:
        assert str(folder) in str(error)
    finally:
        path.write_bytes(whole)
