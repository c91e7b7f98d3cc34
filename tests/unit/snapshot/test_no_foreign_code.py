"""No code that comes with a model is ever run: not when it is sealed, not when it is restored."""

import asyncio
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glowplug.errors import CorruptSnapshot, UnsupportedModel
from glowplug.spec import parse_spec
from snapshot.node_cache import NodeCache
from snapshot.restore import restore
from snapshot.seal import seal
from snapshot.sealer import ProcessSealer

SHADOWED = ("torch", "json", "safetensors", "gguf", "tokenizers", "snapshot", "sitecustomize")


class Payload:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (Path.touch, (self.mark,))


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "code-was-run"


@pytest.fixture
def hostile(save_hf: Callable[..., Any], mark: Path) -> Path:
    """A whole model, and everything that others would run or unpickle beside it."""
    folder: Path = save_hf("llama")[0]
    source = f"from pathlib import Path\nPath({str(mark)!r}).touch()\n"
    modules = ("modeling_evil", "configuration_evil", "tokenization_evil", "__init__", "conftest")
    for name in (*modules, *SHADOWED, "setup", "generate", "handler"):
        (folder / f"{name}.py").write_text(source)
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(source)
    auto_map = {
        "AutoConfig": "configuration_evil.EvilConfig",
        "AutoModelForCausalLM": "modeling_evil.EvilForCausalLM",
        "AutoTokenizer": ["tokenization_evil.EvilTokenizer", None],
    }
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        fields = json.loads((folder / name).read_text())
        fields |= {"auto_map": auto_map, "trust_remote_code": True, "custom_pipelines": auto_map}
        (folder / name).write_text(json.dumps(fields))
    for name in ("pytorch_model.bin", "training_args.bin", "model.pt", "optimizer.pkl"):
        (folder / name).write_bytes(pickle.dumps(Payload(mark)))
    return folder


def test_the_payloads_would_work(hostile: Path, mark: Path) -> None:
    pickle.loads((hostile / "model.pt").read_bytes())
    assert mark.exists()
    mark.unlink()
    exec((hostile / "modeling_evil.py").read_text())
    assert mark.exists()


def test_sealed_and_restored_in_this_process(
    hostile: Path, mark: Path, cache: NodeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hostile)
    digest = seal(str(hostile), dtype="bfloat16", cache=cache, progress=lambda _: None)
    restore(cache.path(digest))
    assert not mark.exists()
    names = {path.name for path in cache.path(digest).iterdir()}
    assert names == {"manifest.json", "weights.safetensors", "tokenizer.json"}


def test_sealed_by_a_process_that_starts_in_the_folder(
    hostile: Path, mark: Path, cache: NodeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hostile)
    spec = parse_spec({"name": "f", "model": str(hostile)})
    digest = asyncio.run(ProcessSealer(cache).seal(spec, lambda _: None))
    cache.verify(digest)
    assert not mark.exists()


def test_weights_that_are_only_pickles_are_refused(
    hostile: Path, mark: Path, cache: NodeCache
) -> None:
    for path in hostile.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(UnsupportedModel, match="only pickled weights"):
        seal(str(hostile), dtype="bfloat16", cache=cache, progress=lambda _: None)
    with pytest.raises(UnsupportedModel, match="pickles"):
        seal(str(hostile / "model.pt"), dtype="bfloat16", cache=cache, progress=lambda _: None)
    (hostile / "model.safetensors").write_bytes((hostile / "model.pt").read_bytes())  # mislabelled
    with pytest.raises(CorruptSnapshot, match="not a whole safetensors file"):
        seal(str(hostile), dtype="bfloat16", cache=cache, progress=lambda _: None)
    assert not mark.exists()


def test_a_package_is_found_without_running_it(
    tmp_path: Path,
    mark: Path,
    cache: NodeCache,
    write_gguf: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = tmp_path / "evil_models"
    package.mkdir()
    (package / "__init__.py").write_text(f"open({str(mark)!r}, 'w')\n")
    write_gguf().path.rename(package / "model.gguf")
    monkeypatch.syspath_prepend(tmp_path)
    source = "package://evil_models/model.gguf"
    seal(source, dtype="bfloat16", cache=cache, progress=lambda _: None)
    assert not mark.exists()
