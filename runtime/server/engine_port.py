"""EnginePort: all that the server knows of the engine.

The engine runs in its own thread. It is given requests through this protocol and hands its outputs
to a callback, `Emit`, that it got when it was made.
"""

from collections.abc import Callable
from typing import Protocol

from runtime.engine.request import Delta, GenerationRequest

Emit = Callable[[list[tuple[str, Delta]]], None]
"""Called on the engine thread once per engine step with (request id, delta) of all its requests."""


class EnginePort(Protocol):
    """What the server asks of an engine. Requests are validated before they get here."""

    @property
    def max_context(self) -> int:
        """Tokens, prompt and output, that one sequence may have (model, spec and KV size)."""
        ...

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        ...

    def submit(self, request: GenerationRequest) -> None:
        """Start a sequence. Thread-safe; never blocks."""
        ...

    def abort(self, request_id: str) -> None:
        """End a sequence and free its memory. Thread-safe, idempotent, unknown ids are fine."""
        ...
