"""Reading mapped files into memory, and saying how it went."""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from snapshot import page_cache, reading
from snapshot.block_writer import BlockWriter
from snapshot.page_cache import (
    address_of,
    mmap_noreserve,
    populate,
    read_into_page_cache,
    resident_bytes,
)
from snapshot.reading import Reading

SIZE = 37 * 2**20 + 4096  # several pieces, the last one short
WAIT_S = 20.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(2**20) * (SIZE // 2**20) + bytes(SIZE % 2**20))
    return path


@pytest.fixture
def mapping(path: Path) -> Iterator[mmap.mmap]:
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE | mmap_noreserve())
    yield mapping
    mapping.close()


def drop(path: Path) -> None:
    """Out of the page cache, or the test is skipped."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    if resident(path) > SIZE // 100:
        pytest.skip("this file system keeps the pages, or cannot say")


def resident(path: Path) -> int:
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE | mmap_noreserve()) as mapping,
    ):
        return resident_bytes(address_of(mapping), len(mapping))


def faults() -> int:
    """Minor page faults of this process so far."""
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[7])


def test_a_written_file_is_resident_and_a_dropped_one_is_not(path: Path) -> None:
    assert resident(path) == SIZE
    drop(path)
    assert resident(path) <= SIZE // 100


@pytest.mark.parametrize("readers", [1, 3])
def test_populating_reads_all_of_it(path: Path, mapping: mmap.mmap, readers: int) -> None:
    drop(path)
    populate(address_of(mapping), SIZE, readers=readers)
    assert resident(path) == SIZE
    assert mapping[:] == path.read_bytes()


def test_a_populated_mapping_takes_no_faults(path: Path, mapping: mmap.mmap) -> None:
    populate(address_of(mapping), SIZE, readers=2)
    before = faults()
    total = sum(mapping[offset] for offset in range(0, SIZE, mmap.PAGESIZE))
    assert faults() - before < 100  # of 9,473 pages; those are Python's own
    assert total > 0


def test_populating_past_the_end_is_an_error(path: Path, mapping: mmap.mmap) -> None:
    os.truncate(path, SIZE // 2)
    with pytest.raises(OSError, match="Bad address"):
        populate(address_of(mapping), SIZE, readers=3)


def test_reading_a_file_into_the_cache(path: Path) -> None:
    drop(path)
    assert read_into_page_cache(path) == SIZE
    assert resident(path) == SIZE


def test_without_populate_the_file_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(page_cache, "populate", refuse)
    drop(path)
    assert read_into_page_cache(path) == SIZE
    assert resident(path) == SIZE


def test_a_file_over_the_free_memory_is_left_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop(path)
    monkeypatch.setattr(page_cache, "available_bytes", lambda: SIZE - 1)
    assert read_into_page_cache(path) == SIZE
    assert resident(path) <= SIZE // 100


def test_a_cold_mapping_is_read(path: Path, mapping: mmap.mmap) -> None:
    drop(path)
    one = Reading(mapping)
    assert one.wait(WAIT_S)
    assert one.mode == "read"
    assert one.was_cached < 0.1
    assert resident(path) == SIZE


def test_a_cached_mapping_is_only_mapped(mapping: mmap.mmap) -> None:
    one = Reading(mapping)
    assert one.wait(WAIT_S)
    assert (one.mode, one.was_cached) == ("mapped", 1.0)


def test_without_memory_or_kernel_support_it_is_on_demand(
    path: Path, mapping: mmap.mmap, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(reading, "populate", refuse)
    one = Reading(mapping)
    assert one.wait(WAIT_S)
    assert one.mode == "on demand"
    monkeypatch.undo()
    drop(path)
    monkeypatch.setattr(reading, "available_bytes", lambda: 0)
    one = Reading(mapping)
    assert one.wait(WAIT_S)
    assert one.mode == "on demand"
    assert mapping[:] == path.read_bytes()


@pytest.mark.parametrize("pieces", [[], [1], [4 * 2**20], [5, 4 * 2**20 + 3, 9 * 2**20, 1, 0, 7]])
def test_blocks_come_out_as_they_went_in(tmp_path: Path, pieces: list[int]) -> None:
    data = [os.urandom(size) for size in pieces]
    path = tmp_path / "file"
    with path.open("xb", buffering=0) as file:
        blocks = BlockWriter(file)
        for piece in data:
            blocks.write(memoryview(piece))
        blocks.finish()
    assert path.read_bytes() == b"".join(data)


def test_only_whole_blocks_are_written_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("xb", buffering=0) as file:
        blocks = BlockWriter(file)
        for _ in range(9):
            blocks.write(memoryview(bytes(10**6)))
            assert path.stat().st_size % (4 * 2**20) == 0
        blocks.finish()
    assert path.stat().st_size == 9 * 10**6
