"""Server-sent events with JSON data, and the pre-serialised one that carries each piece of text."""

import json
from typing import Any

HOLE = "\0hole\0"
DONE = b"data: [DONE]\n\n"


def event(data: dict[str, Any]) -> bytes:
    """One event."""
    return f"data: {json.dumps(data)}\n\n".encode()


class TextEvent:
    """An event that is the same for every piece of a stream but for three values.

    Made of an example with a HOLE for the choice's index, the text and the log probabilities, in
    that order: serialised once per request, so that a token costs one string concatenation.
    """

    def __init__(self, example: dict[str, Any]) -> None:
        parts = f"data: {json.dumps(example)}\n\n".split(json.dumps(HOLE))
        self._start, self._before_text, self._before_logprobs, self._end = parts

    def fill(self, index: int, text: str, logprobs: str = "null") -> bytes:
        """The event; `logprobs` is JSON."""
        return (
            f"{self._start}{index}{self._before_text}{json.dumps(text)}"
            f"{self._before_logprobs}{logprobs}{self._end}"
        ).encode()
