"""Traces: when requests came to real services, read from the CSV files that others published.

The simulator replays them, `glowplug history import` turns them into minutes. Plain blocking
functions, on whatever thread calls them. Files may be gzipped. Lines, rows and arrivals are
bounded; what is not as the format says ends in InvalidRequest with the file and the line.

- Azure LLM inference 2023 and 2024 (Patel et al., "Splitwise", ISCA 2024): one request a row.
- BurstGPT (Wang et al., 2024): one request a row, seconds since the first day began.
- Azure Functions 2019 (Shahrad et al., "Serverless in the Wild", ATC 2020): one function a row, its
  invocations in each minute of a day.
"""

import gzip
import math
import zlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import BinaryIO

from glowplug.errors import InvalidRequest

MAX_ROWS = 20_000_000
MAX_LINE_BYTES = 65_536
MAX_ARRIVALS = 20_000_000  # of one row of counts
MAX_TOKENS = 2**31 - 1
MAX_SPAN_S = 10 * 366 * 86_400
DAY_MINUTES = 1440

_AZURE_LLM = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURSTGPT = ("Timestamp", "Model", "Request tokens", "Response tokens")
_AZURE_FUNCTIONS = ("HashOwner", "HashApp", "HashFunction", "Trigger")
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Requests in order of arrival. Token counts are as long as `arrivals_s`, or empty where the
    trace does not say them."""

    arrivals_s: "array[float]"  # since the start of the trace
    prompt_tokens: "array[int]"
    generated_tokens: "array[int]"
    start_s: float | None = None  # Unix time of the start; None where the trace has no dates

    def __len__(self) -> int:
        return len(self.arrivals_s)


@dataclass(frozen=True, kw_only=True)
class CountedFunction:
    """One row of the Azure Functions trace."""

    owner: str
    app: str
    function: str
    trigger: str
    counts: "array[int]"  # 1440: invocations in each minute of the day

    def trace(self, *, seed: int) -> Trace:
        """Spread each minute's count evenly at random within the minute.

        The draws depend on the seed and the function alone, not on what else was read.
        """
        key = f"{seed}/{self.owner}/{self.app}/{self.function}/{self.trigger}"
        random = Random(key).random  # noqa: S311 - no secret
        arrivals = array("d")
        for minute, count in enumerate(self.counts):
            arrivals.extend(sorted(60.0 * (minute + random()) for _ in range(count)))
        return Trace(arrivals_s=arrivals, prompt_tokens=array("q"), generated_tokens=array("q"))


def load_azure_llm(path: Path) -> Trace:
    """Azure LLM inference trace, `TIMESTAMP,ContextTokens,GeneratedTokens`; starts with the first
    request.

    Raises:
        InvalidRequest: it cannot be read, or a line is not as it should be.
    """
    rows = _Rows()
    start_s = None
    with closing(_Table(path, _AZURE_LLM)) as table:
        for when, prompt, generated in table:
            at_s = _unix_time(table, when)
            start_s = at_s if start_s is None else min(start_s, at_s)
            rows.add(at_s, _tokens(table, 1, prompt), _tokens(table, 2, generated))
        if start_s is None:
            raise table.wrong("it has no requests")
        if max(rows.at_s) - start_s > MAX_SPAN_S:
            raise table.wrong("its requests are more than ten years apart")
    return rows.trace(start_s, dated=True)


def load_burstgpt(path: Path, *, model: str | None = None) -> Trace:
    """BurstGPT's CSV, whose seconds count from the beginning of its first day; of one model
    (`ChatGPT`, `GPT-4`), or of all.

    Raises:
        InvalidRequest: it cannot be read, a line is wrong, or nothing is of the model.
    """
    rows = _Rows()
    with closing(_Table(path, _BURSTGPT)) as table:
        for when, of_model, prompt, generated in table:
            at_s = _seconds(table, when)
            if model is None or of_model == model:
                rows.add(at_s, _tokens(table, 2, prompt), _tokens(table, 3, generated))
        if not rows.at_s:
            raise table.wrong(f"it has no requests{f' of model {model!r}' if model else ''}")
    return rows.trace(0.0, dated=False)


def read_azure_functions(path: Path) -> Iterator[CountedFunction]:
    """Azure Functions 2019, one day's file, `HashOwner,HashApp,HashFunction,Trigger,1,…,1440`: its
    functions one by one, as a day of all of them is too much to hold.

    Raises:
        InvalidRequest: it cannot be read, or a line is not as it should be.
    """
    minutes = tuple(str(minute) for minute in range(1, DAY_MINUTES + 1))
    with closing(_Table(path, _AZURE_FUNCTIONS + minutes)) as table:
        for owner, app, function, trigger, *texts in table:
            counts = array("q")
            for minute, text in zip(minutes, texts, strict=True):
                counts.append(_integer(table, text, minute, MAX_ARRIVALS))
            if sum(counts) > MAX_ARRIVALS:
                raise table.wrong(f"more than {MAX_ARRIVALS} invocations")
            yield CountedFunction(
                owner=owner, app=app, function=function, trigger=trigger, counts=counts
            )


class _Rows:
    """Requests as they are read, in whatever order."""

    def __init__(self) -> None:
        self.at_s = array("d")
        self.prompt = array("q")
        self.generated = array("q")

    def add(self, at_s: float, prompt: int, generated: int) -> None:
        self.at_s.append(at_s)
        self.prompt.append(prompt)
        self.generated.append(generated)

    def trace(self, start_s: float, *, dated: bool) -> Trace:
        order = sorted(range(len(self.at_s)), key=self.at_s.__getitem__)
        return Trace(
            # To the microsecond, as read; Unix times in floats are exact to 0.24 µs.
            arrivals_s=array("d", (round(self.at_s[i] - start_s, 6) for i in order)),
            prompt_tokens=array("q", (self.prompt[i] for i in order)),
            generated_tokens=array("q", (self.generated[i] for i in order)),
            start_s=start_s if dated else None,
        )


class _Table:
    """The rows of a CSV file: the values of the named columns, which a header line must name.

    None of these formats quotes values.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._path = path
        self.columns = columns
        self._line = 0
        try:
            self._file = _open(path)
        except OSError as error:
            raise InvalidRequest(f"{path}: cannot be read ({error.strerror or error})") from None

    def __iter__(self) -> Iterator[list[str]]:
        header = self._next()
        if header is None:
            raise self.wrong("it is empty")
        names = [name.strip() for name in header.removeprefix("\ufeff").split(",")]
        try:
            wanted = [names.index(column) for column in self.columns]
        except ValueError:
            missing = next(column for column in self.columns if column not in names)
            raise self.wrong(f"the header has no column {missing!r}") from None
        while (line := self._next()) is not None:
            if not line:
                continue
            if self._line > MAX_ROWS:
                raise self.wrong(f"more than {MAX_ROWS} rows")
            values = line.split(",")
            if len(values) != len(names):
                raise self.wrong(f"{len(values)} values, but the header has {len(names)}")
            yield [values[index] for index in wanted]

    def wrong(self, what: str) -> InvalidRequest:
        """The error for the line just read."""
        return InvalidRequest(f"{self._path} line {self._line}: {what}")

    def close(self) -> None:
        self._file.close()

    def _next(self) -> str | None:
        try:
            line = self._file.readline(MAX_LINE_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            self._line += 1
            raise self.wrong(f"cannot be read ({error})") from None
        if not line:
            return None
        self._line += 1
        if len(line) >= MAX_LINE_BYTES:
            raise self.wrong(f"longer than {MAX_LINE_BYTES} bytes")
        try:
            return line.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise self.wrong("not UTF-8") from None


def _open(path: Path) -> BinaryIO | gzip.GzipFile:
    with path.open("rb") as file:
        magic = file.read(len(_GZIP_MAGIC))
    return gzip.open(path, "rb") if magic == _GZIP_MAGIC else path.open("rb")


def _unix_time(table: _Table, text: str) -> float:
    """`2023-11-16 18:17:03.9799600`, in UTC where no offset is said; more digits than
    microseconds are dropped."""
    try:
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise table.wrong(f"TIMESTAMP: {text[:40]!r} is not a time") from None


def _seconds(table: _Table, text: str) -> float:
    try:
        at_s = float(text)
    except ValueError:
        at_s = math.nan
    if not 0 <= at_s <= MAX_SPAN_S:
        raise table.wrong(f"Timestamp: {text[:40]!r} is not a number of seconds in ten years")
    return at_s


def _tokens(table: _Table, column: int, text: str) -> int:
    return _integer(table, text, table.columns[column], MAX_TOKENS)


def _integer(table: _Table, text: str, column: str, most: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > most:
        raise table.wrong(f"{column}: {text[:40]!r} is not a whole number from 0 to {most}")
    return int(text)
