"""Traffic history as CSV: one minute with traffic a line, in order.

    minute,arrivals,peak,finished,service_s
    2026-11-30T14:21Z,12,3,11,8.25

Reading is strict and bounded, and takes chunks as they come. Numbers come back exactly as they
were.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from glowplug.errors import InvalidRequest
from scaler.minutes import Minute

COLUMNS = ("minute", "arrivals", "peak", "finished", "service_s")
HEADER = ",".join(COLUMNS)
MAX_LINE_BYTES = 200
MAX_COUNT = 10**12

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\dZ", re.ASCII)
_SECONDS = re.compile(r"\d{1,15}(\.\d{1,25})?(e[+-]\d{1,2})?", re.ASCII)


def iso_minute(minute: int) -> str:
    """`2026-11-30T14:21Z` for a minute since 1970."""
    return f"{_EPOCH + timedelta(minutes=minute):%Y-%m-%dT%H:%M}Z"


def minute_of(text: str) -> int:
    """The reverse of iso_minute. Raises ValueError."""
    try:
        if not _MINUTE.fullmatch(text):
            raise ValueError
        when = datetime.fromisoformat(f"{text[:-1]}+00:00")
    except ValueError:
        raise ValueError(
            f"{text[:40]!r} is not a minute in UTC such as 2026-11-30T14:21Z"
        ) from None
    return (when - _EPOCH) // timedelta(minutes=1)


def lines_of(minutes: Iterable[Minute]) -> str:
    """Without the header."""
    return "".join(
        f"{iso_minute(each.minute)},{each.arrivals},{each.peak},{each.finished},"
        f"{each.service_s!r}\n"
        for each in minutes
    )


class CsvReader:
    """Takes a file's bytes in pieces. `name` is put before the line in errors; minutes before
    `oldest` and after `newest` are refused, and more than `max_rows`."""

    def __init__(
        self,
        *,
        max_rows: int,
        name: str = "",
        oldest: int | None = None,
        newest: int | None = None,
    ) -> None:
        self._max_rows = max_rows
        self._name = name
        self._oldest = oldest
        self._newest = newest
        self._line = 0
        self._rest = b""
        self._minutes: list[Minute] = []
        self._header_seen = False

    def feed(self, chunk: bytes) -> None:
        """Raises InvalidRequest, with the line, where it is not as it should be."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._take(line)
        if len(self._rest) > MAX_LINE_BYTES:
            self._line += 1
            raise self._wrong(f"longer than {MAX_LINE_BYTES} bytes")

    def finish(self) -> list[Minute]:
        """All of them, once everything was fed. Raises InvalidRequest."""
        if self._rest:
            self._take(self._rest)
        if not self._header_seen:
            self._line = max(1, self._line)
            raise self._wrong(f"it is empty; the first line must be {HEADER}")
        return self._minutes

    def _take(self, data: bytes) -> None:
        self._line += 1
        if len(data) > MAX_LINE_BYTES:
            raise self._wrong(f"longer than {MAX_LINE_BYTES} bytes")
        try:
            line = data.decode().rstrip("\r")
        except UnicodeDecodeError:
            raise self._wrong("not UTF-8") from None
        if not self._header_seen:
            if line.removeprefix("\ufeff") != HEADER:
                raise self._wrong(f"the first line must be {HEADER}")
            self._header_seen = True
        elif line:
            self._take_row(line.split(","))

    def _take_row(self, values: list[str]) -> None:
        if len(values) != len(COLUMNS):
            raise self._wrong(f"{len(values)} values instead of {len(COLUMNS)}: {HEADER}")
        minute = self._minute(values[0])
        if self._minutes and minute <= self._minutes[-1].minute:
            raise self._wrong("its minute is not after that of the row before; sort the rows")
        if len(self._minutes) >= self._max_rows:
            raise self._wrong(f"more than {self._max_rows} rows")
        arrivals, peak, finished = (
            self._count(column, text)
            for column, text in zip(COLUMNS[1:4], values[1:4], strict=True)
        )
        if not _SECONDS.fullmatch(values[4]) or not (service_s := float(values[4])) <= MAX_COUNT:
            raise self._wrong(f"service_s: {values[4][:40]!r} is not a number of seconds")
        self._minutes.append(
            Minute(
                minute=minute, arrivals=arrivals, peak=peak, finished=finished, service_s=service_s
            )
        )

    def _minute(self, text: str) -> int:
        try:
            minute = minute_of(text)
        except ValueError as error:
            raise self._wrong(f"minute: {error}") from None
        if minute < (0 if self._oldest is None else self._oldest):
            raise self._wrong(
                f"{text} is before the oldest minute that is kept, "
                f"{iso_minute(self._oldest or 0)}; remove it, or import with --shift"
            )
        if self._newest is not None and minute > self._newest:
            raise self._wrong(f"{text} is in the future; remove it, or import with --shift")
        return minute

    def _count(self, column: str, text: str) -> int:
        if not (text.isascii() and text.isdigit()) or len(text) > 13 or int(text) > MAX_COUNT:
            raise self._wrong(f"{column}: {text[:40]!r} is not a whole number up to {MAX_COUNT}")
        return int(text)

    def _wrong(self, what: str) -> InvalidRequest:
        where = f"{self._name} line" if self._name else "line"
        return InvalidRequest(f"{where} {self._line}: {what}", code="invalid_history")
