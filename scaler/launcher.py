"""Launcher: starts and releases replicas through the fleet, and follows what becomes of them.

Used by the reconciler, on its loop. No method waits: each call to the fleet is a task of its own,
so a slow replica delays nobody else. What the fleet raises is logged; a start that fails goes to
the function's breaker, a release that fails is sent again in the next round.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from glowplug.contracts import Assignment, Fleet, Replica, ReplicaState
from glowplug.errors import GlowplugError
from glowplug.explanation import EventKind
from glowplug.spec import FunctionSpec
from scaler.decisions import DecisionLog
from scaler.metrics import ScalerMetrics
from scaler.state import Entry, State, Tracked

# For replicas whose function was deleted before this scaler started: its own limit is not known.
_UNKNOWN_DRAIN_S = float(FunctionSpec.model_fields["request_timeout_s"].default)

_log = logging.getLogger(__name__)


class Launcher:
    """Writes the replicas, and the start results of functions, into the state."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        state: State,
        metrics: ScalerMetrics,
        decisions: DecisionLog,
        changed: Callable[[str], None],
        snapshot_lost: Callable[[Tracked], bool],
        now: Callable[[], float],
        retry_s: float,
    ) -> None:
        """`changed(function)` is called after each change of its replicas; `snapshot_lost` when one
        of the current revision did not find its snapshot whole: True means that this is taken care
        of. `retry_s` is the wait after the fleet could not be followed."""
        self._fleet = fleet
        self._state = state
        self._metrics = metrics
        self._decisions = decisions
        self._changed = changed
        self._snapshot_lost = snapshot_lost
        self._now = now
        self._retry_s = retry_s
        self._given_up: set[str] = set()  # ids the fleet may still report, of failed assignments
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, tracked: Tracked, *, snapshot: str) -> None:
        """Ask for one replica of the current revision; it counts as starting from now on."""
        spec = tracked.function.spec
        assignment = Assignment(
            replica=f"{spec.name}-{secrets.token_hex(4)}",
            function=spec.name,
            revision=tracked.revision,
            snapshot=snapshot,
            max_context=spec.max_context,
            max_seqs=spec.max_seqs,
            kv_cache_bytes=spec.kv_cache_bytes,
            speculation=spec.speculation,
            prefix_snapshot_bytes=spec.prefix_snapshot_bytes,
            pooling=spec.pooling,
            adapters=tracked.function.adapters,
            adapter_cache_bytes=spec.adapter_cache_bytes,
            accelerator=spec.accelerator,
        )
        _log.info("%s: starting replica %s", spec.name, assignment.replica)
        self._note(EventKind.STARTING, spec.name, assignment.replica, "")
        entry = self._state.replicas.expect(assignment, now_s=self._now(), cold=tracked.got)
        entry.pending = self._spawn(self._assign(assignment))

    def sleep(self, entry: Entry) -> None:
        """Have it give its KV memory back, if it is as idle as it seems."""
        entry.told_to_sleep = True
        self._spawn(self._tell_sleep(entry.replica.id))

    def release(self, entry: Entry, *, why: str, drain_s: float | None = None) -> None:
        """Let it finish what it does, then end it. From now on it takes no requests.

        `drain_s` is by default the function's request timeout: nothing in flight has longer.
        """
        replica = entry.replica
        _log.info("%s: releasing replica %s: %s", replica.function, replica.id, why)
        self._note(EventKind.RELEASED, replica.function, replica.id, why)
        if drain_s is None:
            drain_s = self._drain_s(replica.function)
        if entry.pending is not None:  # the fleet may not know it yet, so it may never report it
            entry.pending.cancel()
            self._give_up(entry)
        else:
            self._state.replicas.release(entry)
            self._spawn(self._tell_release(replica.id, drain_s=drain_s))
        self._changed(replica.function)

    def release_stuck(self, tracked: Tracked) -> None:
        """End replicas that take longer to start than anyone waits: those starts have failed."""
        limit_s = tracked.function.spec.start_timeout_s
        for entry in self._state.replicas.of(tracked.name):
            if entry.starting and self._now() - entry.since_s > limit_s:
                cause = f"it was not ready within {limit_s:g} s (start_timeout_s)"
                self.release(entry, why=cause, drain_s=0.0)
                self._start_failed(entry.replica, cause)

    def release_again(self) -> None:
        """Repeat the releases that the fleet did not take."""
        for entry in self._state.replicas:
            if entry.unreleased:
                entry.unreleased = False
                drain_s = self._drain_s(entry.replica.function)
                self._spawn(self._tell_release(entry.replica.id, drain_s=drain_s))

    def keep_standbys(self, count: int) -> None:
        """Have the fleet keep so many."""
        self._spawn(self._tell_standbys(count))

    def prefetch(self, snapshot: str) -> None:
        """Tell the fleet that a first assignment of this snapshot is likely soon."""
        self._spawn(self._tell_prefetch(snapshot))

    async def follow(self, known: Callable[[], None]) -> None:
        """Take over every change that the fleet tells, for ever; `known()` after each full list."""
        table = self._state.replicas
        while True:
            try:
                changes = self._fleet.watch()  # before the list, so that nothing falls between
                confirmed = [entry for entry in table if entry.pending is None]
                self._take_list(await self._fleet.list(), confirmed)
                known()
                async for replica in changes:
                    self.replica_changed(replica)
                _log.warning("the fleet's watch has ended; following it anew")
            except Exception:
                _log.exception("the fleet cannot be followed")
            await asyncio.sleep(self._retry_s)

    async def stop(self, *, drain_s: float | None) -> None:
        """End all calls to the fleet; then release every replica, if `drain_s` is given."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if drain_s is not None:
            for entry in self._state.replicas:
                self._state.replicas.release(entry)
                await self._tell_release(entry.replica.id, drain_s=drain_s)

    def replica_changed(self, replica: Replica) -> None:
        """One change, from the fleet's watch or list or as the answer to an assignment."""
        table = self._state.replicas
        entry = table.get(replica.id)
        if replica.state is ReplicaState.GONE:
            self._given_up.discard(replica.id)
            if entry is not None:
                reason = replica.reason or "it ended by itself"
                self._gone(entry, reason, snapshot_lost=replica.snapshot_lost)
            return
        if replica.id in self._given_up:
            if replica.state is not ReplicaState.DRAINING:
                self._spawn(self._tell_release(replica.id, drain_s=0.0))
            return
        if entry is None:
            _log.info("%s: found replica %s, %s", replica.function, replica.id, replica.state)
            table.adopt(replica, now_s=self._now())
        else:
            was_ready, was_asleep = entry.ready_at_s is not None, entry.replica.asleep
            if not table.update(entry, replica, now_s=self._now()):
                return
            if entry.ready and not was_ready:
                self._became_ready(entry)
            if replica.asleep != was_asleep:
                kind = EventKind.SLEPT if replica.asleep else EventKind.WOKE
                self._note(kind, replica.function, replica.id, "")
        self._changed(replica.function)

    async def _assign(self, assignment: Assignment) -> None:
        table = self._state.replicas
        try:
            replica = await self._fleet.assign(assignment)
        except Exception as error:
            if isinstance(error, GlowplugError):
                cause = error.message
            else:
                cause = f"{type(error).__name__}: {error}"
                _log.exception("%s: the fleet failed on an assignment", assignment.function)
            entry = table.get(assignment.replica)
            if entry is not None:  # else the fleet has told of its end already
                self._give_up(entry)
                self._start_failed(entry.replica, cause)
        else:
            entry = table.get(assignment.replica)
            if entry is not None:
                entry.pending = None
                self.replica_changed(replica)

    async def _tell_sleep(self, replica: str) -> None:
        try:
            await self._fleet.sleep(replica)
        except Exception:  # it stays awake, and only memory is lost
            _log.exception("the fleet did not take the sleep of replica %s", replica)

    async def _tell_release(self, replica: str, *, drain_s: float) -> None:
        try:
            await self._fleet.release(replica, drain_s=drain_s)
        except Exception:
            _log.exception("the fleet did not take the release of replica %s", replica)
            entry = self._state.replicas.get(replica)
            if entry is not None:
                entry.unreleased = True

    async def _tell_standbys(self, count: int) -> None:
        try:
            await self._fleet.set_standbys(count)
        except Exception:  # only speed or memory is lost
            _log.exception("the fleet did not take that it is to keep %d standbys", count)

    async def _tell_prefetch(self, snapshot: str) -> None:
        try:
            await self._fleet.prefetch(snapshot)
        except Exception:  # only speed is lost
            _log.exception("the fleet did not take the prefetch of %s", snapshot)

    def _take_list(self, replicas: Sequence[Replica], confirmed: Sequence[Entry]) -> None:
        """The fleet's whole truth: at the start, and after a watch broke."""
        listed = {replica.id for replica in replicas}
        for replica in replicas:
            self.replica_changed(replica)
        for entry in confirmed:
            if entry.replica.id not in listed and self._state.replicas.get(entry.replica.id):
                self._gone(entry, "its fleet does not know it any more")

    def _give_up(self, entry: Entry) -> None:
        """Forget a replica that the fleet has not confirmed; if it appears later, it must go."""
        self._state.replicas.remove(entry.replica.id)
        self._given_up.add(entry.replica.id)
        self._spawn(self._tell_release(entry.replica.id, drain_s=0.0))

    def _became_ready(self, entry: Entry) -> None:
        replica = entry.replica
        took_s = self._now() - entry.since_s
        _log.info("%s: replica %s is ready after %.3f s", replica.function, replica.id, took_s)
        how = f"after {took_s:.3f} s, from {replica.start_kind}"
        self._note(EventKind.READY, replica.function, replica.id, how)
        tracked = self._state.functions.get(replica.function)
        if tracked is not None:
            self._metrics.started(replica, took_s=took_s)
            tracked.starts_s.append(took_s)
            tracked.last_start_ms = replica.stages_ms
            tracked.context = (replica.revision, replica.max_context)
            if replica.revision == tracked.revision:
                tracked.breaker = tracked.breaker.became_ready()
                tracked.recovering = False
                tracked.got = False

    def _gone(self, entry: Entry, reason: str, *, snapshot_lost: bool = False) -> None:
        replica, now_s = entry.replica, self._now()
        self._state.replicas.remove(replica.id)
        tracked = self._state.functions.get(replica.function)
        if entry.released or replica.state is ReplicaState.DRAINING:
            _log.info("%s: replica %s is gone", replica.function, replica.id)
            self._note(EventKind.ENDED, replica.function, replica.id, "")
            if tracked is not None and entry.ready_at_s is not None:
                tracked.breaker = tracked.breaker.ended_well()
        elif entry.ready_at_s is None:
            is_current = tracked is not None and replica.revision == tracked.revision
            if snapshot_lost and is_current and tracked and self._snapshot_lost(tracked):
                _log.warning("%s: %s; getting it again", replica.function, reason)
            else:
                self._start_failed(replica, reason)
        else:
            _log.warning("%s: replica %s died: %s", replica.function, replica.id, reason)
            self._note(EventKind.DIED, replica.function, replica.id, reason)
            if tracked is not None and replica.revision == tracked.revision:
                lived_s = now_s - entry.ready_at_s
                tracked.breaker = tracked.breaker.died(now_s, lived_s=lived_s, cause=reason)
        self._changed(replica.function)

    def _start_failed(self, replica: Replica, cause: str) -> None:
        now_s = self._now()
        tracked = self._state.functions.get(replica.function)
        if tracked is not None:
            self._metrics.start_failed(replica.function)
            self._note(EventKind.START_FAILED, replica.function, replica.id, cause)
        if tracked is not None and replica.revision == tracked.revision:
            tracked.breaker = tracked.breaker.start_failed(now_s, cause)
            _log.warning(
                "%s: replica %s did not start: %s; %d failed in a row, the next try is in %.1f s",
                replica.function,
                replica.id,
                cause,
                tracked.breaker.failures,
                max(0.0, tracked.breaker.retry_at_s - now_s),
            )
        self._changed(replica.function)

    def _note(self, kind: EventKind, function: str, replica: str, reason: str) -> None:
        self._decisions.note(function, kind, reason, replica=replica)

    def _drain_s(self, function: str) -> float:
        tracked = self._state.functions.get(function)
        return tracked.function.spec.request_timeout_s if tracked else _UNKNOWN_DRAIN_S

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
