"""Reconciler: the loop that makes what runs equal what plan() wants; the one writer of replicas.

On the event loop, three tasks for its life: one reads the registry after each change, one follows
the fleet, one does a round on every tick and on every news in between. A round never waits.
Whatever the registry, the fleet or the sealer raises is logged and tried again later; the loop goes
on.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from glowplug.contracts import Fleet, Function, Registry, Sealer
from glowplug.explanation import EventKind
from glowplug.spec import FunctionSpec
from scaler import allotment, rollout
from scaler.breaker import Breaker
from scaler.budget import Budget, share
from scaler.decisions import DecisionLog
from scaler.demand import DemandTable
from scaler.endpoints import ScalerEndpoints
from scaler.launcher import Launcher
from scaler.metrics import ScalerMetrics
from scaler.outlooks import Outlooks
from scaler.plan import learn, plan
from scaler.rates import Shared
from scaler.sealing import Outcome, Sealing
from scaler.state import State, Tracked
from scaler.warm_pool import Pool, WarmPool

_log = logging.getLogger(__name__)


class Reconciler:
    """Writes the state from `start` to `stop`."""

    def __init__(
        self,
        *,
        registry: Registry,
        fleet: Fleet,
        sealer: Sealer,
        state: State,
        demand: DemandTable,
        endpoints: ScalerEndpoints,
        metrics: ScalerMetrics,
        decisions: DecisionLog,
        outlooks: Outlooks,
        now: Callable[[], float],
        tick_s: float,
        retry_s: float,
        soon_s: float,
        pool: Pool | None = None,
        budget: Budget | None = None,
        weights_bytes: Callable[[str], int] = lambda _snapshot: 0,
    ) -> None:
        """`retry_s` is the first wait after a failed call to the registry, fleet or sealer;
        `soon_s` how long it may take to learn that a function has become idle or busy. Without a
        `pool` the fleet keeps the standbys it has. `weights_bytes` is what a snapshot's weights
        take in memory, for the budget."""
        self._pool = WarmPool(pool, now_s=now()) if pool else None
        self._budget = budget
        self._weights_bytes = weights_bytes
        self._registry = registry
        self._state = state
        self._demand = demand
        self._endpoints = endpoints
        self._metrics = metrics
        self._decisions = decisions
        self._outlooks = outlooks
        self._now = now
        self._shared = Shared(since_s=now(), at_s=now())
        self._tick_s = tick_s
        self._retry_s = retry_s
        self._soon_s = soon_s
        self._launcher = Launcher(
            fleet=fleet,
            state=state,
            metrics=metrics,
            decisions=decisions,
            changed=self._changed,
            snapshot_lost=self._snapshot_lost,
            now=now,
            retry_s=retry_s,
        )
        self._sealing = Sealing(
            sealer=sealer,
            registry=registry,
            progress=self._seal_progress,
            working=self._seal_works,
            sealed=self._sealed,
            retry_s=retry_s,
        )
        self._wake = asyncio.Event()
        self._news: set[str] = set()  # functions to look at before the next tick
        self._turned: set[str] = set()  # soon in the news
        self._registry_changed = asyncio.Event()
        self._functions_known = asyncio.Event()
        self._replicas_known = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._forgetting: set[asyncio.Task[None]] = set()
        registry.subscribe(lambda _: self._registry_changed.set())
        demand.subscribe(self._demand_edge)
        demand.subscribe_turns(self._demand_turned)

    @property
    def shared(self) -> Shared:
        """What is learned over all functions."""
        return self._shared

    async def start(self) -> None:
        """Read what is deployed and what runs, then begin. Returns once both are known."""
        self._registry_changed.set()
        self._tasks.append(asyncio.create_task(self._follow_registry(), name="scaler registry"))
        following = self._launcher.follow(known=self._replicas_known.set)
        self._tasks.append(asyncio.create_task(following, name="scaler fleet"))
        await self._functions_known.wait()
        await self._replicas_known.wait()
        self._tasks.append(asyncio.create_task(self._run(), name="scaler rounds"))

    async def stop(self, *, drain_s: float | None = None) -> None:
        """End the loop. Replicas go on, unless `drain_s` is given: then all are released."""
        tasks = [*self._tasks, *self._forgetting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._sealing.stop()
        await self._launcher.stop(drain_s=drain_s)

    def round(self, names: Collection[str] | None = None) -> None:
        """Decide for these functions, or on a tick for all; carry out and tell."""
        now_s, functions, replicas = self._now(), self._state.functions, self._state.replicas
        if names is None:
            self._sealing.ensure(tracked.function for tracked in functions.values())
            self._launcher.release_again()
            names = {*functions, *(entry.replica.function for entry in replicas)}
        for name in names:
            if name not in functions:
                self._release_all(name)
        chosen = {name: functions[name] for name in names if name in functions}
        demands = {name: self._demand.take(name) for name in chosen}
        decisions = plan(
            now_s,
            demands,
            history={
                name: tracked.decision.history
                for name, tracked in chosen.items()
                if tracked.decision
            },
            specs={name: tracked.function.spec for name, tracked in chosen.items()},
            fleet={
                name: rollout.count(
                    replicas.of(name),
                    tracked.revision,
                    failing=tracked.breaker.failing or tracked.function.failure is not None,
                )
                for name, tracked in chosen.items()
            },
            outlook=self._outlooks.look(chosen.values(), now_s),
            shared=self._shared,
        )
        self._shared = learn(self._shared, now_s, decisions.values())
        for name, tracked in chosen.items():
            decision = decisions[name]
            if decision.desired != tracked.desired:
                _log.info("%s: %s", name, decision.reason)
            self._decisions.decided(tracked, decision, now_s)
            self._metrics.usage.touch(name)  # reporters that were silent are gone from the demand
            tracked.decision = decision
            self._launcher.release_stuck(tracked)
        for name in chosen.keys() | self._allot(now_s):
            self._carry_out(functions[name], now_s)
            self._endpoints.refresh(name)

    def _allot(self, now_s: float) -> set[str]:
        """Share the budget out anew; the functions that get another share than before."""
        if self._budget is None:
            return set()
        functions = self._state.functions
        wants = allotment.claims(
            functions.values(),
            replicas=self._state.replicas,
            demand=self._demand,
            weights_bytes=self._weights_bytes,
            now_s=now_s,
        )
        changed = set()
        for name, allotted in share(wants, self._budget).items():
            tracked = functions[name]
            if allotted != tracked.share:
                changed.add(name)
                if allotted.reason and allotted.reason != (tracked.share and tracked.share.reason):
                    _log.info("%s: %s", name, allotted.reason)
                    self._decisions.note(name, EventKind.SHORT, allotted.reason)
                tracked.share = allotted
        return changed

    def fill_pool(self) -> None:
        """Have the fleet keep as many standbys as starts are to be expected."""
        if self._pool is None:
            return
        functions, replicas = self._state.functions.values(), self._state.replicas
        at_zero = [tracked for tracked in functions if replicas.at_zero(tracked.name)]
        count = self._pool.follow(at_zero, now_s=self._now(), shared=self._shared)
        if count is not None:
            self._launcher.keep_standbys(count)

    def _release_all(self, function: str) -> None:
        for entry in self._state.replicas.of(function):
            if not entry.released:
                self._launcher.release(entry, why="its function is deleted")

    def _carry_out(self, tracked: Tracked, now_s: float) -> None:
        snapshot, share = tracked.function.snapshot, tracked.share
        why = tracked.decision.reason if tracked.decision else ""
        if share is not None and share.reason and share.replicas < tracked.desired:
            why = share.reason
        if snapshot is not None and tracked.desired == 0:  # nobody has waited for it
            tracked.got = False
        situation = rollout.Situation(
            revision=tracked.revision,
            sealed=snapshot is not None,
            desired=tracked.allowed,
            busy=self._demand.in_flight(tracked.name) + self._demand.queued(tracked.name) > 0,
            may_start=tracked.breaker.may_start(now_s),
            failing=tracked.breaker.failing,
        )
        moves = rollout.moves(self._state.replicas.of(tracked.name), situation, why=why)
        for entry, reason in moves.releases:
            self._launcher.release(entry, why=reason)
        if snapshot is not None:
            for _ in range(moves.starts if share is None else min(moves.starts, share.starts)):
                self._launcher.start(tracked, snapshot=snapshot)
        self._have_sleep(tracked)

    def _have_sleep(self, tracked: Tracked) -> None:
        """All of an idle function, where its spec says so; the newest, where the budget does."""
        ready = [entry for entry in self._state.replicas.of(tracked.name) if entry.ready]
        must = len(ready)
        if tracked.decision is None or not tracked.decision.sleep:
            must = tracked.share.asleep if tracked.share else 0
        for entry in ready[: len(ready) - must]:
            entry.told_to_sleep = False
        for entry in ready[len(ready) - must :]:
            if not entry.told_to_sleep:
                self._launcher.sleep(entry)

    async def _run(self) -> None:
        """All functions on every tick, and between ticks only those with news, or with a floor that
        begins or ends: a cold start must not wait for a thousand others."""
        loop = asyncio.get_running_loop()
        tick_at_s = loop.time()
        while True:
            self._wake.clear()
            names, self._news = self._news | self._outlooks.due(self._now()), set()
            is_tick = loop.time() >= tick_at_s
            if is_tick:
                tick_at_s = loop.time() + self._tick_s
            try:
                self.round(None if is_tick else names)
                if is_tick:
                    self.fill_pool()
            except Exception:
                _log.exception("a round failed; the next one follows")
            edge_s = loop.time() + self._outlooks.next_edge_s - self._now()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(tick_at_s, edge_s)):
                    await self._wake.wait()

    def _has_news(self, function: str) -> None:
        self._news.add(function)
        self._wake.set()

    def _demand_edge(self, function: str) -> None:
        """Someone waits: at zero do not let the tick pass first."""
        if self._state.replicas.at_zero(function):
            self._has_news(function)

    def _demand_turned(self, function: str) -> None:
        """It has become idle, or busy: its idle times are learned from, and are often shorter than
        a tick. Nobody waits for that, so a caller of many short requests costs no round each."""
        if not self._turned:
            asyncio.get_running_loop().call_later(self._soon_s, self._look_at_turned)
        self._turned.add(function)

    def _look_at_turned(self) -> None:
        self._news |= self._turned
        self._turned.clear()
        self._wake.set()

    def _changed(self, function: str) -> None:
        """Its replicas, its spec or its snapshot."""
        self._endpoints.refresh(function)
        self._has_news(function)

    async def _follow_registry(self) -> None:
        while True:
            await self._registry_changed.wait()
            self._registry_changed.clear()
            try:
                self._take_functions(await self._registry.list())
            except Exception:
                _log.exception("the registry cannot be read")
                self._registry_changed.set()
                await asyncio.sleep(self._retry_s)

    def _take_functions(self, functions: Sequence[Function]) -> None:
        known = self._state.functions
        for function in functions:
            name = function.spec.name
            tracked = known.get(name)
            if tracked is None:
                known[name] = Tracked(function=function)
                self._decisions.deployed(function, starting=not self._functions_known.is_set())
            elif function != tracked.function:
                if function.updated_s != tracked.function.updated_s:  # deployed again: try again
                    self._decisions.deployed(function)
                    tracked.breaker = Breaker()
                    tracked.recovering = tracked.got = False
                sealed = function.snapshot is not None or function.failure is not None
                if sealed or function.revision != tracked.revision:
                    tracked.sealing_progress = None
                self._update(tracked, function)
            else:
                continue
            self._changed(name)
        for name in known.keys() - {function.spec.name for function in functions}:
            self._release_all(name)  # while its drain limit is known
            del known[name]
            self._demand.forget(name)
            self._metrics.forget(name)
            self._decisions.forget(name)
            self._outlooks.forget(name)
            self._endpoints.refresh(name)
        self._sealing.ensure(functions)
        self._functions_known.set()

    def _update(self, tracked: Tracked, function: Function) -> None:
        if function.snapshot is not None and function.snapshot != tracked.function.snapshot:
            self._launcher.prefetch(function.snapshot)  # just sealed: calls are likely soon
            digest = function.snapshot.removeprefix("sha256-")[:12]
            self._decisions.note(tracked.name, EventKind.SEALED, f"as {digest}")
        if function.failure is not None and function.failure != tracked.function.failure:
            self._decisions.note(tracked.name, EventKind.SEAL_FAILED, function.failure)
        tracked.function = function

    def _snapshot_lost(self, tracked: Tracked) -> bool:
        """Have the function's snapshot made or fetched again, as after a deploy. The first time it
        is no failed start: those who wait go on waiting. From then on, until a replica is ready,
        it is one too, so that a snapshot that stays broken comes to rest."""
        function, is_first = tracked.function, not tracked.recovering
        if function.snapshot is not None:
            tracked.recovering = tracked.got = True
            self._update(tracked, replace(function, snapshot=None))
            self._forgetting.add(task := asyncio.create_task(self._forget_snapshot(function)))
            task.add_done_callback(self._forgetting.discard)
            self._sealing.ensure(each.function for each in self._state.functions.values())
        return is_first

    async def _forget_snapshot(self, function: Function) -> None:
        spec = function.spec
        try:
            await self._registry.set_sealed(spec.name, spec.revision, snapshot=None, failure=None)
        except Exception:  # the next start fails in the same way, and this is tried again
            _log.exception("%s: the registry did not forget its lost snapshot", spec.name)
            self._registry_changed.set()

    def _seal_works(self, name: str) -> None:
        if name in self._state.functions:
            self._state.functions[name].got = True

    def _seal_progress(self, name: str, done: float) -> None:
        if name in self._state.functions:
            self._state.functions[name].sealing_progress = done
            self._endpoints.refresh(name)

    def _sealed(self, spec: FunctionSpec, outcome: Outcome) -> None:
        """Known here before the registry's own notice, so that no second seal begins."""
        tracked = self._state.functions.get(spec.name)
        if tracked is not None and tracked.function.spec.revision == spec.revision:
            tracked.sealing_progress = None
            function = tracked.function
            adapters = function.adapters if outcome.adapters is None else outcome.adapters
            self._update(
                tracked,
                replace(
                    function,
                    snapshot=outcome.snapshot,
                    failure=outcome.failure,
                    adapters=adapters,
                ),
            )
            self._changed(spec.name)
