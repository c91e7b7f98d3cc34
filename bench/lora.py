"""What LoRA adapters cost a decoding step, and what it takes to load one.

    python bench/lora.py [--rounds 40] [--rank 16] [--json]

In process, on SmolLM2 in bfloat16: batches of 1, 8 and 16 decoding sequences, without adapters, all
with the same one, and each with its own, in turn; the median step of each. Loading is from a node
cache whose files are in memory, as for the first request that names an adapter.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import safetensors.torch
import torch
from servers import MODEL
from tokenizers import Tokenizer
from tokenizers.models import BPE

from runtime.engine.batch import build_batch
from runtime.engine.blocks import BlockPool
from runtime.engine.kv_cache import KVCache
from runtime.engine.output import OutputText
from runtime.engine.request import GenerationRequest, SamplingParams
from runtime.engine.scheduler import Scheduler
from runtime.engine.sequence import Sequence
from runtime.kernels.adapted import LoraAdapter
from runtime.models.lora import load_adapter
from runtime.models.registry import Model, build_model
from snapshot.adapter_config import MODULES
from snapshot.adapter_layout import adapted_parts
from snapshot.adapter_seal import seal_adapter
from snapshot.adapter_store import AdapterStore
from snapshot.model_config import ModelConfig
from snapshot.node_cache import NodeCache
from snapshot.restore import restore
from snapshot.seal import seal

PROMPT_TOKENS = 100
SIZES = (1, 8, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, adapters, load_ms = prepare(Path(folder), rank=options.rank, count=max(SIZES))
    batches = {
        (rows, kind): Decoding(model, chosen)
        for rows in SIZES
        for kind, chosen in (
            ("none", [None] * rows),
            ("same", [adapters[0]] * rows),
            ("own", adapters[:rows]),
        )
    }
    times_ms: dict[tuple[int, str], list[float]] = {key: [] for key in batches}
    with torch.inference_mode():
        for _ in range(options.rounds):
            for key, decoding in batches.items():
                times_ms[key].append(decoding.step_ms())
    steps = {key: statistics.median(times) for key, times in times_ms.items()}
    result = {
        "load_ms": round(load_ms, 1),
        "adapter_bytes": adapters[0].size_bytes,
        "step_ms": {f"{rows} {kind}": round(ms, 2) for (rows, kind), ms in steps.items()},
    }
    print(f"rank {options.rank}: {adapters[0].size_bytes >> 10} KiB, loaded in {load_ms:.1f} ms")
    for rows in SIZES:
        none, same, own = (steps[rows, kind] for kind in ("none", "same", "own"))
        print(
            f"{rows:2} rows: {none:6.2f} ms without, {same:6.2f} ({same / none:.2f}) with one, "
            f"{own:6.2f} ({own / none:.2f}) with one each"
        )
    if options.json:
        print(json.dumps(result))


def prepare(folder: Path, *, rank: int, count: int) -> tuple[Model, list[LoraAdapter], float]:
    """The model, its adapters, and the median milliseconds to load one."""
    cache = NodeCache(folder / "cache")
    snapshot = seal(MODEL, dtype="bfloat16", cache=cache, progress=lambda _: None)
    restored = restore(cache.path(snapshot))
    model = build_model(restored.manifest.config, restored.tensors)
    store = AdapterStore(cache)
    adapters, times_ms = [], []
    for n in range(count):
        write_adapter(folder / f"a{n}", restored.manifest.config, rank=rank, seed=n)
        digest = seal_adapter(str(folder / f"a{n}"), snapshot=snapshot, store=store)
        started_s = time.perf_counter()
        adapters.append(load_adapter(store.path(digest), model))
        times_ms.append((time.perf_counter() - started_s) * 1e3)
    return model, adapters, statistics.median(times_ms)


def write_adapter(folder: Path, config: ModelConfig, *, rank: int, seed: int) -> None:
    """A PEFT folder with random weights for every projection."""
    folder.mkdir()
    torch.manual_seed(seed)
    tensors = {}
    for parts in adapted_parts(config).values():
        for part, (outputs, inputs) in parts.items():
            prefix, _, last = part.rpartition(".")
            stem = f"base_model.model.model.{prefix}.{MODULES[last]}"
            tensors[f"{stem}.lora_A.weight"] = torch.randn(rank, inputs) * 0.05
            tensors[f"{stem}.lora_B.weight"] = torch.randn(outputs, rank) * 0.05
    safetensors.torch.save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank}
    (folder / "adapter_config.json").write_text(json.dumps(settings))


class Decoding:
    """A batch of sequences past their prompts."""

    def __init__(self, model: Model, adapters: list[LoraAdapter | None]) -> None:
        blocks = 20 * len(adapters)
        self._model = model
        self._kv = KVCache(
            model.config, blocks=blocks, block_size=16, dtype=model.dtype, device="cpu"
        )
        self._scheduler = Scheduler(
            BlockPool(blocks), block_size=16, max_seqs=len(adapters), max_batch_tokens=4096
        )
        for n, adapter in enumerate(adapters):
            request = GenerationRequest(
                id=str(n),
                prompt=tuple(range(100 + n, 100 + n + PROMPT_TOKENS)),
                params=SamplingParams(max_tokens=200),
                adapter=adapter,
            )
            text = OutputText(Tokenizer(BPE()), prompt=(), stops=())
            self._scheduler.add(Sequence(request, text, arrived_s=0.0))
        with torch.inference_mode():
            self.step_ms()

    def step_ms(self) -> float:
        """Run one step; the time of the batch and the forward pass."""
        plan = self._scheduler.schedule()
        started_s = time.perf_counter()
        batch = build_batch(plan, block_size=16, device="cpu")
        logits = self._model.forward(batch, self._kv)
        took_ms = (time.perf_counter() - started_s) * 1e3
        for chunk, token in zip(plan.chunks, logits.argmax(-1).tolist(), strict=True):
            chunk.sequence.append(token)
            self._scheduler.commit(chunk)
        return took_ms


if __name__ == "__main__":
    main()
