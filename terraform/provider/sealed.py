"""Waiting until a deployed function can be called."""

import sys
import time
from typing import Any

from glowplug.client import Client, Json
from glowplug.errors import GlowplugError, NotFound, Unavailable

_FIRST_POLL_S, _LAST_POLL_S = 0.1, 2.0
_OUTAGE_S = 20.0  # a server that restarts is waited for so long

CALLABLE, SEALING, FAILED = "callable", "sealing", "failed"


class NotCallable(GlowplugError):
    """The model cannot be sealed, or is not sealed in time."""


def status_of(function: Json) -> str:
    """What became of the deployment; unlike the function's state it does not change with its
    traffic."""
    if function["failure"] is not None:
        return FAILED
    return SEALING if function["snapshot"] is None else CALLABLE


def await_callable(client: Client, function: Json, *, limit_s: float) -> Json:
    """Wait until the function's model is sealed; the function as it is then.

    A short outage of the server is waited out: the work goes on when it is back.

    Raises:
        NotCallable: sealing failed, took too long, or the function was deleted meanwhile.
        GlowplugError: the server cannot be asked.
    """
    wait = _Wait(client, function, limit_s)
    while (status := status_of(wait.function)) == SEALING:
        wait.poll()
    if status == FAILED:
        raise NotCallable(f"its model cannot be sealed: {wait.function['failure']}")
    return wait.function


class _Wait:
    """Polls one function, ever more seldom, for so long at most."""

    def __init__(self, client: Client, function: Json, limit_s: float) -> None:
        self.function = function
        self._client = client
        self._limit_s = limit_s
        self._deadline_s = time.monotonic() + limit_s
        self._pause_s = _FIRST_POLL_S
        self._heard_s = time.monotonic()

    def poll(self) -> None:
        """Wait a while and look. Raises as `await_callable` says."""
        name = self.function["name"]
        if time.monotonic() > self._deadline_s:
            raise NotCallable(
                f"its model is not sealed after {self._limit_s:g} s ({_progress(self.function)}); "
                "the server goes on: raise wait_timeout, then apply again"
            )
        time.sleep(self._pause_s)
        self._pause_s = min(_LAST_POLL_S, self._pause_s * 1.5)
        try:
            self.function = self._client.function(name)
        except NotFound as error:
            if error.code != "function_not_found":
                raise
            raise NotCallable("it was deleted while its model was sealed") from None
        except Unavailable:
            if time.monotonic() - self._heard_s > _OUTAGE_S:
                raise
        else:
            self._heard_s = time.monotonic()
            # Terraform shows what a provider says here with TF_LOG=info.
            sys.stderr.write(f"[INFO] {name}: {_progress(self.function)}\n")
            sys.stderr.flush()


def _progress(function: dict[str, Any]) -> str:
    done = function["sealing_progress"]
    share = "waiting for its turn" if done is None else f"{done:.0%} done"
    return f"state {function['state']}, {share}"
