"""How much of a snapshot is read and compared with its manifest before it is served.

`always`  every byte of every file
`sampled` two random pieces of the large files, and every small file: an unlucky bit is found soon
`never`   sizes and the weights' header only (restore.py looks at these in any case)

Called by replicas (runtime/pod/replica.py) and `glowplug snapshots verify`. No torch.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from glowplug.errors import CorruptSnapshot
from snapshot.hashing import Piece, damaged, pieces
from snapshot.manifest import Manifest

Verification = Literal["always", "sampled", "never"]

_SAMPLES = 2
_MAX_THREADS = 8


def verify_files(
    folder: Path,
    manifest: Manifest,
    policy: Verification = "always",
    *,
    progress: Callable[[float], None] = lambda _: None,
) -> None:
    """Compare the snapshot's files with its manifest. `progress` gets 0.0 to 1.0, from any thread.

    Raises:
        CorruptSnapshot: a file was changed or cannot be read; the message names it and the place.
    """
    wanted = _chosen(manifest, policy)
    total = sum(piece.size for piece in wanted) or 1
    done = 0

    def checked(piece: Piece) -> None:
        nonlocal done
        done += piece.size  # two threads may lose a step of the bar: harmless
        progress(min(1.0, done / total))

    threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
    try:
        bad = damaged(folder, wanted, threads=threads, checked=checked) if wanted else []
    except OSError as error:
        raise CorruptSnapshot(
            f"{error.filename or folder}: cannot be read ({error.strerror})"
        ) from None
    if bad:
        first = bad[0]
        raise CorruptSnapshot(
            f"{folder / first.name}: its bytes changed since it was sealed (of {len(wanted)} "
            f"pieces {len(bad)}, the first at byte {first.offset}); seal its model again"
        )


def _chosen(manifest: Manifest, policy: Verification) -> list[Piece]:
    if policy == "never":
        return []
    everything = {name: pieces(name, entry) for name, entry in manifest.files.items()}
    if policy == "always":
        return [piece for each in everything.values() for piece in each]
    small = [each[0] for each in everything.values() if len(each) == 1]
    large = [piece for each in everything.values() if len(each) > 1 for piece in each]
    return small + random.sample(large, min(_SAMPLES, len(large)))
