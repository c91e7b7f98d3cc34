"""LoRA adapters for tests: PEFT folders with random weights, made by peft or by hand."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import peft
import safetensors.torch
import tokenizers
import torch
import transformers

from snapshot.adapter_config import MODULES
from snapshot.adapter_layout import adapted_parts
from snapshot.model_config import ModelConfig

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def save_base(config: transformers.PretrainedConfig, folder: Path) -> torch.nn.Module:
    """A random model with weights large enough that mistakes show, in float32."""
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.3 if parameter.ndim == 2 else 0.1
            offset = 1.0 if "norm" in name else 0.0
            parameter.copy_(torch.randn_like(parameter) * scale + offset)
    model.save_pretrained(folder)
    vocab = {f"t{n}": n for n in range(config.vocab_size)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="t0"))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "t1", "eos_token": "t2"}')
    return model


def save_with_peft(model: torch.nn.Module, folder: Path, *, seed: int, **settings: Any) -> None:
    """Make an adapter of the model as peft does, fill it with random numbers, save it. The model
    is as before afterwards."""
    config = peft.LoraConfig(**({"r": 4, "lora_alpha": 8, "target_modules": ALL} | settings))
    with _quiet():
        tuned = peft.get_peft_model(model, config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    with _quiet():
        tuned.save_pretrained(str(folder))
        tuned.unload()


@contextmanager
def in_peft(model: torch.nn.Module, folder: Path) -> Iterator[torch.nn.Module]:
    """The model with the adapter, as peft runs it."""
    with _quiet():
        tuned = peft.PeftModel.from_pretrained(model, str(folder)).eval()
        yield tuned
        tuned.unload()


@contextmanager
def _quiet() -> Iterator[None]:
    """peft uses what transformers has deprecated, and warns of what the tests do on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def write_adapter(
    folder: Path, config: ModelConfig, *, seed: int, rank: int = 8, size: float = 0.05
) -> Path:
    """A PEFT folder for any sealed model, written by hand; `size` is how large its numbers are."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for parts in adapted_parts(config).values():
        for part, (outputs, inputs) in parts.items():
            prefix, _, last = part.rpartition(".")
            stem = f"base_model.model.model.{prefix}.{MODULES[last]}"
            for which, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                value = torch.randn(shape, generator=generator) * size
                tensors[f"{stem}.lora_{which}.weight"] = value
    safetensors.torch.save_file(tensors, folder / "adapter_model.safetensors")
    settings = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": rank * 2,
        "target_modules": ALL,
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder
