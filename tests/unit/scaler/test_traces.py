"""Loaders of published traces: what they read, and what they refuse with file and line."""

import gzip
from array import array
from pathlib import Path

import pytest

from glowplug.errors import InvalidRequest
from scaler import traces
from scaler.traces import Trace, load_azure_llm, load_burstgpt, read_azure_functions

REAL = Path(__file__).parents[4] / "shared" / "traces"

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:18:04,110,27
"""
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.5,GPT-4,1087,230,1317,API log
118,ChatGPT,417,276,693,Conversation log
"""


def functions_header(minutes: int = 1440) -> str:
    columns = ["HashOwner", "HashApp", "HashFunction", "Trigger", *map(str, range(1, minutes + 1))]
    return ",".join(columns) + "\n"


def functions_row(name: str, counts: dict[int, object]) -> str:
    cells = (str(counts.get(minute, 0)) for minute in range(1, 1441))
    return f"owner,app,{name},http," + ",".join(cells) + "\n"


def written(folder: Path, text: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_azure_llm(tmp_path: Path) -> None:
    trace = load_azure_llm(written(tmp_path, AZURE))
    assert trace == Trace(
        arrivals_s=array("d", [0.0, 0.052, 60.02004]),
        prompt_tokens=array("q", [4808, 3180, 110]),
        generated_tokens=array("q", [10, 8, 27]),
        start_s=1700158623.97996,
    )
    assert len(trace) == 3
    assert load_azure_llm(written(tmp_path, gzip.compress(AZURE.encode()))) == trace
    crlf = AZURE.replace("\n", "\r\n")
    assert load_azure_llm(written(tmp_path, f"\ufeff{crlf}")) == trace


def test_azure_llm_2024_says_its_offset(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 02:00:00.009930+02:00,2162,5\n"
    assert load_azure_llm(written(tmp_path, text)).start_s == 1715299200.00993


def test_burstgpt_keeps_its_own_beginning(tmp_path: Path) -> None:
    path = written(tmp_path, BURST)
    trace = load_burstgpt(path)
    assert trace.arrivals_s == array("d", [5.0, 45.5, 118.0])
    assert (trace.prompt_tokens[1], trace.generated_tokens[2], trace.start_s) == (1087, 276, None)
    assert load_burstgpt(path, model="GPT-4").arrivals_s == array("d", [45.5])
    with pytest.raises(InvalidRequest, match=r"t\.csv line 4: it has no requests of model 'GPT-5'"):
        load_burstgpt(path, model="GPT-5")


def test_azure_functions_are_spread_within_their_minutes(tmp_path: Path) -> None:
    text = functions_header() + functions_row("a", {1: 3, 1440: 2}) + functions_row("b", {7: 1})
    first, second = read_azure_functions(written(tmp_path, text))
    assert (first.function, first.trigger, sum(first.counts)) == ("a", "http", 5)
    trace = first.trace(seed=1)
    assert list(trace.arrivals_s) == sorted(trace.arrivals_s)
    assert [int(at_s // 60) for at_s in trace.arrivals_s] == [0, 0, 0, 1439, 1439]
    assert len(set(trace.arrivals_s)) == 5
    assert (len(trace.prompt_tokens), len(trace.generated_tokens)) == (0, 0)
    assert first.trace(seed=1) == trace != first.trace(seed=2)
    (alone,) = read_azure_functions(
        written(tmp_path, functions_header() + functions_row("b", {7: 1}))
    )
    assert alone.trace(seed=1) == second.trace(seed=1)  # whatever else was read


def azure(row: str) -> str:
    return f"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,1\n{row}\n"


WRONG_AZURE = {
    "": "line 0: it is empty",
    "a,b,c\n": "line 1: the header has no column 'TIMESTAMP'",
    "TIMESTAMP,ContextTokens\n": "line 1: the header has no column 'GeneratedTokens'",
    "TIMESTAMP,ContextTokens,GeneratedTokens\n": "line 1: it has no requests",
    azure("2023-11-16 18:17:03,1"): "line 3: 2 values, but the header has 3",
    azure("2023-11-16 18:17:03,1,2,3"): "line 3: 4 values, but the header has 3",
    azure("yesterday,1,2"): "line 3: TIMESTAMP: 'yesterday' is not a time",
    azure("2023-11-16 18:17:03,-1,2"): "line 3: ContextTokens: '-1' is not a whole number",
    azure("2023-11-16 18:17:03,1,1.5"): "line 3: GeneratedTokens: '1.5' is not a whole number",
    azure("2023-11-16 18:17:03,1,٣"): "line 3: GeneratedTokens: '٣' is not",
    azure(f"2023-11-16 18:17:03,1,{2**31}"): "line 3: GeneratedTokens: '2147483648' is not",
    azure("2003-11-16 18:17:03,1,2"): "line 3: its requests are more than ten years apart",
    azure("1" * 70_000): "line 3: longer than 65536 bytes",
}


@pytest.mark.parametrize("text", WRONG_AZURE, ids=range(len(WRONG_AZURE)))
def test_wrong_lines_of_azure_llm(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InvalidRequest) as caught:
        load_azure_llm(path)
    assert caught.value.message.startswith(f"{path} {WRONG_AZURE[text]}")


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf", "1e12", "", "soon"])
def test_wrong_seconds_of_burstgpt(tmp_path: Path, seconds: str) -> None:
    path = written(tmp_path, f"{BURST}{seconds},ChatGPT,1,1,2,API log\n")
    with pytest.raises(InvalidRequest, match=r"t\.csv line 5: Timestamp: .* is not a number"):
        load_burstgpt(path)


def test_wrong_counts_of_azure_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MAX_ARRIVALS", 100)
    for text, why in (
        (functions_header(1439), "line 1: the header has no column '1440'"),
        (functions_header() + functions_row("a", {3: "x"}), "line 2: 3: 'x' is not a whole"),
        (functions_header() + functions_row("a", {3: 101}), "line 2: 3: '101' is not a whole"),
        (functions_header() + functions_row("a", {3: 60, 4: 60}), "line 2: more than 100 inv"),
    ):
        with pytest.raises(InvalidRequest, match=why):
            list(read_azure_functions(written(tmp_path, text)))


def test_rows_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MAX_ROWS", 3)
    with pytest.raises(InvalidRequest, match="line 4: more than 3 rows"):
        load_azure_llm(written(tmp_path, AZURE))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"none\.csv: cannot be read \(No such file"):
        load_azure_llm(tmp_path / "none.csv")
    whole = gzip.compress(AZURE.encode() * 500)
    for damaged in (whole[:60], whole[:-8] + b"12345678", whole[:30] + b"\xff" * 20 + whole[50:]):
        with pytest.raises(InvalidRequest, match=r"t\.csv line \d+: "):
            load_azure_llm(written(tmp_path, damaged))
    with pytest.raises(InvalidRequest, match="line 2: not UTF-8"):
        load_azure_llm(written(tmp_path, AZURE.encode().replace(b"3180", b"\xff\xfe")))


@pytest.mark.parametrize(
    ("name", "requests", "prompt", "last_s"),
    [("code", 8819, 18_059_974, 3435.948056), ("conv", 19_366, 22_361_870, 3501.721937)],
)
def test_the_real_traces(name: str, requests: int, prompt: int, last_s: float) -> None:
    path = REAL / f"AzureLLMInferenceTrace_{name}.csv.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    trace = load_azure_llm(path)
    assert len(trace) == len(trace.generated_tokens) == requests
    assert sum(trace.prompt_tokens) == prompt
    assert (trace.arrivals_s[0], trace.arrivals_s[-1]) == (0.0, last_s)
