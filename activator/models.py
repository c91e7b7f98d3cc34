"""OpenAI's model list, from the registry: functions at zero are listed, and nobody is woken."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from activator.functions import Functions, unknown_function
from glowplug.contracts import Function, Registry


class Models:
    """Endpoints of /v1/models and /f/{function}/v1/models."""

    def __init__(self, *, registry: Registry, functions: Functions) -> None:
        self._registry = registry
        self._functions = functions

    async def list_all(self, _request: Request) -> Response:
        """GET /v1/models."""
        return _listing(
            [model for function in await self._registry.list() for model in _models(function)]
        )

    async def get(self, request: Request) -> Response:
        """GET /v1/models/{model}."""
        model = request.path_params["model"]
        return JSONResponse(_model(await self._functions.of_model(model), model))

    async def list_of(self, request: Request) -> Response:
        """GET /f/{function}/v1/models: the one that is served there, and it with each adapter."""
        return _listing(_models(await self._functions.get(request.path_params["function"])))

    async def get_of(self, request: Request) -> Response:
        """GET /f/{function}/v1/models/{model}."""
        model = request.path_params["model"]
        function = await self._functions.get(request.path_params["function"])
        if model.partition(":")[0] != function.spec.name:
            raise unknown_function(model)
        return JSONResponse(_model(await self._functions.of_model(model), model))


def _models(function: Function) -> list[dict[str, Any]]:
    name = function.spec.name
    return [
        _model(function, each) for each in (name, *(f"{name}:{a}" for a in function.spec.adapters))
    ]


def _model(function: Function, model: str) -> dict[str, Any]:
    return {
        "id": model,
        "object": "model",
        "created": int(function.created_s),
        "owned_by": "glowplug",
    }


def _listing(models: list[dict[str, Any]]) -> Response:
    return JSONResponse({"object": "list", "data": models})
