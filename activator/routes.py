"""Which requests go on to a replica, and so may wake one: the calls that a replica answers."""

from starlette.exceptions import HTTPException

CALLS = frozenset(  # all are POSTs
    ("chat/completions", "completions", "embeddings", "tokenize", "detokenize")
)
ANSWERED_HERE = {"models": "GET", "functions": "GET, POST, PUT, DELETE"}


def check_route(method: str, path: str) -> None:
    """Check the request to /v1/`path`, of a function that the path or the body names.

    Raises:
        HTTPException: 404, 405.
    """
    if path in CALLS:
        if method != "POST":
            raise HTTPException(405, headers={"Allow": "POST"})
    elif allowed := ANSWERED_HERE.get(path.split("/", maxsplit=1)[0]):
        raise HTTPException(405, headers={"Allow": allowed})
    else:
        raise HTTPException(404)
