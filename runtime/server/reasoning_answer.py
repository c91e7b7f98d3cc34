"""One choice's reasoning, content and tool calls: deltas of a stream, or a whole message."""

from collections.abc import Callable
from typing import Any, Protocol

from runtime.server.reasoning import Parts, ReasoningSplitter


class ChoiceReader(Protocol):
    """Turns the text of one choice into deltas, piece by piece, or into a message."""

    def feed(self, text: str) -> list[dict[str, Any]]:
        """The deltas that this piece of the text makes."""
        ...

    def finish(self) -> list[dict[str, Any]]:
        """The deltas of what was held back."""
        ...

    def finish_reason(self, reason: str) -> str:
        """OpenAI's, for the engine's."""
        ...

    def message(self, text: str) -> dict[str, Any]:
        """The message that the whole text is; on a fresh reader."""
        ...


def reasoning_reader(
    opened: bool, inner: Callable[[], ChoiceReader] | None
) -> Callable[[], ChoiceReader]:
    """Readers for a model that reasons; `inner` ones read the content."""
    return lambda: ReasoningChoice(opened=opened, inner=inner() if inner else None)


class ReasoningChoice:
    """Implements ChoiceReader: the reasoning goes to `reasoning_content`, the rest is `inner`'s."""

    def __init__(self, *, opened: bool, inner: ChoiceReader | None) -> None:
        self._splitter = ReasoningSplitter(opened=opened)
        self._inner = inner

    def feed(self, text: str) -> list[dict[str, Any]]:
        """See ChoiceReader."""
        return self._deltas(self._splitter.feed(text))

    def finish(self) -> list[dict[str, Any]]:
        """See ChoiceReader."""
        held = self._deltas(self._splitter.finish())
        return held + self._inner.finish() if self._inner else held

    def finish_reason(self, reason: str) -> str:
        """See ChoiceReader."""
        return self._inner.finish_reason(reason) if self._inner else reason

    def message(self, text: str) -> dict[str, Any]:
        """See ChoiceReader."""
        (reasoning, content), (more, rest) = self._splitter.feed(text), self._splitter.finish()
        if self._inner is None:
            message = {"role": "assistant", "content": content + rest, "refusal": None}
        else:
            message = self._inner.message(content + rest)
        return {**message, "reasoning_content": (reasoning + more) or None}

    def _deltas(self, parts: Parts) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        if parts.reasoning:
            deltas.append({"reasoning_content": parts.reasoning})
        if parts.content:
            deltas += (
                self._inner.feed(parts.content) if self._inner else [{"content": parts.content}]
            )
        return deltas
