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
        return _listing([_model(function) for function in await self._registry.list()])

    async def get(self, request: Request) -> Response:
        """GET /v1/models/{model}."""
        return JSONResponse(_model(await self._functions.get(request.path_params["model"])))

    async def list_of(self, request: Request) -> Response:
        """GET /f/{function}/v1/models: the one that is served there."""
        return _listing([_model(await self._functions.get(request.path_params["function"]))])

    async def get_of(self, request: Request) -> Response:
        """GET /f/{function}/v1/models/{model}."""
        model = request.path_params["model"]
        function = await self._functions.get(request.path_params["function"])
        if model != function.spec.name:
            raise unknown_function(model)
        return JSONResponse(_model(function))


def _model(function: Function) -> dict[str, Any]:
    return {
        "id": function.spec.name,
        "object": "model",
        "created": int(function.created_s),
        "owned_by": "glowplug",
    }


def _listing(models: list[dict[str, Any]]) -> Response:
    return JSONResponse({"object": "list", "data": models})
