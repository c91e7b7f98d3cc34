"""Which requests go on to a replica, and so may wake one."""

import re

from starlette.exceptions import HTTPException

# The OpenAI calls that generate; other methods on them are refused without waking anybody.
POST_ONLY = frozenset(("chat/completions", "completions"))
ANSWERED_HERE = {"models": "GET", "functions": "GET, POST, PUT, DELETE"}
_SAFE_PATH = re.compile(r"[A-Za-z0-9_~.-]+(/[A-Za-z0-9_~.-]+)*")
_NEVER_SENT_ON = frozenset(("HEAD", "OPTIONS"))


def check_route(method: str, path: str, *, by_model: bool) -> None:
    """Check the request to /v1/`path`, of a function that the body (`by_model`) or the path names.

    Raises:
        HTTPException: 404, 405.
    """
    parts = path.split("/")
    if _SAFE_PATH.fullmatch(path) is None or ".." in parts:
        raise HTTPException(404)
    if parts[0] in ANSWERED_HERE:
        raise HTTPException(405, headers={"Allow": ANSWERED_HERE[parts[0]]})
    if by_model or path in POST_ONLY:
        if method != "POST":
            raise HTTPException(405, headers={"Allow": "POST"})
    elif method in _NEVER_SENT_ON:
        raise HTTPException(405, headers={"Allow": "GET, POST, PUT, PATCH, DELETE"})
