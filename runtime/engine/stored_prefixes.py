"""Prefix snapshots: KV blocks of the hottest prompt prefixes, kept from one replica to the next.

A replica that is released writes them to one file beside its snapshot; the next one finds the first
blocks of a prompt there and copies them instead of computing them. The engine's thread loads;
whoever ends the engine saves, after its thread has ended.

    8 bytes      length of the header, little-endian
    16 bytes     XXH3-128 of the header
    header       JSON: {"signature", "entries": [[hash, uses, depth, XXH3-128 of the block], ...]}
    blocks       from the next multiple of 4096, each [layers, 2, block_size, kv_heads, head_dim]

A block is found by the hash that names it in memory too (runtime/engine/prefix.py), which covers
all tokens up to its end and the tenant; the signature covers whatever else keys and values depend
on. A block whose checksum is wrong ends the prefix: what follows is computed.

Which blocks: those that most prompts began with, then those nearest to the beginning. Uses of
replicas before count half, so that what was hot once is forgotten. A block is used at least as
often as any after it and is nearer to the beginning, so a chosen block's ancestors are chosen too.
"""

import json
import logging
import mmap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from xxhash import xxh3_128_digest

from runtime.engine.kv_cache import KVCache

FILE = "prefixes.kv"
_PAGE_BYTES = 4096
_MAX_HEADER_BYTES = 16 << 20
_VERSION = 1  # raise it when the same tokens would get other keys or values
_MAX_COUNTED = 1 << 16  # hashes whose uses are counted
_CHECKSUM_BYTES = 16

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Uses:
    """How often prompts had a block, and how many blocks come before it."""

    count: int
    depth: int


class StoredPrefixes:
    """Implements runtime.engine.scheduler.PrefixSource over one file."""

    def __init__(self, path: Path, kv: KVCache, *, kernels: str, max_bytes: int) -> None:
        """`path` lies in the snapshot's folder. A file that is missing, damaged or of another
        signature holds nothing; `kernels` names those that compute, as each rounds in its way."""
        self._kv = kv
        self._signature = f"{_VERSION} {path.parent.name} {kernels} {kv.dtype} {kv.block_shape}"
        self._max_blocks = max_bytes // kv.block_bytes
        self._uses: dict[bytes, _Uses] = {}
        self._stored: dict[bytes, tuple[Tensor, bytes]] = {}  # each block with its checksum
        try:
            self._open(path)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError) as error:
            log.warning("%s: passed over (%s)", path, error)

    def note(self, hashes: Sequence[bytes]) -> None:
        """A prompt begins with these blocks."""
        if len(self._uses) + len(hashes) > _MAX_COUNTED:
            kept = sorted(self._uses, key=self._rank)[: _MAX_COUNTED // 2]
            self._uses = {digest: self._uses[digest] for digest in kept}
        for depth, digest in enumerate(hashes[:_MAX_COUNTED]):
            self._uses.setdefault(digest, _Uses(0, depth)).count += 1

    def load(self, hashes: Sequence[bytes], blocks: Sequence[int]) -> int:
        """Fill blocks with the stored beginning of a chain; for how many there was one."""
        for loaded, (digest, block) in enumerate(zip(hashes, blocks, strict=False)):
            if digest not in self._stored:
                return loaded
            data, checksum = self._stored[digest]
            if _checksum(data) != checksum:
                log.warning("a stored prefix block is damaged; it is computed again")
                del self._stored[digest]
                return loaded
            self._kv.block(block).copy_(data)
        return min(len(hashes), len(blocks))

    def save(self, published: Mapping[bytes, int], path: Path) -> int:
        """Write the hottest of the published blocks (in the KV cache) and of the stored ones to
        a new file; how many. None are written where the file there is would hold the same.

        Raises:
            OSError: the disk is full, for one.
        """
        known = (digest for digest in self._uses if digest in published or digest in self._stored)
        chosen = sorted(known, key=self._rank)[: self._max_blocks]
        if set(chosen) == self._stored.keys():
            return 0
        blocks = (
            self._kv.block(published[digest]) if digest in published else self._stored[digest][0]
            for digest in chosen
        )
        uses = [self._uses[digest] for digest in chosen]
        self._write(path, list(zip(chosen, uses, strict=True)), blocks)
        return len(chosen)

    def _rank(self, digest: bytes) -> tuple[int, int]:
        uses = self._uses[digest]
        return -uses.count, uses.depth

    def _open(self, path: Path) -> None:
        """Map the file. Raises OSError, ValueError, TypeError."""
        with path.open("rb") as file:
            data = mmap.mmap(
                file.fileno(),
                0,
                flags=mmap.MAP_PRIVATE,
                prot=mmap.PROT_READ | mmap.PROT_WRITE,  # torch wants it; nothing is written
            )
        length = int.from_bytes(data[:8], "little")
        if length > min(_MAX_HEADER_BYTES, len(data)):
            raise ValueError("it is cut short")
        text = data[24 : 24 + length]
        if xxh3_128_digest(text) != data[8:24]:
            raise ValueError("its header is damaged")
        header = json.loads(text)
        if header["signature"] != self._signature:
            return
        start, size = _data_offset(length), self._kv.block_bytes
        entries = header["entries"]
        if start + len(entries) * size != len(data):
            raise ValueError("it is cut short")
        flat = torch.frombuffer(data, dtype=torch.uint8)
        for n, (digest, uses, depth, checksum) in enumerate(entries):
            block = flat.narrow(0, start + n * size, size)
            self._stored[bytes.fromhex(digest)] = (
                block.view(self._kv.dtype).view(self._kv.block_shape),
                bytes.fromhex(checksum),
            )
            self._uses[bytes.fromhex(digest)] = _Uses(uses // 2, depth)

    def _write(
        self, path: Path, chosen: Sequence[tuple[bytes, _Uses]], blocks: Iterable[Tensor]
    ) -> None:
        checksums = [bytes(_CHECKSUM_BYTES)] * len(chosen)
        start = _data_offset(len(self._header(chosen, checksums)))
        with path.open("xb") as file:
            file.seek(start)
            for n, block in enumerate(blocks):
                whole = block.contiguous()
                checksums[n] = _checksum(whole)
                file.write(_bytes(whole))
            header = self._header(chosen, checksums)
            file.seek(0)
            file.write(len(header).to_bytes(8, "little") + xxh3_128_digest(header) + header)

    def _header(self, chosen: Sequence[tuple[bytes, _Uses]], checksums: Sequence[bytes]) -> bytes:
        entries = [
            (digest.hex(), uses.count, uses.depth, checksum.hex())
            for (digest, uses), checksum in zip(chosen, checksums, strict=True)
        ]
        return json.dumps({"signature": self._signature, "entries": entries}).encode()


def _data_offset(header_bytes: int) -> int:
    return -(-(8 + _CHECKSUM_BYTES + header_bytes) // _PAGE_BYTES) * _PAGE_BYTES


def _bytes(block: Tensor) -> memoryview:
    data: memoryview = block.view(torch.uint8).flatten().numpy().data
    return data


def _checksum(block: Tensor) -> bytes:
    return xxh3_128_digest(_bytes(block))
