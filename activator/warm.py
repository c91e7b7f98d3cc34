"""POST /f/{function}/warm: have a replica ready before the requests come."""

import time
from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from activator.clocks import client_present, deadline, timeouts_of
from activator.dispatch import Lane
from activator.exchange import exchange_of
from activator.functions import Functions
from activator.headers import waited_for_start
from activator.lanes import Lanes
from activator.reasons import retry_after_s, why_waiting
from activator.ticket import Target
from glowplug.contracts import FunctionState
from glowplug.errors import StartTimeout


class Warm:
    """The endpoint. It counts as demand for one replica for as long as it waits."""

    def __init__(self, *, functions: Functions, lanes: Lanes) -> None:
        self._functions = functions
        self._lanes = lanes

    async def post(self, request: Request) -> Response:
        """200 once a replica is ready; 202 when one still starts as the start clock runs out.

        A client that does not want to wait sends a short `X-Start-Timeout`: the start goes on.

        Raises:
            NotFound, InvalidRequest.
            Unavailable: the function has failed.
        """
        exchange = exchange_of(request.scope)
        function = await self._functions.get(request.path_params["function"])
        timeouts = timeouts_of(function.spec, request.headers)
        lane = self._lanes.of(function.spec.name)
        exchange.function = lane.function
        exchange.laps.until("admission")
        entered_s = time.monotonic()
        try:
            async with (
                client_present(exchange.receive),
                deadline(entered_s + timeouts.start_s, partial(_still_starting, lane)),
            ):
                target = await lane.ready()
        except StartTimeout as late:
            return _not_yet(lane, late, entered_s)
        exchange.laps.until("start")
        exchange.replica = target.replica.id
        return _ready(lane, target, entered_s)


def _ready(lane: Lane, target: Target, entered_s: float) -> Response:
    cold = waited_for_start(entered_s, target)
    kind = target.replica.start_kind.value if cold else "warm"
    return JSONResponse(
        {
            "function": lane.function,
            "state": FunctionState.READY.value,
            "revision": target.replica.revision,
            "start_kind": kind,
            "waited_ms": _ms_since(entered_s),
            "stages_ms": dict(target.replica.stages_ms),
        },
        headers={
            "x-function": lane.function,
            "x-revision": target.replica.revision,
            "x-cold-start": "true" if cold else "false",
            "x-start-kind": kind,
        },
    )


def _not_yet(lane: Lane, late: StartTimeout, entered_s: float) -> Response:
    status = lane.status()
    return JSONResponse(
        {
            "function": lane.function,
            "state": (status.state if status else FunctionState.ZERO).value,
            "reason": late.message,
            "waited_ms": _ms_since(entered_s),
            "stages_ms": {},
        },
        status_code=202,
        headers={"x-function": lane.function, **late.headers()},
    )


def _still_starting(lane: Lane) -> StartTimeout:
    status = lane.status()
    return StartTimeout(why_waiting(status), retry_after_s=retry_after_s(status))


def _ms_since(start_s: float) -> float:
    return round((time.monotonic() - start_s) * 1e3, 1)
