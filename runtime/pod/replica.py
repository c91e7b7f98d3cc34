"""The program that serves a model: snapshot → model → engine → OpenAI server.

Run by a pod in its children (runtime/pod/program.py says what each function is for). Its imports
are what the fork server shares with all replicas. In a replica the event loop is the main thread's;
the engine has its own thread.
"""

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from socket import socket
from typing import Any

import numpy as np
import torch
import uvicorn
import uvicorn.lifespan.off
import uvicorn.protocols.http.httptools_impl  # what uvicorn would import when it starts
from llguidance import LLTokenizer
from starlette.types import ASGIApp
from tokenizers import Tokenizer

from glowplug.errors import CorruptSnapshot, GlowplugError
from runtime.engine.loop import Engine, EngineLimits
from runtime.engine.warmup import warm as warm_engine
from runtime.models.registry import build_model
from runtime.pod.program import Settings, Start
from runtime.server.admission import Admission
from runtime.server.app import build_app
from runtime.server.engine_client import EngineClient
from runtime.server.grammar_compiler import grammar_tokenizer
from snapshot.manifest import TOKENIZER, read_manifest
from snapshot.node_cache import NodeCache
from snapshot.restore import restore

_KEEP_ALIVE_S = 600  # the activator keeps its connections
_BACKLOG = 1024
_MAX_TOKENIZERS = 16  # some 20 MB each
_ABORT_LIMIT_S = 1  # to tell those who are still served that it ends


class ModelProgram:
    """Implements runtime.pod.program.Program."""

    def __init__(self, settings: Settings) -> None:
        self._cache = NodeCache(settings.cache)
        self._threads = settings.threads
        # Loading one takes 100 ms and holds the interpreter's lock from beginning to end, so it
        # cannot be done beside anything; children of the fork server inherit these.
        self._tokenizers: OrderedDict[str, Tokenizer] = OrderedDict()
        self._grammar_tokenizers: dict[str, LLTokenizer] = {}  # of some of those
        self._in_fork_server = True
        torch.set_num_threads(1)  # in the fork server: start no thread pool
        torch.set_num_interop_threads(1)
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")

    def expect(self, snapshot: str) -> None:
        """Load its tokenizer; in the fork server also what structured output makes of it, which a
        standby, that may be taken the next moment, leaves to the first request that needs it."""
        tokenizer = self._tokenizer(snapshot)
        while len(self._tokenizers) > _MAX_TOKENIZERS:
            oldest, _ = self._tokenizers.popitem(last=False)
            self._grammar_tokenizers.pop(oldest, None)
        if self._in_fork_server and snapshot not in self._grammar_tokenizers:
            manifest = read_manifest(self._cache.path(snapshot))
            prepared = grammar_tokenizer(
                tokenizer,
                eos_token_ids=manifest.generation.eos_token_ids,
                vocab_size=manifest.config.vocab_size,
            )
            if prepared is not None:
                self._grammar_tokenizers[snapshot] = prepared

    def warm(self) -> None:
        """Own random state (a fork copies it; Python's `random` reseeds itself), threads."""
        self._in_fork_server = False
        torch.manual_seed(secrets.randbits(63))
        np.random.seed(secrets.randbits(32))
        torch.set_num_threads(self._threads)
        warm_engine()

    async def serve(self, start: Start) -> None:
        """Restore the snapshot, serve it, and return when drained.

        Raises:
            NotFound, CorruptSnapshot, UnsupportedModel: the snapshot cannot be served.
            GlowplugError: the engine crashed.
        """
        crashed = asyncio.Event()
        loop = asyncio.get_running_loop()
        client = EngineClient(loop)

        def on_crash() -> None:
            client.engine_failed("the engine of this replica crashed; try again")
            loop.call_soon_threadsafe(crashed.set)

        def accepting() -> None:
            start.stopwatch.lap("server")
            start.ready()

        def on_sleep(asleep: bool) -> None:
            loop.call_soon_threadsafe(start.slept, asleep)

        admission = Admission()
        engine, app = self._restore(
            start, client=client, admission=admission, on_crash=on_crash, on_sleep=on_sleep
        )
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
        sleeping.cancel()
        server.should_exit = True
        await serving
        if crashed.is_set():
            raise GlowplugError("the engine crashed; the pod's log says why")

    def _restore(
        self,
        start: Start,
        *,
        client: EngineClient,
        admission: Admission,
        on_crash: Callable[[], None],
        on_sleep: Callable[[bool], None],
    ) -> tuple[Engine, ASGIApp]:
        """Everything from the snapshot to a running engine and its app; blocks for some ms."""
        watch, assignment = start.stopwatch, start.assignment
        torch.set_num_threads(1)  # small work: several threads would only wait for each other
        restored = restore(self._cache.path(assignment.snapshot))
        watch.lap("map")
        model = build_model(
            restored.manifest.config, restored.tensors, max_context=assignment.max_context
        )
        draft = None
        if restored.draft is not None and restored.manifest.draft is not None:
            # Beyond its own limit a draft model guesses worse; it must not be refused there.
            limit = {"max_positions": restored.manifest.config.max_positions}
            draft = build_model(
                restored.manifest.draft.config.model_copy(update=limit),
                restored.draft,
                max_context=assignment.max_context,
            )
        watch.lap("bind")
        tokenizer = self._tokenizer(assignment.snapshot)
        watch.lap("tokenizer")
        engine = Engine(
            model,
            tokenizer,
            eos_token_ids=restored.manifest.generation.eos_token_ids,
            limits=EngineLimits(
                max_seqs=assignment.max_seqs,
                kv_cache_bytes=assignment.kv_cache_bytes,
                speculation=assignment.speculation == "auto",
                max_context=assignment.max_context,
            ),
            emit=client.emit,
            on_crash=on_crash,
            on_sleep=on_sleep,
            draft=draft,
        )
        torch.set_num_threads(self._threads)
        engine.start()
        client.connect(engine)
        watch.lap("engine")
        app = build_app(
            engine=client,
            tokenizer=tokenizer,
            manifest=restored.manifest,
            model_names=[assignment.function],
            revision=assignment.revision,
            admission=admission,
            grammar_tokenizer=self._grammar_tokenizers.get(assignment.snapshot),
        )
        watch.lap("app")
        return engine, app

    def _tokenizer(self, snapshot: str) -> Tokenizer:
        """The snapshot's tokenizer, kept as the latest used. Raises CorruptSnapshot."""
        tokenizer = self._tokenizers.pop(snapshot, None)
        if tokenizer is None:
            path = self._cache.path(snapshot) / TOKENIZER
            try:
                tokenizer = Tokenizer.from_file(str(path))
            except Exception as error:  # what `tokenizers` raises, whatever the fault
                raise CorruptSnapshot(
                    f"{path}: {error}; remove the snapshot and seal it again"
                ) from None
        self._tokenizers[snapshot] = tokenizer
        return tokenizer


async def _sleep_when_told(told: asyncio.Event, engine: Engine) -> None:
    while True:
        await told.wait()
        told.clear()
        engine.sleep()


async def _drain(admission: Admission, engine: Engine, *, drain_s: float) -> None:
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
                http="httptools",
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
