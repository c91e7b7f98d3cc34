"""OpenAI's model list, from the registry: functions at zero are listed, and nobody is woken."""

from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from activator.functions import Functions, unknown_function
from glowplug.contracts import Endpoints, Function, Registry
from glowplug.errors import NotFound


class Models:
    """Endpoints of /v1/models and /f/{function}/v1/models."""

    def __init__(self, *, registry: Registry, functions: Functions, endpoints: Endpoints) -> None:
        self._registry = registry
        self._endpoints = endpoints
        self._functions = functions

    async def list_all(self, _request: Request) -> Response:
        """GET /v1/models."""
        return _listing(
            [model for function in await self._registry.list() for model in self._models(function)]
        )

    async def get(self, request: Request) -> Response:
        """GET /v1/models/{model}."""
        model = request.path_params["model"]
        return JSONResponse(self._model(await self._functions.of_model(model), model))

    async def list_of(self, request: Request) -> Response:
        """GET /f/{function}/v1/models: the one that is served there, and it with each adapter."""
        return _listing(self._models(await self._functions.get(request.path_params["function"])))

    async def get_of(self, request: Request) -> Response:
        """GET /f/{function}/v1/models/{model}."""
        model = request.path_params["model"]
        function = await self._functions.get(request.path_params["function"])
        if model.partition(":")[0] != function.spec.name:
            raise unknown_function(model)
        return JSONResponse(self._model(await self._functions.of_model(model), model))

    def _models(self, function: Function) -> list[dict[str, Any]]:
        name = function.spec.name
        names = (name, *(f"{name}:{adapter}" for adapter in function.spec.adapters))
        return [self._model(function, each) for each in names]

    def _model(self, function: Function, model: str) -> dict[str, Any]:
        """As OpenAI's, with the context's tokens once a replica has said how many it takes."""
        shown: dict[str, Any] = {
            "id": model,
            "object": "model",
            "created": int(function.created_s),
            "owned_by": "glowplug",
        }
        with suppress(NotFound):
            if tokens := self._endpoints.status(function.spec.name).max_context:
                shown["max_model_len"] = tokens  # as vLLM calls it
        return shown


def _listing(models: list[dict[str, Any]]) -> Response:
    return JSONResponse({"object": "list", "data": models})
