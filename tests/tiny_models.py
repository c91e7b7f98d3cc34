"""Tiny random checkpoints, run by us and by transformers."""

from pathlib import Path

import tokenizers
import torch
import transformers

from runtime.engine.batch import build_batch
from runtime.engine.blocks import BlockPool
from runtime.engine.kv_cache import KVCache
from runtime.engine.request import GenerationRequest, SamplingParams
from runtime.engine.scheduler import Scheduler
from runtime.engine.sequence import Sequence
from runtime.models.registry import Model, build_model
from snapshot.node_cache import NodeCache
from snapshot.restore import restore
from snapshot.seal import seal

SIZES = {
    "vocab_size": 128,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def save_checkpoint(
    config: transformers.PretrainedConfig,
    folder: Path,
    *,
    kind: type | None = None,
    scale: float = 0.3,
) -> torch.nn.Module:
    """A random model with weights large enough that mistakes show."""
    torch.manual_seed(1)
    made = kind(config) if kind else transformers.AutoModelForCausalLM.from_config(config)
    model = made.float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = scale if parameter.ndim >= 2 else 0.1
            offset = 1.0 if "norm" in name else 0.0
            parameter.copy_(torch.randn_like(parameter) * spread + offset)
    model.save_pretrained(folder)
    vocab = {f"t{n}": n for n in range(SIZES["vocab_size"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="t0"))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "t1", "eos_token": "t2"}')
    return model


def sealed(folder: Path, cache: Path, dtype: str = "float32", quantization: str = "none") -> Model:
    node_cache = NodeCache(cache)
    digest = seal(
        str(folder),
        dtype=dtype,
        quantization=quantization,
        cache=node_cache,
        progress=lambda _: None,
    )
    return bind(cache, digest=digest)


def bind(cache: Path, *, digest: str | None = None, max_context: int | None = None) -> Model:
    """A sealed model, by default the only one in the cache."""
    node_cache = NodeCache(cache)
    if digest is None:
        (digest,) = [snapshot.digest for snapshot in node_cache.list()]
    restored = restore(node_cache.path(digest))
    return build_model(restored.manifest.config, restored.tensors, max_context=max_context)


def run(model: Model, prompts: list[list[int]], *, budget: int, steps: int) -> torch.Tensor:
    """Feed the prompts as one growing batch; the logits of every sampled token, by sequence."""
    cache = KVCache(model.config, blocks=80, block_size=4, dtype=model.dtype, device="cpu")
    scheduler = Scheduler(BlockPool(80), block_size=4, max_seqs=8, max_batch_tokens=budget)
    sequences = []
    for n, prompt in enumerate(prompts):
        request = GenerationRequest(
            id=str(n), prompt=tuple(prompt), params=SamplingParams(max_tokens=steps)
        )
        sequences.append(Sequence(request, None, arrived_s=0.0))
        scheduler.add(sequences[-1])
    rows: dict[str, list[torch.Tensor]] = {seq.id: [] for seq in sequences}
    with torch.inference_mode():
        while scheduler.has_work:
            plan = scheduler.schedule()
            logits = model.forward(build_batch(plan, block_size=4, device="cpu"), cache)
            sampling = iter(logits)
            for chunk in plan.chunks:
                seq = chunk.sequence
                if chunk.samples:
                    row = next(sampling)
                    rows[seq.id].append(row)
                    seq.append(int(row.argmax()))
                scheduler.commit(chunk)
                if seq.generated == steps:
                    scheduler.finish(seq)
    return torch.stack([torch.stack(rows[seq.id]) for seq in sequences])


def reference(model: torch.nn.Module, prompt: list[int], steps: int) -> torch.Tensor:
    """transformers' logits for greedy decoding, without its cache."""
    tokens, rows = list(prompt), []
    with torch.inference_mode():
        for _ in range(steps):
            row = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
            rows.append(row.float())
            tokens.append(int(row.argmax()))
    return torch.stack(rows)


PROMPTS = [[5, 9, 33, 70, 2, 8, 110, 64, 7, 12, 90, 3, 41, 17, 28], [77], [4, 4, 100, 6, 51, 88]]
