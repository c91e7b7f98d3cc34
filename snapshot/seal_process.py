"""The sealing process, run by sealer.py:

    python -m snapshot.seal_process CACHE SOURCE DTYPE QUANTIZATION [DRAFT]

Writes JSON lines to its standard output: any number of {"progress": 0.5}, then one of
{"digest": "sha256-..."} and {"error": "UnsupportedModel", "message": "..."}. Its standard input is
a pipe that nobody writes to: when it ends, whoever asked for the snapshot is gone, and so it goes.
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter

from glowplug.errors import SnapshotError
from glowplug.spec import Dtype, Quantization

NICENESS = 10
_PROGRESS_STEP = 0.005


def main() -> int:
    """Seal one source as the command line says. Exit status 0 whenever the outcome was written."""
    cache, source, dtype, quantization, *rest = sys.argv[1:]
    draft = rest[0] if rest else None
    os.nice(NICENESS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Libraries may print: what they print must not end up between our lines.
    with os.fdopen(os.dup(1), "w", buffering=1) as out:
        os.dup2(2, 1)
        try:
            digest = _seal(out, cache, source, dtype=dtype, quantization=quantization, draft=draft)
            line = {"digest": digest}
        except SnapshotError as error:
            line = {"error": type(error).__name__, "message": error.message}
        print(json.dumps(line), file=out)
    return 0


def _seal(
    out: IO[str], cache: str, source: str, *, dtype: str, quantization: str, draft: str | None
) -> str:
    import torch

    from snapshot.node_cache import NodeCache
    from snapshot.seal import seal

    checked_dtype: Dtype = TypeAdapter(Dtype).validate_python(dtype)
    checked_quantization: Quantization = TypeAdapter(Quantization).validate_python(quantization)
    torch.set_num_threads(1)  # replicas need the other cores more
    last = 0.0

    def progress(fraction: float) -> None:
        nonlocal last
        if fraction - last >= _PROGRESS_STEP or fraction == 1.0:
            last = fraction
            print(json.dumps({"progress": round(fraction, 4)}), file=out)

    return seal(
        source,
        dtype=checked_dtype,
        quantization=checked_quantization,
        draft=draft,
        cache=NodeCache(Path(cache)),
        progress=progress,
    )


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
