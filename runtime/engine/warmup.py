"""Make a standby warm before it knows its model.

A few steps of a small random decoder load every kernel, start the thread pool and grow the
allocator, so that the first real prefill does not pay for it.
"""

import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE

from glowplug.spec import Dtype
from runtime.engine.batch import build_batch
from runtime.engine.blocks import BlockPool
from runtime.engine.kv_cache import KVCache
from runtime.engine.output import OutputText
from runtime.engine.request import GenerationRequest, SamplingParams
from runtime.engine.sampling import Position, sample
from runtime.engine.scheduler import Scheduler
from runtime.engine.sequence import Sequence
from runtime.models.registry import build_model
from snapshot.layout import tensor_shapes
from snapshot.model_config import ModelConfig

_PROMPTS = (24, 9)  # tokens: one alone, then one beside a decoding sequence
_STEPS = 3
_BLOCK_SIZE = 16

# Kernels are chosen by shape: the sizes of a small model, with few layers and a small vocabulary.
_DECODER = ModelConfig(
    family="llama",
    vocab_size=4096,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=1,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    max_positions=128,
    tie_embeddings=True,
)


def warm(*, dtypes: tuple[Dtype, ...] = ("bfloat16",)) -> None:
    """Run a few steps in each dtype. Takes some tens of milliseconds."""
    for dtype in dtypes:
        _run_steps(getattr(torch, dtype))


@torch.inference_mode()
def _run_steps(dtype: torch.dtype) -> None:
    tensors = {
        name: torch.full(shape, 0.01, dtype=dtype)
        for name, shape in tensor_shapes(_DECODER).items()
    }
    model = build_model(_DECODER, tensors)
    blocks = 2 * _DECODER.max_positions // _BLOCK_SIZE
    cache = KVCache(_DECODER, blocks=blocks, block_size=_BLOCK_SIZE, dtype=dtype, device="cpu")
    scheduler = Scheduler(
        BlockPool(blocks), block_size=_BLOCK_SIZE, max_seqs=len(_PROMPTS), max_batch_tokens=512
    )
    for n, length in enumerate(_PROMPTS):
        params = SamplingParams(max_tokens=_STEPS, temperature=n * 1.0, top_p=0.9)
        request = GenerationRequest(id=str(n), prompt=(1,) * length, params=params)
        text = OutputText(Tokenizer(BPE()), prompt=(), stops=())
        scheduler.add(Sequence(request, text, arrived_s=0.0))
        for _ in range(_STEPS):
            plan = scheduler.schedule()
            logits = model.forward(build_batch(plan, block_size=_BLOCK_SIZE, device="cpu"), cache)
            sampling = [chunk for chunk in plan.chunks if chunk.samples]
            sampled = sample(logits, [Position(chunk.sequence) for chunk in sampling])
            for chunk, one in zip(sampling, sampled, strict=True):
                chunk.sequence.append(one.token)
                scheduler.commit(chunk)
