"""Traffic: what each function's traffic was, minute by minute, for eight weeks.

On the event loop. The demand table hands it every report; what is new in it goes to the minute of
this scaler's clock in which it becomes known. Every few seconds the file gets what has gathered, in
a thread of its own: kill -9 loses at most those seconds' peaks, and of the counts only what
reporters that die too have counted in them.

Counts are exact. A reporter's counters only grow, and a new process has a new identity: what is
counted is what has been added since the last report that was seen, whichever were lost, repeated or
late in between. How far each reporter has been counted is stored with the minutes.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from glowplug.contracts import DemandReport, Registry
from glowplug.errors import GlowplugError
from scaler.minutes import Bin, Minute
from scaler.traffic_file import Counted, Key, TrafficFile

FLUSH_S = 2.0
PRUNE_S = 3600.0
MAX_PENDING = 200_000  # minutes in memory while the file cannot be written

_NOTHING = Counted()
_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Traffic:
    """The history of one scaler. `record` may be called before `start` and between."""

    def __init__(self, path: Path, *, now_s: Callable[[], float] = time.time) -> None:
        """Open or create the file; blocks for some milliseconds. `now_s` is Unix time.

        Raises:
            GlowplugError: it cannot be opened, or is no such file.
        """
        self._file = TrafficFile(path)
        self._now_s = now_s
        self._counted = self._file.counters()
        self._pending: dict[tuple[str, int], Bin] = {}
        self._changed: set[Key] = set()  # counters to be written
        self._heard: set[Key] = set()  # since the last prune
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="traffic")
        self._writing = asyncio.Lock()
        self._writes: set[asyncio.Task[Any]] = set()
        self._task: asyncio.Task[None] | None = None

    def record(self, report: DemandReport, peak: int) -> None:
        """Take what is new in a report. `peak`: the most requests there were at once since the
        last one, over all reporters."""
        key = (report.function, report.reporter)
        counted = self._counted.get(key)
        if counted is None:
            counted = self._counted[key] = Counted()
        self._heard.add(key)
        arrivals = report.arrivals - report.warms - counted.arrivals
        finished = report.finished - counted.finished
        if arrivals <= 0 and finished <= 0 and not peak:
            return
        place = (report.function, int(self._now_s() // 60))
        entry = self._pending.get(place)
        if entry is None:
            entry = self._pending[place] = Bin()
        entry.peak = max(entry.peak, peak)
        if arrivals > 0:
            entry.arrivals += arrivals
            counted.arrivals += arrivals
            self._changed.add(key)
        if finished > 0:
            entry.finished += finished
            counted.finished += finished
            # Rounding may let a sum of floats step back by its last digit.
            entry.service_s += max(0.0, report.service_s - counted.service_s)
            counted.service_s = report.service_s
            self._changed.add(key)

    async def read(self, function: str, from_minute: int, until_minute: int) -> Sequence[Minute]:
        """Its minutes with traffic from the one up to, not including, the other, in order; up to
        this moment.

        Raises:
            GlowplugError: the file fails.
        """
        return await self._write_then(lambda: self._file.read(function, from_minute, until_minute))

    async def replace(self, function: str, minutes: Sequence[Minute]) -> None:
        """Put these, in ascending order, in place of all there is from the first to the last.

        Raises:
            GlowplugError: the file fails; nothing is changed.
        """
        if minutes:
            await self._write_then(lambda: self._file.replace(function, minutes))

    async def start(self, registry: Registry) -> None:
        """Begin to write and to prune by what is deployed."""
        self._task = asyncio.create_task(self._run(registry), name="traffic history")

    async def stop(self) -> None:
        """Write what there is and close the file. Nothing may be called after it."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        try:
            await self.flush()
        finally:
            self._thread.shutdown(wait=True)
            self._file.close()

    async def flush(self) -> None:
        """Write what has gathered; where the file fails, it is kept for the next time."""
        try:
            await self._write_then(lambda: None)
        except GlowplugError as error:
            _log.error("the traffic history was not written, and will be again: %s", error.message)

    async def prune(self, registry: Registry) -> None:
        """Let go of what is too old or too much.

        Raises:
            GlowplugError: the file fails; it is done the next time.
        """
        deployed = {function.spec.name for function in await registry.list()}
        heard, now_s = frozenset(self._heard), self._now_s()
        forgotten = await self._write_then(
            lambda: self._file.prune(deployed=deployed, heard=heard, now_s=now_s)
        )
        self._heard -= heard
        silent = [
            key
            for key, counted in self._counted.items()
            if key not in heard and counted == _NOTHING  # of these the file does not know
        ]
        for key in (*forgotten, *silent):
            if key in self._heard:  # meanwhile
                self._changed.add(key)
            else:
                self._counted.pop(key, None)

    async def _run(self, registry: Registry) -> None:
        prune_at_s = 0.0
        while True:
            try:
                if time.monotonic() >= prune_at_s:
                    prune_at_s = time.monotonic() + PRUNE_S
                    await self.prune(registry)
                else:
                    await self.flush()
            except Exception:
                _log.exception("the traffic history was not pruned")
            await asyncio.sleep(FLUSH_S)

    async def _write_then(self, work: Callable[[], _T]) -> _T:
        """Write what has gathered, then do this in the same thread.

        It goes on to its end even if the caller leaves: what was taken out of memory for the file
        must arrive there, or come back.
        """
        task = asyncio.create_task(self._locked_write_then(work))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return await asyncio.shield(task)

    async def _locked_write_then(self, work: Callable[[], _T]) -> _T:
        async with self._writing:
            if self._pending or self._changed:
                await self._write()
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _write(self) -> None:
        bins, self._pending = self._pending, {}
        changed, self._changed = self._changed, set()
        counters = {key: replace(self._counted[key]) for key in changed if key in self._counted}
        now_s = self._now_s()
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._thread, lambda: self._file.write(bins, counters, now_s=now_s)
            )
        except GlowplugError:
            self._keep(bins, changed)
            raise

    def _keep(self, bins: dict[tuple[str, int], Bin], changed: set[Key]) -> None:
        """What could not be written, with what has come meanwhile."""
        for place, entry in self._pending.items():
            if place in bins:
                bins[place].add(entry)
            else:
                bins[place] = entry
        surplus = len(bins) - MAX_PENDING
        if surplus > 0:
            for place in sorted(bins, key=lambda each: each[1])[:surplus]:
                del bins[place]
        self._pending = bins
        self._changed |= changed
