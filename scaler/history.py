"""TrafficHistory: a function's traffic history as a CSV file, out and in, for the control API."""

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable

from glowplug.contracts import ImportedHistory
from scaler.minutes import KEPT_MINUTES
from scaler.traffic import Traffic
from scaler.traffic_csv import HEADER, CsvReader, iso_minute, lines_of

_PAGE_MINUTES = 7 * 1440


class TrafficHistory:
    """Implements glowplug.contracts.History."""

    def __init__(
        self,
        traffic: Traffic,
        *,
        imported: Callable[[str], None] = lambda _function: None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`imported(function)` is called after each import; `now_s` is Unix time, as the
        traffic's."""
        self._traffic = traffic
        self._imported = imported
        self._now_s = now_s

    async def export(self, function: str, *, since_s: float | None = None) -> AsyncIterator[bytes]:
        """The file, in pieces: of the last `since_s` seconds, or all there is."""
        yield f"{HEADER}\n".encode()
        now = int(self._now_s() // 60)
        oldest = now - KEPT_MINUTES
        if since_s is not None:
            oldest = max(oldest, int((self._now_s() - since_s) // 60))
        for page in range(oldest, now + 1, _PAGE_MINUTES):
            until = min(page + _PAGE_MINUTES, now + 1)
            minutes = await self._traffic.read(function, page, until)
            if minutes:
                yield (await asyncio.to_thread(lines_of, minutes)).encode()

    async def replace(self, function: str, file: AsyncIterable[bytes]) -> ImportedHistory:
        """Put the file's minutes in place of all there is from its first to its last; all of it
        or, where a line is wrong, nothing.

        Raises:
            InvalidRequest: with the number of the line.
        """
        now = int(self._now_s() // 60)
        reader = CsvReader(max_rows=KEPT_MINUTES + 1, oldest=now - KEPT_MINUTES, newest=now)
        async for chunk in file:
            await asyncio.to_thread(reader.feed, chunk)
        minutes = await asyncio.to_thread(reader.finish)
        await self._traffic.replace(function, minutes)
        self._imported(function)
        return ImportedHistory(
            minutes=len(minutes),
            arrivals=sum(each.arrivals for each in minutes),
            first=iso_minute(minutes[0].minute) if minutes else None,
            last=iso_minute(minutes[-1].minute) if minutes else None,
        )
