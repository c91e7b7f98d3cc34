"""A scaler with every neighbour replaced by an in-memory one, on a clock that the test moves."""

import asyncio
import gc
from dataclasses import replace

import pytest

from glowplug.contracts import DemandReport, Function, Replica, ReplicaState, StartKind
from glowplug.errors import NotFound, SnapshotError
from glowplug.spec import FunctionSpec
from scaler.app import Scaler


class Clock:
    """Seconds that pass only when the test says so."""

    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


class MemoryRegistry:
    """glowplug.contracts.Registry in a dict. `broken` makes every call raise, `unreadable` list."""

    def __init__(self):
        self.functions = {}
        self.broken = False
        self.unreadable = False
        self.subscribers = []
        self.puts = 0

    def _check(self):
        if self.broken:
            raise OSError("the disk is on fire")

    def _store(self, function):
        self.functions[function.spec.name] = function
        self._notify(function.spec.name)

    def _notify(self, name):
        for changed in self.subscribers:
            changed(name)

    async def list(self):
        self._check()
        if self.unreadable:
            raise OSError("cannot be read")
        return list(self.functions.values())

    async def get(self, name):
        self._check()
        return self.functions[name]

    async def put(self, spec):
        self._check()
        self.puts += 1
        old = self.functions.get(spec.name)
        kept = old.snapshot if old and old.spec.revision == spec.revision else None
        function = Function(
            spec=spec,
            generation=self.puts,
            snapshot=kept,
            updated_s=float(self.puts),
            adapters=old.adapters if old else {},
        )
        self._store(function)
        return function

    async def delete(self, name):
        self._check()
        if name not in self.functions:
            raise NotFound(name)
        del self.functions[name]
        self._notify(name)

    async def set_sealed(self, name, revision, *, snapshot, failure, adapters=None):
        self._check()
        function = self.functions.get(name)
        if function and function.spec.revision == revision:
            known = function.adapters if adapters is None else adapters
            self._store(replace(function, snapshot=snapshot, failure=failure, adapters=known))
            for _ in range(5):  # others hear of it before the caller does
                await asyncio.sleep(0)

    def subscribe(self, changed):
        self.subscribers.append(changed)


class FakeFleet:
    """glowplug.contracts.Fleet whose replicas do what the test says.

    `assign_error` is raised by the next assignments; `hold` (an Event) keeps them waiting.
    """

    def __init__(self, clock):
        self.clock = clock
        self.replicas = {}
        self.assignments = []
        self.released = []  # (id, drain_s)
        self.prefetched = []
        self.asleep = []  # ids, as often as they were told
        self.assign_error = None
        self.release_error = None
        self.list_error = None
        self.hold = None
        self.cancelled = []  # ids whose assignment was called off
        self.queues = []

    @property
    def live(self):
        """Ids of the replicas that start or are ready, oldest first."""
        live = (ReplicaState.STARTING, ReplicaState.READY)
        return [replica.id for replica in self.replicas.values() if replica.state in live]

    def tell(self, replica):
        if replica.state is ReplicaState.GONE:
            self.replicas.pop(replica.id, None)
        else:
            self.replicas[replica.id] = replica
        for queue in self.queues:
            queue.put_nowait(replica)

    def change(self, replica_id, state, **changes):
        self.tell(replace(self.replicas[replica_id], state=state, **changes))

    def ready(self, replica_id):
        self.change(
            replica_id, ReplicaState.READY, ready_s=self.clock(), stages_ms={"restore": 40.0}
        )

    def gone(self, replica_id, reason=None):
        self.change(replica_id, ReplicaState.GONE, reason=reason)

    def run(self, replica_id, function, revision, state=ReplicaState.READY):
        """A replica that runs already, told to nobody."""
        self.replicas[replica_id] = Replica(
            id=replica_id,
            function=function,
            revision=revision,
            state=state,
            url=f"http://{replica_id}",
            capacity=16,
            start_kind=StartKind.SNAPSHOT,
        )

    def break_watch(self):
        for queue in self.queues:
            queue.put_nowait(ConnectionResetError("the watch broke"))

    async def list(self):
        if self.list_error is not None:
            raise self.list_error
        return list(self.replicas.values())

    async def assign(self, assignment):
        self.assignments.append(assignment)
        if self.hold is not None:
            try:
                await self.hold.wait()
            except asyncio.CancelledError:
                self.cancelled.append(assignment.replica)
                raise
        if self.assign_error is not None:
            raise self.assign_error
        replica = Replica(
            id=assignment.replica,
            function=assignment.function,
            revision=assignment.revision,
            state=ReplicaState.STARTING,
            url=f"http://{assignment.replica}",
            capacity=assignment.max_seqs,
            start_kind=StartKind.SNAPSHOT,
            assigned_s=self.clock(),
        )
        self.tell(replica)
        return replica

    async def sleep(self, replica):
        self.asleep.append(replica)
        self.tell(replace(self.replicas[replica], asleep=True))

    async def release(self, replica, *, drain_s):
        if self.release_error is not None:
            raise self.release_error
        self.released.append((replica, drain_s))
        if replica in self.replicas:
            self.change(replica, ReplicaState.DRAINING)

    async def prefetch(self, snapshot):
        self.prefetched.append(snapshot)

    async def set_standbys(self, count):
        self.standbys_kept = count

    async def watch_forever(self, queue):
        while True:
            change = await queue.get()
            if isinstance(change, Exception):
                self.queues.remove(queue)
                raise change
            yield change

    def watch(self):
        queue = asyncio.Queue()
        self.queues.append(queue)
        return self.watch_forever(queue)


class FakeSealer:
    """Seals at once, unless `hold` (an Event) is set; `errors` are raised one a call, first."""

    def __init__(self):
        self.hold = None
        self.errors = []
        self.here = False  # the snapshot is in the cache: sealing is a look-up
        self.missing = ()  # models that `check` does not find
        self.calls = []
        self.contents = {}  # of adapters, by source
        self.adapter_errors = []
        self.progresses = []
        self.running = 0
        self.most_running = 0

    async def check(self, spec):
        if spec.model in self.missing:
            raise SnapshotError(f"{spec.model}: no such file or folder")

    async def seal(self, spec, progress):
        self.calls.append((spec.name, spec.revision))
        self.progresses.append(progress)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if not self.here:
                progress(0.25)
            if self.hold is not None:
                await self.hold.wait()
            if self.errors:
                raise self.errors.pop(0)
        finally:
            self.running -= 1
        return f"sha256-{spec.revision}"

    async def seal_adapters(self, spec, *, snapshot):
        assert snapshot == f"sha256-{spec.revision}"
        if self.adapter_errors:
            raise self.adapter_errors.pop(0)
        return {
            name: f"sha256-{self.contents.get(source, source)}"
            for name, source in spec.adapters.items()
        }


class House:
    """The scaler and its neighbours. Its own ticks are off: the test says when time passes."""

    def __init__(self, **options):
        self.clock = Clock()
        self.options = options
        self.ahead_s = 0.0  # of the wall clock
        self.registry = MemoryRegistry()
        self.fleet = FakeFleet(self.clock)
        self.sealer = FakeSealer()
        self.arrivals = {}
        self.last_active = {}
        self.scaler = self.new_scaler()

    def new_scaler(self):
        return Scaler(
            registry=self.registry,
            fleet=self.fleet,
            sealer=self.sealer,
            now=self.clock,
            wall=lambda: self.clock() + self.ahead_s,
            tick_s=3600.0,
            retry_s=0.01,
            soon_s=0.0,
            standbys=lambda: {"cpu": 2},
            **self.options,
        )

    async def __aenter__(self):
        await self.scaler.start()
        await self.settle()
        return self

    async def __aexit__(self, *_):
        await self.scaler.stop()

    async def settle(self):
        """Let every task run until all of them wait."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def until(self, condition):
        """Wait for what needs real (milli)seconds, such as a retry."""
        for _ in range(2500):
            if condition():
                return
            await asyncio.sleep(0.002)
        raise TimeoutError("it did not happen within 5 s")

    async def tick(self, seconds=1.0):
        """`seconds` pass, then one round."""
        self.clock.now_s += seconds
        self.scaler.reconciler.round()
        await self.settle()

    async def ticks(self, count):
        for _ in range(count):
            await self.tick()

    async def deploy(self, name="f", **settings):
        await self.registry.put(FunctionSpec(name=name, **{"model": "m.gguf", **settings}))
        await self.settle()

    async def report(self, name="f", *, in_flight=0, queued=0, arrived=0, oldest_wait_s=0.0):
        """One demand report; `arrived` requests more than the last one."""
        self.arrivals[name] = self.arrivals.get(name, 0) + arrived
        if arrived or in_flight or queued:
            self.last_active[name] = self.clock()
        self.scaler.demand.report(
            DemandReport(
                function=name,
                reporter="activator",
                sequence=self.arrivals[name],
                in_flight=in_flight,
                queued=queued,
                oldest_wait_s=oldest_wait_s,
                arrivals=self.arrivals[name],
                last_active_s=self.last_active.get(name, 0.0),
            )
        )
        await self.settle()

    async def ready(self):
        """All replicas that start become ready."""
        for replica in list(self.fleet.replicas.values()):
            if replica.state is ReplicaState.STARTING:
                self.fleet.ready(replica.id)
        await self.settle()

    async def die(self, replica_id, reason="killed by signal 9"):
        self.fleet.gone(replica_id, reason)
        await self.settle()

    def status(self, name="f"):
        return self.scaler.endpoints.status(name)

    def urls(self, name="f"):
        return [replica.id for replica in self.scaler.endpoints.replicas(name)]

    async def one_ready(self, name="f", **settings):
        """Deployed, called, one replica ready with one request in flight; its id."""
        await self.deploy(name, **settings)
        await self.report(name, queued=1, arrived=1)
        await self.ready()
        await self.report(name, in_flight=1)
        (replica,) = self.urls(name)
        return replica


@pytest.fixture
def run():
    """Run a scenario: `run(scenario, **options)` gives it a House, whose scaler has these options,
    and a time limit. No task may fail."""

    def run_scenario(scenario, **options):
        failures = []

        async def main():
            asyncio.get_running_loop().set_exception_handler(lambda _, what: failures.append(what))
            async with asyncio.timeout(20), House(**options) as house:
                await scenario(house)
            gc.collect()  # a failed task is noticed when it is collected

        asyncio.run(main())
        assert failures == []

    return run_scenario
