"""Functions: the registry as the request path reads it, cached until a function changes."""

from glowplug.contracts import Function, Registry
from glowplug.errors import NotFound


class Functions:
    """Looks deployed functions up. Only functions that exist are kept, so it stays small."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._known: dict[str, Function] = {}
        self._changes = 0
        registry.subscribe(self._forget)

    async def get(self, name: str) -> Function:
        """The function as it is now.

        Raises:
            NotFound: with OpenAI's code `model_not_found`.
        """
        known = self._known.get(name)
        if known is not None:
            return known
        changes = self._changes
        try:
            function = await self._registry.get(name)
        except NotFound:
            raise unknown_function(name) from None
        if changes == self._changes:  # else what was read may be out of date already
            self._known[name] = function
        return function

    async def of_model(self, model: str) -> Function:
        """The function that a request's `model` names: its name, or `name:adapter`.

        Raises:
            NotFound: there is no such function, or it has no such adapter.
        """
        name, colon, adapter = model.partition(":")
        function = await self.get(name)
        adapters = function.spec.adapters
        if colon and adapter not in adapters:
            known = f"; it has {', '.join(sorted(adapters))}" if adapters else ""
            raise NotFound(
                f"the function {name} has no adapter {adapter[:100]!r}{known}",
                param="model",
                code="model_not_found",
            )
        return function

    def _forget(self, name: str) -> None:
        self._changes += 1
        self._known.pop(name, None)


def unknown_function(name: str) -> NotFound:
    """What a request for a function that does not exist is answered with."""
    return NotFound(
        f"the model {name[:100]!r} does not exist; GET /v1/models lists those that do",
        param="model",
        code="model_not_found",
    )
