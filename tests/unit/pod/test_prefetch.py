"""Reading ahead."""

import hashlib
import logging
import os
import time
from pathlib import Path

import pytest

from runtime.pod.prefetch import ReadAhead, read_ahead
from snapshot.manifest import MANIFEST
from snapshot.node_cache import NodeCache


def test_every_file_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"x" * (20 << 20))  # several pieces
    (tmp_path / "manifest").write_bytes(b"y" * 10)
    (tmp_path / "empty").touch()
    assert read_ahead(tmp_path) == (20 << 20) + 10


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_ahead(tmp_path / "none")


def test_pages_get_into_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    size = 8 << 20
    path.write_bytes(os.urandom(size))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, size, os.POSIX_FADV_DONTNEED)
        if _cached(descriptor, size):
            pytest.skip("this file system keeps the pages, or cannot say")
        read_ahead(tmp_path)
        deadline_s = time.monotonic() + 10
        while not _cached(descriptor, size) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert _cached(descriptor, size)
    finally:
        os.close(descriptor)


def _cached(descriptor: int, size: int) -> bool:
    """Whether a read at the end needs no disk."""
    try:
        os.preadv(descriptor, [bytearray(4096)], size - 4096, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:  # not supported here
        return True
    return True


def test_a_bad_request_does_not_stop_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    digest = "sha256-" + hashlib.sha256(b"").hexdigest()
    (tmp_path / digest).mkdir()
    (tmp_path / digest / MANIFEST).write_bytes(b"z" * 77)
    with caplog.at_level(logging.INFO, logger="glowplug.pod"):
        ahead = ReadAhead(NodeCache(tmp_path))
        ahead.ask("../../etc")
        ahead.ask(digest)
        deadline_s = time.monotonic() + 10
        while len(caplog.messages) < 2 and time.monotonic() < deadline_s:
            time.sleep(0.01)
    assert "no snapshot '../../etc'" in caplog.messages[0]
    assert caplog.messages[1] == f"read ahead: {digest}, 77 bytes"
