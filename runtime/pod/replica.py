"""The program that serves a model: snapshot → model → engine → OpenAI server.

Run by a pod in its children (runtime/pod/program.py says what each function is for). Its imports
are what the fork server shares with all replicas. In a replica the event loop is the main thread's;
the engine has its own thread.
"""

import asyncio
import copy
import gc
import hashlib
import logging
import secrets
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from socket import socket
from typing import Any

import numpy as np
import torch
import uvicorn
import uvicorn.lifespan.off
from llguidance import LLTokenizer
from starlette.types import ASGIApp
from tokenizers import Tokenizer

from glowplug.contracts import Assignment
from glowplug.errors import CorruptSnapshot, GlowplugError, NotFound
from glowplug.http_protocol import JsonErrorProtocol
from runtime.engine.encoder_loop import EncoderEngine
from runtime.engine.limits import EngineLimits
from runtime.engine.loop import Engine
from runtime.engine.stored_prefixes import FILE as PREFIXES
from runtime.models.lora import load_adapter
from runtime.models.registry import Model, build_encoder
from runtime.pod.accelerator import accelerator
from runtime.pod.decoder import bind_decoder
from runtime.pod.measuring import Measuring
from runtime.pod.program import Settings, Start
from runtime.pod.rehearsal import rehearse, write_toy_snapshot
from runtime.server.adapters import AdapterCache
from runtime.server.admission import Admission
from runtime.server.app import build_app
from runtime.server.engine_client import EngineClient
from runtime.server.grammar_compiler import grammar_tokenizer
from runtime.server.metrics import ReplicaMetrics
from snapshot.adapter_store import AdapterStore
from snapshot.encoder_config import EncoderConfig
from snapshot.manifest import TOKENIZER, read_manifest
from snapshot.node_cache import NodeCache
from snapshot.restore import restore
from snapshot.verification import verify_files

log = logging.getLogger(__name__)

_KEEP_ALIVE_S = 600  # the activator keeps its connections
_BACKLOG = 1024
_MAX_TOKENIZERS = 16  # some 20 MB each
_ABORT_LIMIT_S = 1  # to tell those who are still served that it ends


class ModelProgram:
    """Implements runtime.pod.program.Program."""

    def __init__(self, settings: Settings) -> None:
        self._cache = NodeCache(settings.cache)
        self._verify = settings.verify
        self._in_use = ExitStack()  # as long as the process lives
        self._threads = settings.threads
        self.accelerator = accelerator(
            can_use_cuda=torch.version.cuda is not None, visible=settings.visible_gpus
        )
        # Loading one takes 100 ms and holds the interpreter's lock from beginning to end, so it
        # cannot be done beside anything; children of the fork server inherit these.
        self._tokenizers: OrderedDict[str, Tokenizer] = OrderedDict()
        self._grammar_tokenizers: dict[str, LLTokenizer] = {}  # of some of those
        self._in_fork_server = True
        torch.set_num_threads(1)  # in the fork server: start no thread pool
        torch.set_num_interop_threads(1)
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
        logging.getLogger("glowplug.snapshot").setLevel(logging.INFO)  # how the weights were read

    def expect(self, snapshot: str) -> None:
        """Load its tokenizer; in the fork server also what structured output makes of it, which a
        standby, that may be taken the next moment, leaves to the first request that needs it."""
        tokenizer = self._tokenizer(snapshot)
        while len(self._tokenizers) > _MAX_TOKENIZERS:
            oldest, _ = self._tokenizers.popitem(last=False)
            self._grammar_tokenizers.pop(oldest, None)
        if self._in_fork_server and snapshot not in self._grammar_tokenizers:
            manifest = read_manifest(self._cache.path(snapshot))
            if isinstance(manifest.config, EncoderConfig):
                return  # it generates nothing
            prepared = grammar_tokenizer(
                tokenizer,
                eos_token_ids=manifest.generation.eos_token_ids,
                vocab_size=manifest.config.vocab_size,
            )
            if prepared is not None:
                self._grammar_tokenizers[snapshot] = prepared

    def warm(self, *, hurry: bool) -> None:
        """Own random state (a fork copies it; Python's `random` reseeds itself), threads; without
        `hurry` a whole start and request with a toy."""
        self._in_fork_server = False
        torch.manual_seed(secrets.randbits(63))
        np.random.seed(secrets.randbits(32))
        torch.set_num_threads(self._threads)
        if hurry:
            return
        try:
            self._rehearse()
        except (OSError, RuntimeError, GlowplugError, TimeoutError) as error:
            # It can still serve; only its first request will take longer.
            print(f"no rehearsal: {error or type(error).__name__}", file=sys.stderr)  # noqa: T201
        gc.collect()
        gc.freeze()  # what lives now is never looked at again

    def _rehearse(self) -> None:
        with (
            tempfile.TemporaryDirectory(prefix="glowplug-rehearsal-") as folder,
            ExitStack() as in_use,
        ):
            toy = copy.copy(self)
            toy._in_use = in_use
            toy._verify = "never"
            toy._cache = NodeCache(Path(folder))
            toy._tokenizers = OrderedDict()
            rehearse(toy.serve, snapshot=write_toy_snapshot(toy._cache.root))

    async def serve(self, start: Start) -> None:
        """Restore the snapshot, serve it, and return when drained.

        Raises:
            NotFound, CorruptSnapshot, UnsupportedModel: the snapshot cannot be served.
            GlowplugError: the engine crashed.
        """
        crashed = asyncio.Event()
        loop = asyncio.get_running_loop()
        metrics = ReplicaMetrics(
            function=start.assignment.function,
            revision=start.assignment.revision,
            now=time.perf_counter,
        )
        client = EngineClient(loop, observer=metrics)

        def on_crash() -> None:
            client.engine_failed("the engine of this replica crashed; try again")
            loop.call_soon_threadsafe(crashed.set)

        def accepting() -> None:
            start.stopwatch.lap("server")
            start.ready(max_context=engine.max_context)

        def on_sleep(asleep: bool) -> None:
            loop.call_soon_threadsafe(start.slept, asleep)

        admission = Admission()
        try:
            engine, app = self._restore(
                start,
                client=client,
                admission=admission,
                metrics=metrics,
                on_crash=on_crash,
                on_sleep=on_sleep,
            )
        except CorruptSnapshot as error:  # no other replica must meet it
            self._cache.quarantine(start.assignment.snapshot, error.message)
            raise
        measuring = Measuring(text=metrics.text, send=start.measured)
        metrics.on_change = measuring.changed
        server = _Server(app, accepting=accepting)
        serving = loop.create_task(server.serve(sockets=[start.listener]))
        sleeping = loop.create_task(_sleep_when_told(start.sleep, engine))
        ends: list[asyncio.Future[Any]] = [
            serving,
            loop.create_task(crashed.wait()),
            start.drain,
        ]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if start.drain.done():
            await _drain(admission, engine, drain_s=start.drain.result())
            measuring.flush()  # before what may take long
            if isinstance(engine, Engine):
                await asyncio.to_thread(self._save_prefixes, engine, start.assignment.snapshot)
        sleeping.cancel()
        server.should_exit = True
        await serving
        for end in ends:
            end.cancel()
        measuring.flush()
        if crashed.is_set():
            raise GlowplugError("the engine crashed; the pod's log says why")

    def _restore(
        self,
        start: Start,
        *,
        client: EngineClient,
        admission: Admission,
        metrics: ReplicaMetrics,
        on_crash: Callable[[], None],
        on_sleep: Callable[[bool], None],
    ) -> tuple[Engine | EncoderEngine, ASGIApp]:
        """Everything from the snapshot to a running engine and its app; blocks for some ms."""
        watch, assignment = start.stopwatch, start.assignment
        torch.set_num_threads(1)  # small work: several threads would only wait for each other
        folder = self._in_use.enter_context(self._cache.used(assignment.snapshot))
        if self._verify != "never":
            verify_files(folder, read_manifest(folder), self._verify)
            watch.lap("verify")
        restored = restore(folder)
        watch.lap("map")
        config = restored.manifest.config
        engine: Engine | EncoderEngine
        adapters: AdapterCache | None = None
        if isinstance(config, EncoderConfig):
            encoder = build_encoder(config, restored.tensors)
            watch.lap("bind")
            tokenizer = self._tokenizer(assignment.snapshot)
            watch.lap("tokenizer")
            engine = EncoderEngine(
                encoder, max_context=assignment.max_context, emit=client.emit, on_crash=on_crash
            )
        else:
            model, draft = bind_decoder(restored, config, assignment)
            watch.lap("bind")
            tokenizer = self._tokenizer(assignment.snapshot)
            watch.lap("tokenizer")
            adapters = self._adapters(assignment, model)
            engine = Engine(
                model,
                tokenizer,
                eos_token_ids=restored.manifest.generation.eos_token_ids,
                limits=EngineLimits(
                    max_seqs=assignment.max_seqs,
                    kv_cache_bytes=assignment.kv_cache_bytes,
                    speculation=assignment.speculation == "auto",
                    prefix_snapshot_bytes=assignment.prefix_snapshot_bytes,
                    max_context=assignment.max_context,
                ),
                emit=client.emit,
                prefixes=folder / PREFIXES,
                on_crash=on_crash,
                on_sleep=on_sleep,
                draft=draft,
            )
        torch.set_num_threads(self._threads)
        engine.start()
        client.connect(engine)
        if isinstance(engine, Engine):  # an encoder has no cache, no drafts, no steps to count
            metrics.connect(engine.stats)
        watch.lap("engine")
        app = build_app(
            engine=client,
            tokenizer=tokenizer,
            manifest=restored.manifest,
            model_names=[assignment.function],
            adapters=adapters,
            revision=assignment.revision,
            admission=admission,
            metrics=metrics.text,
            context_note=engine.context_note if isinstance(engine, Engine) else "",
            grammar_tokenizer=self._grammar_tokenizers.get(assignment.snapshot),
            pooling=assignment.pooling,
        )
        watch.lap("app")
        return engine, app

    def _save_prefixes(self, engine: Engine, snapshot: str) -> None:
        """Leave the hottest prompt prefixes to the next replica; without them it is slower."""
        engine.stop()
        try:
            with self._cache.workplace(f"prefixes-{snapshot}") as made:
                if engine.save_prefixes(made):
                    made.rename(self._cache.path(snapshot) / PREFIXES)
        except (OSError, NotFound) as error:
            log.warning("no prompt prefixes are kept: %s", error)

    def _adapters(self, assignment: Assignment, model: Model) -> AdapterCache:
        """Every one of them is held as the snapshot is, for as long as the replica lives.

        Raises:
            NotFound: one is not on this node.
        """
        store = AdapterStore(self._cache)
        for digest in set(assignment.adapters.values()):
            self._in_use.enter_context(store.used(digest))
        return AdapterCache(
            assignment.adapters,
            size_of=store.size_bytes,
            load=lambda digest: load_adapter(store.path(digest), model),
            max_bytes=assignment.adapter_cache_bytes,
        )

    def _tokenizer(self, snapshot: str) -> Tokenizer:
        """The snapshot's tokenizer, kept as the latest used. Raises CorruptSnapshot.

        It is compared with the manifest under every policy: it is small, and outlives its file
        here.
        """
        tokenizer = self._tokenizers.pop(snapshot, None)
        if tokenizer is None:
            path = self._cache.path(snapshot) / TOKENIZER
            try:
                data = path.read_bytes()
            except OSError as error:
                raise CorruptSnapshot(f"{path}: cannot be read ({error.strerror})") from None
            expected = read_manifest(path.parent).files[TOKENIZER].sha256
            if hashlib.sha256(data).hexdigest() != expected:
                raise CorruptSnapshot(
                    f"{path}: its bytes changed since it was sealed; seal its model again"
                )
            try:
                tokenizer = Tokenizer.from_buffer(data)
            except Exception as error:  # what `tokenizers` raises, whatever the fault
                raise CorruptSnapshot(
                    f"{path}: {error}; remove the snapshot and seal it again"
                ) from None
        self._tokenizers[snapshot] = tokenizer
        return tokenizer


async def _sleep_when_told(told: asyncio.Event, engine: Engine | EncoderEngine) -> None:
    while True:
        await told.wait()
        told.clear()
        engine.sleep()


async def _drain(admission: Admission, engine: Engine | EncoderEngine, *, drain_s: float) -> None:
    """Refuse new requests and let those that run finish; over the limit they end with an error."""
    admission.drain()
    with suppress(TimeoutError):
        async with asyncio.timeout(drain_s):
            await admission.idle()
            return
    with suppress(TimeoutError):
        async with asyncio.timeout(_ABORT_LIMIT_S):
            await asyncio.to_thread(engine.stop)
            await admission.idle()


class _Server(uvicorn.Server):
    """uvicorn on a socket that listens already. Leaves signals alone: the pod's are its own."""

    def __init__(self, app: ASGIApp, *, accepting: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=JsonErrorProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_ABORT_LIMIT_S,
            )
        )
        self._accepting = accepting

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        self._accepting()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
