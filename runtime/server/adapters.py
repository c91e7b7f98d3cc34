"""The LoRA adapters of a replica: loaded when first asked for, kept while there is room.

On the event loop; loading itself runs in a thread, once however many requests wait for it. A
request *leases* an adapter for as long as it runs. What nobody leases is given up, least recently
used first, when another needs its room; what is leased never is. A request that finds no room waits
for a lease to end, and later ones wait behind it, so that busy adapters cannot keep others out.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from glowplug.errors import GlowplugError, Unavailable
from runtime.engine.request import Adapter

MAX_LOADED = 256  # adapters in memory, however small


@dataclass(eq=False)
class _Slot:
    """An adapter that is loaded or being loaded."""

    size_bytes: int
    loading: "asyncio.Task[Adapter]"
    leases: int = 0


class AdapterCache:
    """The adapters by name, and those of them that are in memory."""

    def __init__(
        self,
        digests: Mapping[str, str],
        *,
        size_of: Callable[[str], int],
        load: Callable[[str], Adapter],
        max_bytes: int,
        max_loaded: int = MAX_LOADED,
    ) -> None:
        """`digests` by name. `size_of(digest)` gives bytes, in no time; `load(digest)` may block,
        it is called in a thread. Both may raise GlowplugErrors."""
        self.names = tuple(digests)
        self.loads = 0
        self.evictions = 0
        self._digests = dict(digests)
        self._size_of = size_of
        self._load = load
        self._max_bytes = max_bytes
        self._max_loaded = max_loaded
        self._slots: OrderedDict[str, _Slot] = OrderedDict()  # by digest, least recently used first
        self._turn = asyncio.Lock()  # first come, first served
        self._freed = asyncio.Event()

    @property
    def loaded_bytes(self) -> int:
        """What those in memory take."""
        return sum(slot.size_bytes for slot in self._slots.values())

    @property
    def loaded(self) -> Mapping[str, int]:
        """How many leases each digest in memory has."""
        return {digest: slot.leases for digest, slot in self._slots.items()}

    @asynccontextmanager
    async def lease(self, name: str) -> AsyncIterator[Adapter]:
        """The adapter, which stays in memory until the block ends. `name` is one of `names`.

        Raises:
            Unavailable: it cannot be loaded; the message says why.
        """
        digest = self._digests[name]
        try:
            slot = await self._slot(digest)
        except GlowplugError as error:
            raise _unavailable(name, error) from None
        try:
            try:
                adapter = await asyncio.shield(slot.loading)
            except GlowplugError as error:
                raise _unavailable(name, error) from None
            yield adapter
        finally:
            slot.leases -= 1
            if not slot.leases:
                self._freed.set()

    async def _slot(self, digest: str) -> _Slot:
        """The adapter's slot with one lease more, loading if it is new."""
        async with self._turn:
            slot = self._slots.get(digest)
            if slot is None:
                size_bytes = self._size_of(digest)
                await self._make_room(size_bytes)
                slot = _Slot(size_bytes, asyncio.create_task(asyncio.to_thread(self._load, digest)))
                slot.loading.add_done_callback(lambda _: self._loaded(digest, slot))
                self._slots[digest] = slot
            self._slots.move_to_end(digest)
            slot.leases += 1
            return slot

    async def _make_room(self, size_bytes: int) -> None:
        if size_bytes > self._max_bytes:
            raise Unavailable(
                f"it has {size_bytes} bytes, over adapter_cache_bytes ({self._max_bytes}); raise it"
            )
        while True:
            for digest, slot in list(self._slots.items()):
                if self._has_room(size_bytes):
                    break
                if not slot.leases:
                    del self._slots[digest]
                    self.evictions += 1
            if self._has_room(size_bytes):
                return
            self._freed.clear()
            await self._freed.wait()

    def _has_room(self, size_bytes: int) -> bool:
        fits = self.loaded_bytes + size_bytes <= self._max_bytes
        return fits and len(self._slots) < self._max_loaded

    def _loaded(self, digest: str, slot: _Slot) -> None:
        """It is there; or it has failed, and the next request tries again."""
        if slot.loading.cancelled() or slot.loading.exception() is not None:
            if self._slots.get(digest) is slot:
                del self._slots[digest]
                self._freed.set()
        else:
            self.loads += 1


def _unavailable(name: str, error: GlowplugError) -> Unavailable:
    return Unavailable(
        f"the adapter {name!r} cannot be loaded: {error.message}",
        param="model",
        code="adapter_unavailable",
    )
