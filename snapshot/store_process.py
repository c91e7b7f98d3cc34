"""A transfer in a process of its own, run by supply.py, so that boto3 and the hashing stay out of
the serving process:

    python -m snapshot.store_process pull|push CACHE DIGEST STORE [ENDPOINT]

Its outcome is {"changed": true}: whether anything had to be moved.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from snapshot.child_job import serve_job


def main() -> int:
    """Transfer one snapshot as the command line says."""
    direction, root, digest, address, *rest = sys.argv[1:]

    def work(progress: Callable[[float], None]) -> dict[str, Any]:
        from snapshot.node_cache import NodeCache
        from snapshot.s3_location import parse_location
        from snapshot.s3_store import S3Store
        from snapshot.transfer import pull, push

        store = S3Store(parse_location(address, rest[0] if rest else None))
        cache = NodeCache(Path(root))
        if direction == "push":
            return {"changed": push(store, digest, cache=cache, progress=progress)}
        pulled = pull(store, digest, cache=cache, progress=progress)
        return {"changed": pulled.fetched_bytes > 0}

    return serve_job(work)


if __name__ == "__main__":
    sys.exit(main())
