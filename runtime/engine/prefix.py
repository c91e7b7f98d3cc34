"""Block hashes: names for the contents of KV blocks, chained from the first token on.

A block's keys and values depend on all tokens up to its last one, so its hash covers them through
its parent's hash. The root covers the salt: sequences of different salts (tenants) never share.
"""

import hashlib
from array import array

from runtime.engine.sequence import Sequence

_ROOT = b"glowplug kv block 1\0"


def extend_hashes(sequence: Sequence, *, tokens: int, block_size: int) -> None:
    """Bring `sequence.hashes` up to its full blocks among the first `tokens` tokens."""
    for n in range(len(sequence.hashes), tokens // block_size):
        block = array("Q", sequence.tokens[n * block_size : (n + 1) * block_size])
        parent = sequence.hashes[-1] if n else _root(sequence.request.cache_salt)
        sequence.hashes.append(hashlib.sha256(parent + block.tobytes()).digest())


def _root(salt: str) -> bytes:
    return hashlib.sha256(_ROOT + salt.encode()).digest()
