"""`glowplug serve`: all of Glowplug on one machine, wired together here and nowhere else.

One asyncio process with the activator and the scaler, and one pod: a child process tree that the
fleet starts and that ends with this process, however this process ends. Nothing here imports torch.
Read `serve`, then `_serve`.
"""

import asyncio
import contextlib
import errno
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path

import uvicorn
import uvloop

from activator.app import build_app
from activator.auth import Identity
from activator.limits import Limits
from glowplug.contracts import Registry
from glowplug.data_folder import DataFolder
from glowplug.errors import CorruptSnapshot, GlowplugError, NotFound
from glowplug.http_protocol import JsonErrorProtocol
from glowplug.keys_file import read_keys
from scaler.app import Scaler
from scaler.budget import Budget
from scaler.decisions_file import KeptDecisions
from scaler.fleets.local import LocalFleet
from scaler.history import TrafficHistory
from scaler.registry import SqliteRegistry
from scaler.traffic import Traffic
from scaler.warm_pool import Pool
from snapshot.adapter_store import AdapterStore
from snapshot.eviction import trim
from snapshot.node_cache import NodeCache
from snapshot.s3_location import parse_location
from snapshot.sealer import ProcessSealer
from snapshot.signatures import read_public_keys
from snapshot.supply import SnapshotSupply

BACKLOG = 2048
DRAIN_S = 15  # how long a stop waits for the requests that run
OPEN_FILES = 65_536  # each request in flight takes two
LOG_BYTES = 32 * 2**20
LOG_FILES = 3

log = logging.getLogger("glowplug")


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """What `glowplug serve` is told."""

    host: str
    port: int  # 0: a free one
    data: Path
    standbys: int
    max_standbys: int
    keys: Path | None  # API keys; None: no authentication
    public_url: str | None  # how clients reach this server; None: as each request's Host says
    log_level: str
    cache_limit_bytes: int | None = None  # of the node cache; None: its disk's
    verify: str = "never"  # how much of a snapshot is checked before it is served
    store: str | None = None  # s3://BUCKET/PREFIX that snapshots are fetched from and pushed to
    store_endpoint: str | None = None  # of an S3-compatible service
    replica_budget: int | None = None  # replicas of all functions together
    memory_budget_bytes: int | None = None  # their memory together
    trust: tuple[Path, ...] = ()  # public keys, of which one must have signed a snapshot


def serve(settings: ServeSettings) -> None:
    """Serve until SIGINT or SIGTERM, then drain and return; a second signal stops at once.

    Raises:
        GlowplugError: the data folder is in use, the port cannot be listened on, or the registry
            or the keys file cannot be read.
    """
    data = DataFolder(settings.data)
    with data.locked(), _listening(settings.host, settings.port) as listener:
        _log_to(data.logs, settings.log_level)
        _raise_open_files()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, data, listener))


async def _serve(settings: ServeSettings, data: DataFolder, listener: socket.socket) -> None:
    """Make the parts, hand each the others, and serve until told to stop."""
    keys = None
    if settings.keys is not None:
        keys = {key: Identity(*who) for key, who in read_keys(settings.keys).items()}
    async with contextlib.AsyncExitStack() as parts:
        registry = SqliteRegistry(data.registry)
        parts.callback(registry.close)
        traffic = Traffic(data.traffic)
        parts.push_async_callback(traffic.stop)
        await traffic.start(registry)
        decisions = KeptDecisions(data.decisions)
        parts.push_async_callback(decisions.stop)
        await decisions.start(registry)
        cache = NodeCache(data.cache)
        cache.set_limit(settings.cache_limit_bytes)
        await asyncio.to_thread(trim, cache)
        supply = _supply(settings, cache)
        parts.push_async_callback(supply.stop)
        await _forget_lost_snapshots(registry, supply, cache)

        fleet = LocalFleet(_pod_command(settings, data), log_path=data.logs / "supervisor.log")
        await fleet.start()
        parts.push_async_callback(fleet.close)

        scaler = Scaler(
            registry=registry,
            fleet=fleet,
            sealer=supply,
            standbys=lambda: fleet.standbys,
            record=traffic.record,
            pool=Pool(least=settings.standbys, most=max(settings.standbys, settings.max_standbys)),
            budget=_budget(settings),
            weights_bytes=_weights_bytes(cache),
            traffic=traffic,
            decisions=decisions.log,
        )
        await scaler.start()
        parts.push_async_callback(scaler.stop)

        app = build_app(
            registry=registry,
            endpoints=scaler.endpoints,
            demand=scaler.demand,
            keys=keys,
            limits=Limits(max_replicas=_max_replicas()),
            public_url=settings.public_url,
            accelerators=lambda: fleet.standbys,
            metrics=[scaler.metrics.text, fleet.series.text],
            history=TrafficHistory(traffic, imported=scaler.forecasts.past_changed),
            forecast=scaler.forecasts.report,
            explanations=scaler.explanations,
        )
        parts.push_async_callback(app.stop)  # where a second signal has ended the server before
        server = _Server(
            uvicorn.Config(
                app,
                http=JsonErrorProtocol,
                ws="none",
                log_config=None,
                log_level="warning",
                access_log=False,  # the activator writes its own
                server_header=False,
                timeout_graceful_shutdown=DRAIN_S,
            )
        )
        await server.serve(sockets=[listener])


def _budget(settings: ServeSettings) -> Budget | None:
    if settings.replica_budget is None and settings.memory_budget_bytes is None:
        return None
    return Budget(replicas=settings.replica_budget, memory_bytes=settings.memory_budget_bytes)


def _weights_bytes(cache: NodeCache) -> Callable[[str], int]:
    """Of a snapshot, 0 while it is not here."""
    known: dict[str, int] = {}

    def of(digest: str) -> int:
        if digest not in known:
            try:
                known[digest] = cache.size_bytes(digest)
            except (NotFound, CorruptSnapshot):  # it is got, or made, again before a start
                return 0
        return known[digest]

    return of


def _max_replicas() -> int:
    """Each computes on all cores: several to a core only wait for each other."""
    return max(8, 4 * len(os.sched_getaffinity(0)))


def _pod_command(settings: ServeSettings, data: DataFolder) -> list[str]:
    return [
        *(sys.executable, "-m", "runtime.pod.supervisor"),
        *("--cache", str(data.cache)),
        *("--standbys", str(settings.standbys)),
        *("--log-dir", str(data.logs)),
        *("--verify", settings.verify),
    ]


def _supply(settings: ServeSettings, cache: NodeCache) -> SnapshotSupply:
    store = None
    if settings.store is not None:
        store = parse_location(settings.store, settings.store_endpoint)
    trusted = read_public_keys(settings.trust) if settings.trust else []
    sealer = ProcessSealer(cache, s3_endpoint=settings.store_endpoint)
    return SnapshotSupply(cache, sealer, store=store, trusted=trusted)


async def _forget_lost_snapshots(
    registry: Registry, supply: SnapshotSupply, cache: NodeCache
) -> None:
    """Have those functions sealed again whose snapshot, or an adapter, was removed while no server
    ran, or is not signed as it must be by now. In a cache with a limit what is missing was evicted,
    and comes back when it is called."""
    evicts = cache.limit_bytes is not None
    for function in await registry.list():
        if function.snapshot is None:
            continue
        spec = function.spec
        reason = None if evicts else _missing_adapter(function.adapters, cache)
        if reason is None and (not evicts or cache.has(function.snapshot)):
            reason = supply.refusal(spec, function.snapshot)
        if reason is not None:
            log.warning("%s: sealing it again: %s", spec.name, reason)
            await registry.set_sealed(spec.name, spec.revision, snapshot=None, failure=None)


def _missing_adapter(digests: Mapping[str, str], cache: NodeCache) -> str | None:
    store = AdapterStore(cache)
    try:
        for digest in digests.values():
            store.path(digest)
    except NotFound as error:
        return error.message
    return None


class _Server(uvicorn.Server):
    """uvicorn, with our line on stdout once it listens and our handling of signals."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say where."""
        await super().startup(sockets)
        for listener in sockets or ():
            sys.stdout.write(f"glowplug listening on {_url(listener)}\n")
            sys.stdout.flush()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """First signal: stop gracefully; second: at once. uvicorn would end by the signal itself,
        before the other parts are closed."""
        loop = asyncio.get_running_loop()
        serving = asyncio.current_task()

        def stop() -> None:
            if self.should_exit and serving is not None:
                serving.cancel()
            self.should_exit = True

        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, stop)
        with contextlib.suppress(asyncio.CancelledError):
            yield


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """A listening socket, bound before anything else starts so that the real port is known."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = "it is in use; stop what listens there or choose another --port"
        else:
            reason = error.strerror or str(error)
        raise GlowplugError(f"cannot listen on {host} port {port}: {reason}") from None
    with listener:
        yield listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _log_to(folder: Path, level: str) -> None:
    """Log to stderr and to a bounded file; stdout stays free for the one line."""
    file = RotatingFileHandler(folder / "serve.log", maxBytes=LOG_BYTES, backupCount=LOG_FILES)
    logging.basicConfig(
        level=level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=[logging.StreamHandler(sys.stderr), file],
    )


def _raise_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
