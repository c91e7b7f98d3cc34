"""The prewarms of a function, one by one: a sub-resource of the control API. Needs an admin key.

A change is made to the function's spec by the registry, read and written as one: changes of
different prewarms at the same time all last. No replica is restarted by one.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from activator.auth import require_admin
from activator.exchange import exchange_of
from glowplug.contracts import Endpoints, Function, PrewarmRun, Registry
from glowplug.errors import InvalidRequest, InvalidSpec, NotFound
from glowplug.schedule import MAX_SCHEDULES, Schedule, conflict, parse_schedule, zone_of
from glowplug.spec import FunctionSpec

_ALL = "/v1/functions/{name}/prewarms"
_ONE = _ALL + "/{prewarm}"


class Prewarms:
    """Endpoints of /v1/functions/{name}/prewarms."""

    def __init__(
        self,
        *,
        registry: Registry,
        endpoints: Endpoints,
        existing: Callable[[str], Awaitable[Function]],
        read_json: Callable[[Request], Awaitable[Any]],
    ) -> None:
        """`existing` is the function of a name, or raises NotFound."""
        self._registry = registry
        self._endpoints = endpoints
        self._existing = existing
        self._read_json = read_json

    def routes(self) -> list[Route]:
        """What the router needs."""
        return [
            Route(_ALL, self.list, methods=["GET"]),
            Route(_ONE, self.get, methods=["GET"]),
            Route(_ONE, self.put, methods=["PUT"]),
            Route(_ONE, self.delete, methods=["DELETE"]),
        ]

    async def list(self, request: Request) -> Response:
        """GET /v1/functions/{name}/prewarms."""
        require_admin(exchange_of(request.scope).identity)
        spec = (await self._existing(request.path_params["name"])).spec
        runs = self._runs(spec.name)
        data = [_represent(spec, schedule, runs) for schedule in spec.schedules]
        return JSONResponse({"object": "list", "data": data})

    async def get(self, request: Request) -> Response:
        """GET /v1/functions/{name}/prewarms/{prewarm}."""
        require_admin(exchange_of(request.scope).identity)
        spec = (await self._existing(request.path_params["name"])).spec
        schedule = _named(spec, request.path_params["prewarm"])
        return JSONResponse(_represent(spec, schedule, self._runs(spec.name)))

    async def put(self, request: Request) -> Response:
        """PUT /v1/functions/{name}/prewarms/{prewarm}: 201 where it is new, 200 where it replaces
        one; the function's others stay."""
        require_admin(exchange_of(request.scope).identity)
        name, prewarm = request.path_params["name"], request.path_params["prewarm"]
        data = await self._read_json(request)
        if isinstance(data, dict) and data.setdefault("name", prewarm) != prewarm:
            raise InvalidRequest(
                f"name: the body says {str(data['name'])[:100]!r} and the path "
                f"{prewarm[:100]!r}; make them the same, or leave it out of the body",
                param="name",
            )
        schedule = parse_schedule(data)
        await self._existing(name)
        was_there = False

        def change(spec: FunctionSpec) -> FunctionSpec:
            nonlocal was_there
            was_there = any(each.name == prewarm for each in spec.schedules)
            return with_schedule(spec, schedule)

        spec = (await self._registry.change(name, change)).spec
        body = _represent(spec, schedule, self._runs(name))
        if was_there:
            return JSONResponse(body)
        location = _ONE.format(name=name, prewarm=prewarm)
        return JSONResponse(body, status_code=201, headers={"location": location})

    async def delete(self, request: Request) -> Response:
        """DELETE /v1/functions/{name}/prewarms/{prewarm}: what it holds is let go."""
        require_admin(exchange_of(request.scope).identity)
        name, prewarm = request.path_params["name"], request.path_params["prewarm"]
        await self._existing(name)
        await self._registry.change(name, lambda spec: without_schedule(spec, prewarm))
        return Response(status_code=204)

    def _runs(self, name: str) -> Sequence[PrewarmRun]:
        try:
            return self._endpoints.status(name).prewarms
        except NotFound:  # just created: the scaler has not seen it yet
            return ()


def represent_run(run: PrewarmRun) -> dict[str, Any]:
    """The JSON form of one window, its times those of its zone."""
    zone = zone_of(run.timezone)

    def text(seconds: float) -> str:
        return datetime.fromtimestamp(round(seconds), zone).isoformat()

    return {
        "name": run.name,
        "ready_by": text(run.ready_by_s),
        "launch": text(run.launch_s),
        "until": text(run.until_s),
        "replicas": run.replicas,
        "timezone": run.timezone,
        "active": run.active,
    }


def _represent(
    spec: FunctionSpec, schedule: Schedule, runs: Sequence[PrewarmRun]
) -> dict[str, Any]:
    own = [run for run in runs if run.name == schedule.name]
    return {
        "name": schedule.name,
        "function": spec.name,
        "spec": schedule.model_dump(mode="json"),
        "state": _state(schedule, own),
        "runs": [represent_run(run) for run in own],
    }


def with_schedule(spec: FunctionSpec, schedule: Schedule) -> FunctionSpec:
    """The spec with this schedule in the place of the one of its name, or behind the others.

    Raises:
        InvalidSpec: it does not fit the function, or there are too many.
    """
    schedules = list(spec.schedules)
    places = [index for index, each in enumerate(schedules) if each.name == schedule.name]
    if places:
        schedules[places[0]] = schedule
    else:
        schedules.append(schedule)
    if len(schedules) > MAX_SCHEDULES:
        raise InvalidSpec(
            f"the function has {MAX_SCHEDULES} prewarms, which is the most; delete one first",
            code="invalid_spec",
        )
    if (found := conflict(schedules, spec.max_replicas)) is not None:
        _, field, message = found
        raise InvalidSpec(f"{field}: {message}", param=field, code="invalid_spec")
    return spec.model_copy(update={"schedules": schedules})


def without_schedule(spec: FunctionSpec, prewarm: str) -> FunctionSpec:
    """The spec without the schedule of this name. Raises NotFound."""
    gone = _named(spec, prewarm)
    return spec.model_copy(update={"schedules": [each for each in spec.schedules if each != gone]})


def _named(spec: FunctionSpec, prewarm: str) -> Schedule:
    for schedule in spec.schedules:
        if schedule.name == prewarm:
            return schedule
    raise NotFound(
        f"the function {spec.name} has no prewarm {prewarm[:100]!r}; "
        f"GET /v1/functions/{spec.name}/prewarms lists those it has",
        param="prewarm",
        code="prewarm_not_found",
    )


def _state(schedule: Schedule, runs: Sequence[PrewarmRun]) -> str:
    """`paused`, `active`, `waiting` or, for a time that is past, `over`."""
    if not schedule.enabled:
        return "paused"
    if any(run.active for run in runs):
        return "active"
    return "over" if schedule.at is not None and not runs else "waiting"
