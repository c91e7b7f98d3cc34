"""Traffic history as CSV: exact round trips, however it is cut; wrong lines by their number."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glowplug.errors import InvalidRequest
from scaler.history import TrafficHistory
from scaler.minutes import KEPT_MINUTES, Minute
from scaler.traffic import Traffic
from scaler.traffic_csv import HEADER, CsvReader, iso_minute, lines_of, minute_of
from tests.unit.scaler.traffic_reports import Clock

COUNTS = st.integers(0, 10**12)
MINUTES = st.lists(
    st.builds(
        Minute,
        minute=st.integers(0, 200_000_000),
        arrivals=COUNTS,
        peak=COUNTS,
        finished=COUNTS,
        service_s=st.floats(0, 1e12).filter(lambda each: each == 0 or each > 1e-9),
    ),
    unique_by=lambda each: each.minute,
    max_size=30,
).map(sorted)


@settings(derandomize=True, deadline=None)
@given(MINUTES, st.integers(1, 60))
def test_what_is_written_is_read(minutes: list[Minute], piece: int) -> None:
    text = f"{HEADER}\n{lines_of(minutes)}".encode()
    reader = CsvReader(max_rows=30)
    for start in range(0, len(text), piece):
        reader.feed(text[start : start + piece])
    assert reader.finish() == minutes


@given(st.integers(0, 4_000_000_000))
@settings(derandomize=True)
def test_minutes_as_text(minute: int) -> None:
    assert minute_of(iso_minute(minute)) == minute


def test_line_ends_and_marks_of_other_systems() -> None:
    reader = CsvReader(max_rows=3)
    reader.feed(f"\ufeff{HEADER}\r\n2026-11-30T14:21Z,1,2,3,4.5\r\n\r\n".encode())
    minute = minute_of("2026-11-30T14:21Z")
    assert reader.finish() == [Minute(minute=minute, arrivals=1, peak=2, finished=3, service_s=4.5)]


ROW = "2026-11-30T14:21Z,1,2,3,4.5\n"
WRONG = {
    "": "line 1: it is empty",
    "minute,arrivals\n": "line 1: the first line must be minute,arrivals,peak",
    f"{HEADER}\n{ROW}{ROW}": "line 3: its minute is not after that of the row before",
    f"{HEADER}\n2026-11-30T14:21Z,1,2,3\n": "line 2: 4 values instead of 5",
    f"{HEADER}\n2026-11-30 14:21,1,2,3,4\n": "line 2: minute: '2026-11-30 14:21' is not a minute",
    f"{HEADER}\n2026-02-30T14:21Z,1,2,3,4\n": "line 2: minute: '2026-02-30T14:21Z' is not",
    f"{HEADER}\n1969-12-31T23:59Z,1,2,3,4\n": "line 2: 1969-12-31T23:59Z is before the oldest",
    f"{HEADER}\n2026-11-30T14:21Z,-1,2,3,4\n": "line 2: arrivals: '-1' is not a whole number",
    f"{HEADER}\n2026-11-30T14:21Z,1,٣,3,4\n": "line 2: peak: '٣' is not",
    f"{HEADER}\n2026-11-30T14:21Z,1,2,{10**13},4\n": "line 2: finished: '10000000000000' is not",
    f"{HEADER}\n2026-11-30T14:21Z,1,2,3,nan\n": "line 2: service_s: 'nan' is not a number",
    f"{HEADER}\n2026-11-30T14:21Z,1,2,3,1_0\n": "line 2: service_s: '1_0'",
    f"{HEADER}\n2026-11-30T14:21Z,1,2,3,1e99\n": "line 2: service_s: '1e99'",
    f"{HEADER}\n{'1' * 300}": "line 2: longer than 200 bytes",
    f"{HEADER}\n{'1' * 300}\n": "line 2: longer than 200 bytes",
    f"{HEADER}\n2026-11-29T00:00Z,1,1,1,1\n{ROW}2026-12-01T00:00Z,1,1,1,1\n": (
        "line 4: more than 2 rows"
    ),
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_said_with_its_line(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        reader = CsvReader(max_rows=2)
        reader.feed(text.encode())
        reader.finish()
    assert caught.value.message.startswith(WRONG[text])


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"^f\.csv line 2: not UTF-8"):
        CsvReader(max_rows=2, name="f.csv").feed(HEADER.encode() + b"\n\xff\xfe\n")


def test_export_and_import(tmp_path: Path) -> None:
    async def pieces(data: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(data), 1000):
            yield data[start : start + 1000]

    async def main() -> None:
        clock = Clock()
        traffic = Traffic(tmp_path / "traffic.sqlite", now_s=clock)
        history = TrafficHistory(traffic, now_s=clock)
        oldest = clock.minute - KEPT_MINUTES
        minutes = [Minute(minute=at, arrivals=at % 7) for at in range(oldest, clock.minute + 1, 97)]
        data = f"{HEADER}\n{lines_of(minutes)}".encode()
        done = await history.replace("f", pieces(data))
        assert (done.minutes, done.first) == (len(minutes), iso_minute(oldest))
        assert done.arrivals == sum(each.arrivals for each in minutes)
        assert b"".join([piece async for piece in history.export("f")]) == data
        last_day = b"".join([piece async for piece in history.export("f", since_s=86_400.0)])
        assert last_day.count(b"\n") == 1 + 86_400 // 60 // 97 + 1
        nothing = b"".join([piece async for piece in history.export("other")])
        assert nothing == f"{HEADER}\n".encode()
        assert (await history.replace("other", pieces(nothing))).first is None
        for minute, why in ((oldest - 1, "before the oldest"), (clock.minute + 1, "the future")):
            row = lines_of([Minute(minute=minute, arrivals=1)])
            with pytest.raises(InvalidRequest, match=f"line 2: .* {why}.*--shift"):
                await history.replace("f", pieces(f"{HEADER}\n{row}".encode()))
        assert b"".join([piece async for piece in history.export("f")]) == data
        await traffic.stop()

    asyncio.run(main())
