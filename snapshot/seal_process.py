"""The sealing process, run by sealer.py, for a model or for adapters of a sealed model:

    python -m snapshot.seal_process CACHE SOURCE DTYPE QUANTIZATION
    python -m snapshot.seal_process CACHE --adapters SNAPSHOT NAME=SOURCE ...

Writes JSON lines to its standard output: any number of {"progress": 0.5}, then one of
{"digest": "sha256-..."}, {"digests": {"NAME": "sha256-..."}} and
{"error": "UnsupportedModel", "message": "..."}. Its standard input is
a pipe that nobody writes to: when it ends, whoever asked for the snapshot is gone, and so it goes.
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter

from glowplug.errors import SnapshotError
from glowplug.spec import Dtype, Quantization

NICENESS = 10
_PROGRESS_STEP = 0.005


def main() -> int:
    """Seal what the command line says. Exit status 0 whenever the outcome was written."""
    cache, *what = sys.argv[1:]
    os.nice(NICENESS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Libraries may print: what they print must not end up between our lines.
    line: dict[str, Any]
    with os.fdopen(os.dup(1), "w", buffering=1) as out:
        os.dup2(2, 1)
        try:
            if what[0] == "--adapters":
                line = {"digests": _seal_adapters(cache, *what[1:])}
            else:
                source, dtype, quantization = what
                line = {"digest": _seal(out, cache, source, dtype=dtype, quantization=quantization)}
        except SnapshotError as error:
            line = {"error": type(error).__name__, "message": error.message}
        print(json.dumps(line), file=out)
    return 0


def _seal(out: IO[str], cache: str, source: str, *, dtype: str, quantization: str) -> str:
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
        cache=NodeCache(Path(cache)),
        progress=progress,
    )


def _seal_adapters(cache: str, snapshot: str, *sources: str) -> dict[str, str]:
    import torch

    from snapshot.adapter_seal import seal_adapter
    from snapshot.adapter_store import AdapterStore
    from snapshot.node_cache import NodeCache

    torch.set_num_threads(1)
    store = AdapterStore(NodeCache(Path(cache)))
    digests = {}
    for each in sources:
        name, _, source = each.partition("=")
        try:
            digests[name] = seal_adapter(source, snapshot=snapshot, store=store)
        except SnapshotError as error:
            raise type(error)(f"adapters.{name}: {error.message}") from None
    return digests


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
