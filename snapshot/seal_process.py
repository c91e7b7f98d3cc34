"""The sealing process, run by sealer.py, for a model or for adapters of a sealed model:

    python -m snapshot.seal_process CACHE [--s3-endpoint URL] SOURCE DTYPE QUANTIZATION [DRAFT]
    python -m snapshot.seal_process CACHE --adapters SNAPSHOT NAME=SOURCE ...

Its outcome is {"digest": "sha256-..."} or {"digests": {"NAME": "sha256-..."}}; child_job.py says
how it tells it.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from glowplug.errors import SnapshotError
from glowplug.spec import Dtype, Quantization
from snapshot.child_job import serve_job


def main() -> int:
    """Seal what the command line says. Exit status 0 whenever the outcome was written."""
    cache, *what = sys.argv[1:]

    def work(progress: Callable[[float], None]) -> dict[str, Any]:
        if what[0] == "--adapters":
            return {"digests": _seal_adapters(cache, *what[1:])}
        endpoint = None
        if what[0] == "--s3-endpoint":
            _, endpoint, *model = what
        else:
            model = what
        return {"digest": _seal(cache, *model, endpoint_url=endpoint, progress=progress)}

    return serve_job(work)


def _seal(
    cache: str, *what: str, endpoint_url: str | None, progress: Callable[[float], None]
) -> str:
    import torch

    from snapshot.node_cache import NodeCache
    from snapshot.seal_anywhere import seal_anywhere

    source, dtype, quantization, *draft = what
    checked_dtype: Dtype = TypeAdapter(Dtype).validate_python(dtype)
    checked_quantization: Quantization = TypeAdapter(Quantization).validate_python(quantization)
    torch.set_num_threads(1)  # replicas need the other cores more
    return seal_anywhere(
        source,
        dtype=checked_dtype,
        quantization=checked_quantization,
        draft=draft[0] if draft else None,
        endpoint_url=endpoint_url,
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
    digests: dict[str, str] = {}
    for each in sources:
        name, _, source = each.partition("=")
        try:
            digests[name] = seal_adapter(
                source, snapshot=snapshot, store=store, keep=digests.values()
            )
        except SnapshotError as error:
            raise type(error)(f"adapters.{name}: {error.message}") from None
    return digests


if __name__ == "__main__":
    sys.exit(main())
