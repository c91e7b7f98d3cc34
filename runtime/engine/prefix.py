"""Block hashes: names for the contents of KV blocks, chained from the first token on.

A block's keys and values depend on all tokens up to its last one, so its hash covers them through
its parent's hash. The root covers whose they are, and with which adapter they were computed:
sequences of different salts (tenants) never share, nor do those of different adapters, which are
told apart by content, never by name.
"""

import hashlib
from array import array

from runtime.engine.request import GenerationRequest
from runtime.engine.sequence import Sequence

_ROOT = b"glowplug kv block 1\0"


def extend_hashes(sequence: Sequence, *, tokens: int, block_size: int) -> None:
    """Bring `sequence.hashes` up to its full blocks among the first `tokens` tokens."""
    for n in range(len(sequence.hashes), tokens // block_size):
        block = array("Q", sequence.tokens[n * block_size : (n + 1) * block_size])
        parent = sequence.hashes[-1] if n else _root(sequence.request)
        sequence.hashes.append(hashlib.sha256(parent + block.tobytes()).digest())


def _root(request: GenerationRequest) -> bytes:
    """Each part has a tag and a fixed length, so that no salt can look like an adapter."""
    root = _part(b"tenant\0", request.cache_salt)
    if request.adapter is not None:
        root += _part(b"adapter\0", request.adapter.digest)
    return hashlib.sha256(_ROOT + root).digest()


def _part(tag: bytes, text: str) -> bytes:
    return hashlib.sha256(tag + text.encode()).digest()
