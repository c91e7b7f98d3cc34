"""How long peers take to a first token, from a ready Python process and from nothing.

Used by coldstart.py; each start is a process of its own that runs this file:

    python first_token.py KIND MODEL PROMPT
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONTEXT = 2048
LIMIT_S = 300.0


def measure_peers(
    peers: list[str], model: Path, *, prompt: str, runs: int
) -> dict[str, dict[str, float]]:
    """Medians and minima over `runs` starts of each peer, in turn, with the model file in the page
    cache and (`cold_...`) dropped from it; `KIND=ENVIRONMENT` or `KIND`."""
    from reading import drop, warm

    figures: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / model.name  # one that nobody else has mapped
        shutil.copyfile(model, own)
        for peer in peers * runs:
            kind, _, environment = peer.partition("=")
            if kind not in _FIRST_TOKEN:
                raise SystemExit("--peer takes llama-cpp[=ENVIRONMENT] or transformers[=…]")
            python = f"{environment}/bin/python" if environment else sys.executable
            for prefix, prepare in (("", warm), ("cold_", drop)):
                prepare([own])
                for name, ms in _start(python, kind, own, prompt).items():
                    figures.setdefault(kind, {}).setdefault(prefix + name, []).append(ms)
    return {
        kind: {
            **{name: round(statistics.median(values), 1) for name, values in rows.items()},
            "ready_process_min_ms": round(min(rows["ready_process_ms"]), 1),
        }
        for kind, rows in figures.items()
    }


def _start(python: str, kind: str, model: Path, prompt: str) -> dict[str, float]:
    began_s = time.perf_counter()
    child = subprocess.run(
        [python, __file__, kind, str(model), prompt],
        stdout=subprocess.PIPE,
        check=True,
        timeout=LIMIT_S,
    )
    told = json.loads(child.stdout.decode().strip().rpartition("\n")[2])
    return {
        "ready_process_ms": told["ready_process_ms"],
        # The clock is the machine's, so the child's reading of it counts from our beginning.
        "from_nothing_ms": (told["first_token_s"] - began_s) * 1e3,
    }


def _llama_cpp(model: Path, prompt: str) -> float:
    """When the process was ready (time.perf_counter()); returns after the first token."""
    import os

    import llama_cpp

    ready_s = time.perf_counter()
    threads = len(os.sched_getaffinity(0))
    llama = llama_cpp.Llama(
        str(model),
        n_ctx=CONTEXT,
        n_threads=threads,
        n_threads_batch=threads,
        use_mmap=True,
        verbose=False,
    )
    messages = [{"role": "user", "content": prompt}]
    for chunk in llama.create_chat_completion(messages, max_tokens=8, temperature=0.0, stream=True):
        if chunk["choices"][0]["delta"].get("content"):
            return ready_s
    raise SystemExit("no token")


def _transformers(model: Path, prompt: str) -> float:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ready_s = time.perf_counter()
    tokenizer = AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name)
    loaded = AutoModelForCausalLM.from_pretrained(
        model.parent, gguf_file=model.name, dtype=torch.float32
    )
    messages = [{"role": "user", "content": prompt}]
    inputs = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        loaded.generate(**inputs, max_new_tokens=1, do_sample=False)
    return ready_s


_FIRST_TOKEN = {"llama-cpp": _llama_cpp, "transformers": _transformers}


def _main() -> None:
    kind, model, prompt = sys.argv[1:]
    ready_s = _FIRST_TOKEN[kind](Path(model), prompt)
    first_s = time.perf_counter()
    print(json.dumps({"ready_process_ms": (first_s - ready_s) * 1e3, "first_token_s": first_s}))


if __name__ == "__main__":
    _main()
