"""The real program with an engine whose loop fails at its first request."""

from runtime.engine.loop import Engine
from runtime.engine.request import GenerationRequest
from runtime.pod import replica


class CrashingProgram(replica.ModelProgram):
    """Serves a model until it is asked."""

    def warm(self, *, hurry: bool) -> None:
        """Break the engine, in this process only."""
        super().warm(hurry=hurry)

        def fail(_engine: Engine, _request: GenerationRequest) -> None:
            raise RuntimeError("a cosmic ray")

        Engine._add = fail  # type: ignore[method-assign]
