"""LoRA adapters against peft, and mixed batches against each row alone."""

import queue
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers
from lora import in_peft, save_base, save_with_peft
from tokenizers import Tokenizer
from tokenizers.models import BPE

from glowplug.errors import CorruptSnapshot
from glowplug.spec import Quantization
from runtime.engine.limits import EngineLimits, EngineStats
from runtime.engine.loop import Engine
from runtime.engine.request import GenerationRequest, SamplingParams
from runtime.kernels.adapted import LoraAdapter, adapted
from runtime.kernels.cpu_kernels import CpuKernels, cpu_kernels_supported
from runtime.models.lora import load_adapter
from runtime.models.registry import Model, build_model
from snapshot.adapter_seal import seal_adapter
from snapshot.adapter_store import AdapterStore
from snapshot.node_cache import NodeCache
from snapshot.restore import restore
from snapshot.seal import seal

SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BASES = {
    "llama": transformers.LlamaConfig(**SIZES),
    "qwen2": transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
}
ADAPTERS = {
    "all": {},
    "attention": {"target_modules": ["q_proj", "v_proj"], "r": 3, "lora_alpha": 7},
    "rslora": {"use_rslora": True, "r": 6, "lora_alpha": 4},
    "patterns": {
        "rank_pattern": {"q_proj": 5, r".*layers\.1\..*up_proj": 2},
        "alpha_pattern": {"layers.0.mlp.down_proj": 3, "k_proj": 16},
    },
    "some-layers": {"layers_to_transform": [0, 2]},
    "regex": {"target_modules": r".*layers\.[12]\.mlp\.(gate|down)_proj"},
    "all-linear": {"target_modules": "all-linear", "r": 20},
}
PROMPTS = [[5, 9, 33, 70, 2, 8, 110, 64, 7, 12, 90, 3, 41, 17, 28], [77, 4], [4, 4, 100, 6, 51]]


@dataclass
class House:
    """A sealed base, in peft's hands and in ours, and its adapters by name."""

    folder: Path
    theirs: torch.nn.Module
    ours: Model
    adapters: dict[str, LoraAdapter]

    def tokens_of_peft(self, adapter: str, prompt: list[int], steps: int) -> list[int]:
        tokens = list(prompt)
        with in_peft(self.theirs, self.folder / adapter) as model, torch.inference_mode():
            for _ in range(steps):
                logits = model(torch.tensor([tokens]), use_cache=False).logits
                tokens.append(int(logits[0, -1].argmax()))
        self.last_logits = logits[0]
        return tokens[len(prompt) :]


def make_house(
    folder: Path,
    config: transformers.PretrainedConfig,
    dtype: str,
    names=tuple(ADAPTERS),
    quantization: Quantization = "none",
) -> House:
    theirs = save_base(config, folder / "base")
    cache = NodeCache(folder / "cache")
    digest = seal(
        str(folder / "base"),
        dtype=dtype,
        quantization=quantization,
        cache=cache,
        progress=lambda _: None,
    )
    restored = restore(cache.path(digest))
    ours = build_model(restored.manifest.config, restored.tensors)
    store = AdapterStore(cache)
    adapters = {}
    for n, name in enumerate(names):
        save_with_peft(theirs, folder / name, seed=n, **ADAPTERS[name])
        sealed = seal_adapter(str(folder / name), snapshot=digest, store=store)
        adapters[name] = load_adapter(store.path(sealed), ours)
    return House(folder, theirs, ours, adapters)


@pytest.fixture(scope="module", params=BASES)
def house(request, tmp_path_factory) -> House:
    return make_house(tmp_path_factory.mktemp(request.param), BASES[request.param], "float32")


@pytest.fixture(scope="module", params=["none", "int8", "int4"])
def rounded(request, tmp_path_factory) -> House:
    """In bfloat16, with weights of 16, 8 and 4 bits."""
    folder = tmp_path_factory.mktemp(request.param)
    names = ("all", "attention", "rslora")
    return make_house(folder, BASES["llama"], "bfloat16", names, request.param)


def generate(
    model: Model,
    jobs,
    *,
    together: bool = True,
    max_tokens: int = 8,
    stats: list[EngineStats] | None = None,
    **limits,
):
    """Greedy tokens and logprobs of (prompt, adapter) pairs, and how much of each was cached."""
    outputs: queue.Queue = queue.Queue()
    engine = Engine(
        model,
        Tokenizer(BPE()),
        eos_token_ids=(),
        limits=EngineLimits(**({"kv_cache_bytes": 8 << 20, "block_size": 4} | limits)),
        emit=outputs.put,
    )
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, logprobs=5)
    results: list[list] = [[] for _ in jobs]
    cached = [0] * len(jobs)
    unfinished: set[int] = set()
    engine.start()
    for n, (prompt, adapter) in enumerate(jobs):
        unfinished.add(n)
        engine.submit(
            GenerationRequest(id=str(n), prompt=tuple(prompt), params=params, adapter=adapter)
        )
        while unfinished and (not together or n == len(jobs) - 1):
            for name, delta in outputs.get(timeout=60):
                results[int(name)] += [(one.token, one.logprob, one.top) for one in delta.logprobs]
                cached[int(name)] += delta.cached_tokens
                if delta.finish:
                    assert delta.error is None
                    unfinished.remove(int(name))
    if stats is not None:
        stats.append(engine.stats())
    engine.stop()
    return results, cached


@pytest.mark.parametrize("name", ADAPTERS)
def test_logits_and_greedy_tokens_are_those_of_peft(house, name):
    prompt = PROMPTS[0]
    theirs = house.tokens_of_peft(name, prompt, 8)
    [ours], _ = generate(house.ours, [(prompt, house.adapters[name])])
    assert [token for token, *_ in ours] == theirs
    rows = torch.log_softmax(house.last_logits, dim=-1)[len(prompt) - 1 :]
    for row, (_, _, top) in zip(rows, ours, strict=True):
        for token, logprob in top:
            assert abs(float(row[token]) - logprob) < 1e-4
    [plain], _ = generate(house.ours, [(prompt, None)])
    assert (
        max(abs(a[1] - b[1]) for a, b in zip(plain, ours, strict=True)) > 1e-2
    )  # it does something


def mixed_jobs(house: House) -> list[tuple[list[int], LoraAdapter | None]]:
    """Every prompt with every adapter and with none, neighbours being different."""
    return [(prompt, adapter) for prompt in PROMPTS for adapter in (None, *house.adapters.values())]


def test_a_mixed_batch_gives_what_each_row_gives_alone(house):
    jobs = mixed_jobs(house)
    alone, _ = generate(house.ours, jobs, together=False)
    stats: list[EngineStats] = []
    for limits in (
        {"max_seqs": 24},
        {"max_seqs": 5, "max_batch_tokens": 16},
        {"max_seqs": 24, "kv_cache_bytes": 25 * 6144},  # sequences are preempted
    ):
        mixed, _ = generate(house.ours, jobs, stats=stats, **limits)
        for one, other in zip(alone, mixed, strict=True):
            assert [token for token, *_ in one] == [token for token, *_ in other]
            assert max(abs(a[1] - b[1]) for a, b in zip(one, other, strict=True)) < 1e-4
    assert [each.preemptions > 0 for each in stats] == [False, False, True]
    assert all(each.free_blocks == each.blocks for each in stats)


@pytest.mark.skipif(not cpu_kernels_supported(head_dim=32), reason="needs AVX-512 BF16")
def test_in_bfloat16_it_is_the_same_to_the_last_bit(rounded):
    jobs = mixed_jobs(rounded)
    alone, _ = generate(rounded.ours, jobs, together=False, speculation=False)
    assert len({str(each) for each in alone}) == len(jobs)  # adapters make a difference
    for limits in ({"max_seqs": 24}, {"max_seqs": 3, "max_batch_tokens": 16}):
        assert generate(rounded.ours, jobs, **limits)[0] == alone


@pytest.mark.skipif(not cpu_kernels_supported(head_dim=32), reason="needs AVX-512 BF16")
def test_bfloat16_is_as_near_to_float32_as_without_an_adapter(rounded, tmp_path):
    exact = make_house(tmp_path, BASES["llama"], "float32", ("all",))

    def error(name: str | None) -> float:
        jobs = [
            [(prompt, each.adapters[name] if name else None) for prompt in PROMPTS]
            for each in (rounded, exact)
        ]
        ours, theirs = (
            generate(each.ours, job, max_tokens=1)[0]
            for each, job in zip((rounded, exact), jobs, strict=True)
        )
        pairs = [
            (dict(b[0][2]).get(token), logprob)
            for a, b in zip(ours, theirs, strict=True)
            for token, logprob in a[0][2]
        ]
        return max(abs(want - got) for want, got in pairs if want is not None)

    assert 0 < error("all") < 3 * error(None)


def test_the_prefix_cache_is_never_shared_between_adapters_or_with_the_base(house):
    prompt = PROMPTS[0]
    first, second = house.adapters["all"], house.adapters["rslora"]
    order = [None, first, second, first, None, second]
    alone = [generate(house.ours, [(prompt, adapter)])[0][0] for adapter in order]
    results, cached = generate(house.ours, [(prompt, each) for each in order], together=False)
    assert cached == [0, 0, 0, 12, 12, 12]
    for one, other in zip(alone, results, strict=True):
        assert [token for token, *_ in one] == [token for token, *_ in other]


def test_adapters_are_told_apart_by_content(house, tmp_path):
    """The same content under another name, in another folder, is the same adapter: it shares."""
    first = house.adapters["all"]
    twin = LoraAdapter(digest=first.digest, size_bytes=first.size_bytes, pairs=first.pairs)
    _, cached = generate(house.ours, [(PROMPTS[0], first), (PROMPTS[0], twin)], together=False)
    assert cached == [0, 12]


def test_an_adapter_of_another_model_is_not_bound(house, tmp_path):
    """Deploying makes sure that they fit; a replica looks again."""
    sizes = SIZES | {"num_hidden_layers": 2}
    other = make_house(tmp_path, transformers.LlamaConfig(**sizes), "float32", ("all",))
    small = transformers.LlamaConfig(**SIZES | {"intermediate_size": 64})
    narrow = make_house(tmp_path / "narrow", small, "float32", ("all",))
    path = next((house.folder / "cache" / "adapters").glob("*.safetensors"))
    for model in (other.ours, narrow.ours):
        with pytest.raises(CorruptSnapshot, match="of another model"):
            load_adapter(path, model)


def test_speculation_goes_with_adapters(house):
    """A prompt that repeats itself makes drafts; the tokens are those without speculation."""
    prompt = [5, 9, 33, 70] * 8
    jobs = [(prompt, adapter) for adapter in (None, house.adapters["all"])]
    with_it, _ = generate(house.ours, jobs, max_tokens=40)
    without, _ = generate(house.ours, jobs, max_tokens=40, speculation=False)
    assert [[t for t, *_ in each] for each in with_it] == [
        [t for t, *_ in each] for each in without
    ]


def test_a_batch_without_adapters_runs_on_the_bare_kernels():
    kernels = CpuKernels()
    assert adapted(kernels, ()) is kernels
