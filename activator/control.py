"""The control API: create, replace, read and delete functions. Needs an admin key.

It writes to the registry only. What follows from a change (sealing, starting, draining) is the
scaler's business, and shows in `state` here.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Collection
from typing import Any, NoReturn

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from activator.auth import require_admin
from activator.body import BodyMemory, declared_bytes, read_body
from activator.clocks import deadline
from activator.exchange import exchange_of
from activator.limits import Limits
from activator.prewarms import Prewarms
from activator.representation import base_url_of, represent
from glowplug.accelerators import refusal
from glowplug.contracts import Endpoints, ForecastReport, Function, FunctionStatus, Registry
from glowplug.errors import BodyTimeout, Conflict, InvalidRequest, InvalidSpec, NotFound
from glowplug.spec import FunctionSpec, parse_spec

MAX_SPEC_BYTES = 1 << 20
MAX_HOURS = 168  # of a forecast


class Control:
    """Endpoints of /v1/functions."""

    def __init__(
        self,
        *,
        registry: Registry,
        endpoints: Endpoints,
        limits: Limits,
        public_url: str | None,
        forecast: ForecastReport | None = None,
        accelerators: Callable[[], Collection[str]],
    ) -> None:
        self._registry = registry
        self._endpoints = endpoints
        self._limits = limits
        self._public_url = public_url
        self._forecast = forecast
        self._accelerators = accelerators
        self._memory = BodyMemory(limits.max_held_bytes)
        self._prewarms = Prewarms(
            registry=registry,
            endpoints=endpoints,
            existing=self.existing,
            read_json=self._json,
        )
        self._one_writer = asyncio.Lock()  # between looking whether a name is free and taking it

    def routes(self) -> list[Route]:
        """What the router needs."""
        return [
            Route("/v1/functions", self.list, methods=["GET"]),
            Route("/v1/functions", self.create, methods=["POST"]),
            Route("/v1/functions/{name}", self.get, methods=["GET"]),
            Route("/v1/functions/{name}", self.put, methods=["PUT"]),
            Route("/v1/functions/{name}", self.delete, methods=["DELETE"]),
            *self._prewarms.routes(),
            Route("/v1/functions/{name}/forecast", self.forecast, methods=["GET"]),
        ]

    async def list(self, request: Request) -> Response:
        """GET /v1/functions."""
        require_admin(exchange_of(request.scope).identity)
        functions = await self._registry.list()
        data = [self._represent(function, request) for function in functions]
        return JSONResponse({"object": "list", "data": data})

    async def get(self, request: Request) -> Response:
        """GET /v1/functions/{name}."""
        require_admin(exchange_of(request.scope).identity)
        function = await self.existing(request.path_params["name"])
        return JSONResponse(self._represent(function, request))

    async def create(self, request: Request) -> Response:
        """POST /v1/functions: 201, or 409 where the name is taken."""
        require_admin(exchange_of(request.scope).identity)
        spec = self._checked(parse_spec(await self._json(request)))
        async with self._one_writer:
            if await self._find(spec.name) is not None:
                raise Conflict(
                    f"the function {spec.name} exists; PUT /v1/functions/{spec.name} replaces it",
                    param="name",
                    code="function_exists",
                )
            function = await self._registry.put(spec)
        return self._created(function, request)

    async def put(self, request: Request) -> Response:
        """PUT /v1/functions/{name}: 201 where it is new, 200 where it replaces one; its prewarms
        stay where the body does not mention `schedules`. With ?generation=N only where it has that
        generation, 409 otherwise."""
        require_admin(exchange_of(request.scope).identity)
        spec = self._checked(_named(await self._json(request), request.path_params["name"]))
        wanted = request.query_params.get("generation")
        async with self._one_writer:
            there = await self._find(spec.name)
            _refuse_changed(there, wanted)
            function = await self._registry.put(spec)
        if there is None:
            return self._created(function, request)
        return JSONResponse(self._represent(function, request))

    async def delete(self, request: Request) -> Response:
        """DELETE /v1/functions/{name}: no new requests from now on; running ones finish."""
        require_admin(exchange_of(request.scope).identity)
        name = request.path_params["name"]
        async with self._one_writer:
            await self.existing(name)
            await self._registry.delete(name)
        return Response(status_code=204)

    async def forecast(self, request: Request) -> Response:
        """GET /v1/functions/{name}/forecast?hours=48."""
        require_admin(exchange_of(request.scope).identity)
        hours = _hours(request.query_params.get("hours", "48"))
        function = await self.existing(request.path_params["name"])
        if self._forecast is None:
            raise NotFound("this server makes no forecasts", code="no_forecasts")
        return JSONResponse(await self._forecast(function, hours))

    def _checked(self, spec: FunctionSpec) -> FunctionSpec:
        """Raises InvalidSpec for what this server cannot run: more replicas, or on a class of
        accelerator that it does not have."""
        most = self._limits.max_replicas
        for field in ("min_replicas", "max_replicas"):
            if (wanted := getattr(spec, field)) > most:
                raise InvalidSpec(
                    f"{field}: {wanted} is over {most}, the most that this server runs of one "
                    "function; lower it",
                    param=field,
                    code="invalid_spec",
                )
        if reason := refusal(spec.accelerator, self._accelerators()):
            raise InvalidSpec(reason, param="accelerator", code="invalid_spec")
        return spec

    async def _find(self, name: str) -> Function | None:
        try:
            return await self._registry.get(name)
        except NotFound:
            return None

    async def existing(self, name: str) -> Function:
        """Raises NotFound."""
        function = await self._find(name)
        if function is None:
            raise NotFound(
                f"there is no function {name[:100]!r}; GET /v1/functions lists those there are",
                param="name",
                code="function_not_found",
            )
        return function

    async def _json(self, request: Request) -> Any:
        with self._memory.share() as share:
            async with deadline(
                exchange_of(request.scope).arrived_s + self._limits.body_timeout_s,
                lambda: BodyTimeout("the request body did not arrive in time; send it faster"),
            ):
                body = await read_body(
                    request.receive,
                    declared_bytes=declared_bytes(request.headers),
                    max_bytes=MAX_SPEC_BYTES,
                    share=share,
                )
        try:
            return json.loads(body, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(
                f"the body is not valid JSON: {error}", code="invalid_json"
            ) from None

    def _created(self, function: Function, request: Request) -> Response:
        return JSONResponse(
            self._represent(function, request),
            status_code=201,
            headers={"location": f"/v1/functions/{function.spec.name}"},
        )

    def _represent(self, function: Function, request: Request) -> dict[str, Any]:
        status: FunctionStatus | None = None
        with contextlib.suppress(NotFound):  # just created: the scaler has not seen it yet
            status = self._endpoints.status(function.spec.name)
        return represent(function, status, base_url=base_url_of(request, self._public_url))


def _refuse_changed(function: Function | None, wanted: str | None) -> None:
    """Raises Conflict where it has not the generation that the caller has seen."""
    generation = None if function is None else str(function.generation)
    if wanted is not None and wanted != generation:
        raise Conflict(
            "the function was changed meanwhile; GET it, look at the change, and PUT again",
            param="generation",
            code="function_changed",
        )


def _hours(text: str) -> int:
    """Raises InvalidRequest."""
    if not (text.isascii() and text.isdigit() and len(text) < 4 and 1 <= int(text) <= MAX_HOURS):
        raise InvalidRequest(
            f"hours: write a whole number from 1 to {MAX_HOURS}, not {text[:40]!r}", param="hours"
        )
    return int(text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _named(data: Any, name: str) -> FunctionSpec:
    """The spec for PUT: its name may be left out, but not differ from the path's."""
    if isinstance(data, dict) and data.setdefault("name", name) != name:
        raise InvalidRequest(
            f"name: the body says {str(data['name'])[:100]!r} and the path {name!r}; make them the "
            "same, or leave it out of the body",
            param="name",
        )
    return parse_spec(data)
