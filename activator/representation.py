"""How a function looks to users: GET /v1/functions/{name}, `glowplug describe`, Terraform."""

import re
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from activator.prewarms import represent_run
from glowplug.contracts import (
    Function,
    FunctionState,
    FunctionStatus,
    Replica,
    ReplicaState,
)

RUNS_SHOWN = 10  # of all prewarms together; the sub-resource has each one's own
_SANE_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}")


def represent(
    function: Function, status: FunctionStatus | None, *, base_url: str
) -> dict[str, Any]:
    """The JSON form. `status` is None where the endpoints do not know the function yet."""
    name = function.spec.name
    invoke_url = f"{base_url}/f/{name}"
    replicas = status.replicas if status else ()
    return {
        "name": name,
        "spec": function.spec.model_dump(mode="json"),
        "revision": function.revision,
        "generation": function.generation,
        "state": (status.state if status else _state_of(function)).value,
        "reason": status.reason if status else function.failure,
        "sealing_progress": status.sealing_progress if status else None,
        "snapshot": function.snapshot,
        "adapters": dict(function.adapters),
        "failure": function.failure,
        "replicas": {
            "ready": _count(replicas, ReplicaState.READY),
            "starting": _count(replicas, ReplicaState.STARTING),
            "sleeping": sum(replica.asleep for replica in replicas),  # of the ready ones
            "draining": _count(replicas, ReplicaState.DRAINING),
            "desired": status.desired if status else 0,
        },
        "desired_reason": status.desired_reason if status else "",
        "in_flight": status.in_flight if status else 0,
        "queued": status.queued if status else 0,
        "last_start_ms": dict(status.last_start_ms) if status else {},
        "max_context": status.max_context if status else None,
        "prewarms": [represent_run(run) for run in status.prewarms[:RUNS_SHOWN]] if status else [],
        "invoke_url": invoke_url,
        "openai_base_url": f"{invoke_url}/v1",
        "created": function.created_s,
        "updated": function.updated_s,
    }


def base_url_of(request: Request, public_url: str | None) -> str:
    """Where clients reach this server: as configured, else as the request's Host says."""
    if public_url is not None:
        return public_url.rstrip("/")
    host = request.headers.get("host", "")
    if _SANE_HOST.fullmatch(host) is None:
        address, port = request.scope.get("server") or ("127.0.0.1", None)
        host = f"{address}:{port}" if port else address
    return f"{request.url.scheme}://{host}"


def _state_of(function: Function) -> FunctionState:
    if function.failure is not None:
        return FunctionState.FAILED
    return FunctionState.SEALING if function.snapshot is None else FunctionState.ZERO


def _count(replicas: Sequence[Replica], state: ReplicaState) -> int:
    return sum(replica.state is state for replica in replicas)
