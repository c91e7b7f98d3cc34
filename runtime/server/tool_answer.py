"""One choice's text and tool calls in OpenAI's shapes: deltas of a stream, or a whole message."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from runtime.server.tool_format import ToolFormat, call_id, parser_for
from runtime.server.tool_parser import Arguments, CallStart, Event, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswers:
    """How the answers to a request with tools are read."""

    form: ToolFormat
    functions: Collection[str]
    several: bool  # whether an answer may have more than one call

    def choice(self) -> "ToolChoice":
        """For one choice."""
        return ToolChoice(self)


class ToolChoice:
    """Turns the text of one choice into deltas, piece by piece."""

    def __init__(self, answers: ToolAnswers) -> None:
        self._answers = answers
        self._parser = parser_for(answers.form, answers.functions)
        self._calls = 0

    @property
    def called(self) -> bool:
        """Whether there has been a call."""
        return self._calls > 0

    def feed(self, text: str) -> list[dict[str, Any]]:
        """The deltas that this piece of the text makes."""
        return self._deltas(self._parser.feed(text))

    def finish(self) -> list[dict[str, Any]]:
        """The deltas of what was held back."""
        return self._deltas(self._parser.finish())

    def finish_reason(self, reason: str) -> str:
        """OpenAI's, for the engine's."""
        return "tool_calls" if self.called and reason == "stop" else reason

    def message(self, text: str) -> dict[str, Any]:
        """The message that the whole text is."""
        content = ""
        calls: list[dict[str, Any]] = []
        for delta in self.feed(text) + self.finish():
            content += delta.get("content", "")
            for part in delta.get("tool_calls", ()):
                if "id" in part:
                    calls.append({key: part[key] for key in ("id", "type", "function")})
                else:
                    calls[-1]["function"]["arguments"] += part["function"]["arguments"]
        message = {"role": "assistant", "content": content or None, "refusal": None}
        if not calls:
            return {**message, "content": content}
        return {**message, "tool_calls": calls}

    def _deltas(self, events: list[Event]) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        for event in events:
            if isinstance(event, Text):
                deltas.append({"content": event.text})
                continue
            self._calls += isinstance(event, CallStart)
            if self._calls > 1 and not self._answers.several:
                continue
            call: dict[str, Any] = {"index": self._calls - 1}
            if isinstance(event, CallStart):
                call |= {"id": call_id(self._answers.form), "type": "function"}
                call["function"] = {"name": event.name, "arguments": ""}
            elif isinstance(event, Arguments):
                call["function"] = {"arguments": event.text}
            deltas.append({"tool_calls": [call]})
        return deltas
