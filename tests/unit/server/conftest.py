"""A replica's server without a model: a tiny real tokenizer and an engine that plays a script."""

import asyncio
import queue
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest
import uvicorn
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from runtime.engine.request import Delta, FinishReason, GenerationRequest
from runtime.server.adapters import AdapterCache
from runtime.server.admission import Admission
from runtime.server.app import build_app
from runtime.server.engine_client import EngineClient
from runtime.server.engine_port import Emit
from snapshot.encoder_config import AnyConfig
from snapshot.manifest import ChatFormat, EmbeddingFormat, GenerationDefaults, Manifest
from snapshot.model_config import ModelConfig

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
Script = Callable[[GenerationRequest], Sequence[Delta]]


def spoken(*texts: str, finish: FinishReason = FinishReason.STOP) -> list[Delta]:
    """One token for each text, and a last one that ends the sequence."""
    first = {"queue": 1.5, "prefill": 20.25}
    deltas = [
        Delta(text=text, tokens=(number,), stages_ms=first if number == 0 else None)
        for number, text in enumerate(texts)
    ]
    return [*deltas, Delta(tokens=(0,), finish=finish)]


class ScriptedEngine:
    """An EnginePort with its own thread, as the real one has: each step plays one delta of every
    sequence that runs. A script that ends without a finish leaves its sequence running."""

    def __init__(self, emit: Emit, script: Script, *, max_context: int, vocab_size: int) -> None:
        self.max_context = max_context
        self.vocab_size = vocab_size
        self.submitted: list[GenerationRequest] = []
        self.aborted: list[str] = []
        self.saw_abort = asyncio.Event()
        self._saw_submit = asyncio.Event()
        self._emit = emit
        self._script = script
        self._inbox: queue.SimpleQueue[GenerationRequest | str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest) -> None:
        self.submitted.append(request)
        self._inbox.put(request)
        self._saw_submit.set()

    async def has(self, count: int) -> None:
        """Wait until that many sequences have been submitted."""
        while len(self.submitted) < count:
            self._saw_submit.clear()
            await self._saw_submit.wait()

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        self._inbox.put(request_id)
        self.saw_abort.set()

    def close(self) -> None:
        self._inbox.put(None)
        self._thread.join(timeout=10)

    def _loop(self) -> None:
        running: dict[str, Iterator[Delta]] = {}
        while True:
            try:
                message = self._inbox.get(block=not running)
            except queue.Empty:
                message = ""
            if message is None:
                return
            if isinstance(message, GenerationRequest):
                running[message.id] = iter(self._script(message))
                continue  # as many as there are join before the step
            running.pop(message, None)
            batch = []
            for request_id, deltas in list(running.items()):
                delta = next(deltas, None)
                if delta is None or delta.finish is not None:
                    del running[request_id]
                if delta is not None:
                    batch.append((request_id, delta))
            if batch:
                self._emit(batch)


@dataclass
class Replica:
    """Everything a test may want to look at."""

    engine: ScriptedEngine
    client: EngineClient
    admission: Admission
    app: object
    http: httpx.AsyncClient
    address: tuple[str, int] | None = None
    base_url: str = ""


@dataclass
class Settings:
    """What a test may want to change."""

    script: Script = field(default=lambda request: spoken("Hello", " world"))
    max_context: int = 512
    chat: ChatFormat = field(default_factory=lambda: ChatFormat(template=CHATML))
    generation: GenerationDefaults = field(
        default_factory=lambda: GenerationDefaults(eos_token_ids=(1,))
    )
    add_bos: bool = False
    embedding: EmbeddingFormat | None = None
    pooling: str = "auto"
    config: AnyConfig | None = None
    tokenizer: Tokenizer | None = None
    max_body_bytes: int | None = None
    max_running: int = 1024
    adapters: AdapterCache | None = None


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Tokenizer:
    """Byte-level BPE: any text, 300 tokens."""
    return make_tokenizer()


def make_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<|im_end|>", "<|im_start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = ["system user assistant hello world the quick brown fox jumps over the lazy dog"] * 3
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def make_manifest(settings: Settings, vocab_size: int) -> Manifest:
    return Manifest(
        source="test",
        dtype="float32",
        config=settings.config
        or ModelConfig(
            family="llama",
            vocab_size=vocab_size,
            hidden_size=8,
            intermediate_size=8,
            num_layers=1,
            num_heads=1,
            num_kv_heads=1,
            head_dim=8,
            rms_norm_eps=1e-5,
            rope_theta=1e4,
            max_positions=settings.max_context,
            tie_embeddings=True,
        ),
        add_bos=settings.add_bos,
        bos_token_id=0,
        generation=settings.generation,
        chat=settings.chat,
        embedding=settings.embedding,
        files={},
    )


@pytest.fixture
def manifest_for():
    """`manifest_for(vocab_size, **settings)`."""
    return lambda vocab_size, **changes: make_manifest(Settings(**changes), vocab_size)


@pytest.fixture
def replica(tiny_tokenizer):
    """`async with replica(script=...) as r:`: the app, called in process."""

    @asynccontextmanager
    async def start(**changes: object) -> AsyncIterator[Replica]:
        settings = Settings(**changes)
        tokenizer = settings.tokenizer or tiny_tokenizer
        client = EngineClient(asyncio.get_running_loop())
        engine = ScriptedEngine(
            client.emit,
            settings.script,
            max_context=settings.max_context,
            vocab_size=tokenizer.get_vocab_size(),
        )
        client.connect(engine)
        admission = Admission(max_running=settings.max_running)
        app = build_app(
            engine=client,
            tokenizer=tokenizer,
            manifest=make_manifest(settings, tokenizer.get_vocab_size()),
            model_names=["tiny", "alias/of-tiny"],
            revision="0123456789",
            admission=admission,
            adapters=settings.adapters,
            max_body_bytes=settings.max_body_bytes,
            pooling=settings.pooling,
        )
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://replica") as http:
            try:
                async with asyncio.timeout(30):
                    yield Replica(engine, client, admission, app, http)
            finally:
                engine.close()

    return start


@pytest.fixture
def served(replica):
    """As `replica`, behind uvicorn on a real socket; `r.http` goes through it."""

    @asynccontextmanager
    async def start(**changes: object) -> AsyncIterator[Replica]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = listener.getsockname()
            base_url = f"http://127.0.0.1:{address[1]}"
            async with replica(**changes) as r:
                config = uvicorn.Config(r.app, log_config=None, timeout_graceful_shutdown=1)
                server = uvicorn.Server(config)
                serving = asyncio.create_task(server.serve(sockets=[listener]))
                try:
                    async with httpx.AsyncClient(base_url=base_url) as http:
                        r.http, r.address, r.base_url = http, address, base_url
                        yield r
                finally:
                    server.should_exit = True
                    await serving

    return start


@pytest.fixture
def ask(replica):
    """`ask(path, body, **settings)`: the response to one request, and the replica afterwards."""

    def run(path: str, body: object, **changes: object) -> tuple[httpx.Response, Replica]:
        async def main() -> tuple[httpx.Response, Replica]:
            async with replica(**changes) as r:
                if isinstance(body, bytes):
                    response = await r.http.post(path, content=body)
                else:
                    response = await r.http.post(path, json=body)
                return response, r

        return asyncio.run(main())

    return run
