"""List a source in S3, in a process of its own, run by sealer.py: boto3 stays out of the server.

    python -m snapshot.source_process SOURCE [ENDPOINT]

Its outcome is {"kind": "gguf", "text": "s3://...", "identity": "..."}, see s3_source.py.
"""

import sys
from collections.abc import Callable
from typing import Any

from snapshot.child_job import serve_job


def main() -> int:
    """List what the command line says."""
    source, *endpoint = sys.argv[1:]

    def work(_: Callable[[float], None]) -> dict[str, Any]:
        from snapshot.s3_source import list_source

        found = list_source(source, endpoint[0] if endpoint else None)
        return {"kind": found.kind, "text": found.text, "identity": found.identity}

    return serve_job(work)


if __name__ == "__main__":
    sys.exit(main())
