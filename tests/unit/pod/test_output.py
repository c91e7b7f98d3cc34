"""What processes print becomes log lines, however it is cut into pieces."""

import asyncio
import logging
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.pod import output as module
from runtime.pod.output import Output, open_log

WORDS = st.text("ab é\t", min_size=1, max_size=6)


@settings(
    derandomize=True,
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(lines=st.lists(WORDS, max_size=8), cuts=st.lists(st.integers(1, 7)), end=st.booleans())
def test_lines_do_not_depend_on_pieces(
    caplog: pytest.LogCaptureFixture, lines: list[str], cuts: list[int], end: bool
) -> None:
    async def main() -> str:
        output = Output("r1")
        data = "\n".join(lines).encode() + (b"\n" if end else b"")
        for cut in [*cuts, len(data)]:
            os.write(output.write_end, data[:cut])
            data = data[cut:]
            await asyncio.sleep(0)
        return output.finish()

    caplog.clear()
    with caplog.at_level(logging.INFO, logger="glowplug.pod"):
        last = asyncio.run(main())
    wanted = [line.rstrip() for line in lines if line.strip()]
    assert caplog.messages == [f"r1: {line}" for line in wanted]
    assert last == (wanted[-1].strip() if wanted else "")


def test_an_endless_line_is_cut(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_LINE_BYTES", 100)

    async def main() -> None:
        output = Output("r1")
        for _ in range(10):
            os.write(output.write_end, b"x" * 1000)
            await asyncio.sleep(0.001)
        output.finish()

    with caplog.at_level(logging.INFO, logger="glowplug.pod"):
        asyncio.run(main())
    assert caplog.messages
    assert all(len(message) <= 104 for message in caplog.messages)


def test_finish_gives_back_all_descriptors() -> None:
    async def main() -> None:
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        output = Output("r1")
        os.write(output.write_end, b"one\ntwo")
        assert output.finish() == "two"
        assert output.finish() == "two"
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208

    asyncio.run(main())


def test_the_log_file_holds_the_names(tmp_path: Path) -> None:
    async def main() -> None:
        output = Output("r1")
        os.write(output.write_end, b"hello\n")
        output.finish()

    root, log = logging.getLogger(), logging.getLogger("glowplug.pod")
    handlers, level = list(root.handlers), log.level
    try:
        open_log(tmp_path / "logs")
        asyncio.run(main())
    finally:
        for handler in set(root.handlers) - set(handlers):
            root.removeHandler(handler)
            handler.close()
        log.setLevel(level)
    assert (tmp_path / "logs" / "pod.log").read_text().endswith(" INFO r1: hello\n")
