"""tests/research_complaints.md has all 26 complaints, and the tests that it names exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[2]
PAGE = (TESTS / "research_complaints.md").read_text()


def table() -> dict[int, list[tuple[str, str]]]:
    """Number → (file, test) of each."""
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (.+) \|$", PAGE, re.MULTILINE)
    return {int(n): re.findall(r"`([\w/]+\.py)::(\w+)`", tests) for n, _, tests in rows}


def test_all_of_them_are_there() -> None:
    assert list(table()) == list(range(1, 27))
    assert all(table().values())


def test_the_tests_exist() -> None:
    missing = [
        f"{number}: {file}::{test}"
        for number, tests in table().items()
        for file, test in tests
        if not (TESTS / file).is_file()
        or not re.search(rf"^ *(async )?def {test}\(", (TESTS / file).read_text(), re.MULTILINE)
    ]
    assert missing == []


def test_the_numbered_tests_are_named() -> None:
    """A test whose name begins with a number is a row's."""
    named = {test for tests in table().values() for _, test in tests}
    numbered = re.findall(
        r"def (test_\d+_\w+)\(", (TESTS / "unit" / "engine" / "test_complaints.py").read_text()
    )
    assert numbered
    assert set(numbered) <= named
