"""From a model's text to tool calls, while it is made: text and calls in OpenAI's order.

Models write calls in one of three formats; the chat template's text says which (tool_format.py).
In all of them a call is a JSON object with a name and its arguments. A call's name is passed on as
soon as it is whole, its arguments as they come, exactly as the model wrote them. What turns out not
to be a call of a known function is text.

However the text is cut into pieces, the events add up to the same. Not thread-safe.
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

_HEADER = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*'
)


@dataclass(frozen=True, slots=True)
class Text:
    """Text that is no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; the arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the JSON text of the last call's arguments."""

    text: str


Event = Text | CallStart | Arguments


class ToolParser(Protocol):
    """The text of one choice on its way to text and calls."""

    def feed(self, text: str) -> list[Event]:
        """What this piece of the text completes."""
        ...

    def finish(self) -> list[Event]:
        """What is held back, at the end of the text."""
        ...


class _Object:
    """One call, an object that is read from its "{" on, character by character."""

    def __init__(self, functions: Collection[str]) -> None:
        self._functions = functions
        self.opened = False  # its "{" has come
        self.started = False  # its name has been passed on
        self._raw: list[str] = []
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._header_tried = False
        self._in_arguments = False

    def skip(self, blanks: str) -> None:
        """Take what comes before the "{"."""
        self._raw.append(blanks)

    def feed(self, text: str) -> tuple[list[Event], int]:
        """The events, and how many characters belong to the object: fewer than there are when it
        is over."""
        self.opened = True
        events: list[Event] = []
        kept, shown = 0, 0  # where in the text what is not in `_raw`, and the arguments, begin
        for place, char in enumerate(text):
            if char == "{" and self._depth == 1 and not (self._in_string or self._header_tried):
                self._raw.append(text[kept:place])
                events += self._try_header()
                kept = shown = place
            self._follow(char)
            if self._in_arguments and self._depth == 1 and not self._in_string:
                events.append(Arguments(text[shown : place + 1]))
                self._in_arguments = False
            if self._depth == 0:
                self._raw.append(text[kept : place + 1])
                return events + self._end(), place + 1
        self._raw.append(text[kept:])
        if self._in_arguments:
            events.append(Arguments(text[shown:]))
        return events, len(text)

    @property
    def raw(self) -> str:
        """All of it so far."""
        return "".join(self._raw)

    @property
    def over(self) -> bool:
        """Whether the closing brace has come."""
        return self.opened and self._depth == 0

    def _follow(self, char: str) -> None:
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._in_string = False
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1

    def _try_header(self) -> list[Event]:
        """At the first "{" of a value: whether all before it is the usual beginning of a call."""
        self._header_tried = True
        match = _HEADER.fullmatch(self.raw)
        name = _loads(match[1]) if match else None
        if not isinstance(name, str) or name not in self._functions:
            return []
        self.started = self._in_arguments = True
        return [CallStart(name)]

    def _end(self) -> list[Event]:
        """At the closing brace: a call whose keys come in another order is passed on whole."""
        if self.started:
            return []
        call = _loads(self.raw)
        if not isinstance(call, dict) or call.get("name") not in self._functions:
            return []
        arguments = call.get("arguments", call.get("parameters"))
        if isinstance(arguments, str):
            arguments = _loads(arguments)
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            return []
        self.started = True
        text = json.dumps(arguments, ensure_ascii=False)
        return [CallStart(call["name"]), Arguments(text)]


class MarkedCalls:
    """Qwen's and Hermes': `<tool_call>{"name": …, "arguments": {…}}</tool_call>` in any text."""

    _OPEN, _CLOSE = "<tool_call>", "</tool_call>"

    def __init__(self, functions: Collection[str]) -> None:
        self._functions = functions
        self._held = ""  # not decided yet
        self._object: _Object | None = None
        self._closing = False  # after a call, up to its mark's end
        self._gap = ""  # blanks after a call: text only if more text follows
        self._called = False

    def feed(self, text: str) -> list[Event]:
        """See ToolParser."""
        self._held += text
        events: list[Event] = []
        while self._step(events):
            pass
        return events

    def finish(self) -> list[Event]:
        """See ToolParser."""
        events: list[Event] = []
        if self._object is not None and not self._object.started:
            _append_text(events, self._OPEN + self._object.raw)
        self._object = None
        if not self._closing:
            self._text(events, self._held)
        self._held = ""
        return events

    def _step(self, events: list[Event]) -> bool:
        """Take one part of what is held; False: there is no more to take."""
        if self._closing:
            return self._close()
        if self._object is not None:
            return self._call(events)
        place = self._held.find(self._OPEN)
        if place >= 0:
            self._text(events, self._held[:place])
            self._held = self._held[place + len(self._OPEN) :]
            self._object = _Object(self._functions)
            return True
        keep = _overlap(self._held, self._OPEN)
        cut = len(self._held) - keep
        self._text(events, self._held[:cut])
        self._held = self._held[cut:]
        return False

    def _call(self, events: list[Event]) -> bool:
        call = self._object
        if call is None or not self._held:
            return False
        if not call.opened:
            body = self._held.lstrip()
            call.skip(self._held[: len(self._held) - len(body)])
            self._held = body
            if body and body[0] != "{":
                _append_text(events, self._OPEN + call.raw)
                self._object = None
                return True
            if not body:
                return False
        found, used = call.feed(self._held)
        events += found
        self._held = self._held[used:]
        if not call.over:
            return False
        if call.started:
            self._closing, self._called = True, True
        else:
            _append_text(events, self._OPEN + call.raw)
        self._object = None
        return True

    def _close(self) -> bool:
        stripped = self._held.lstrip()
        if stripped.startswith(self._CLOSE):
            self._held = stripped[len(self._CLOSE) :]
        elif self._CLOSE.startswith(stripped):
            return False
        self._closing = False
        return True

    def _text(self, events: list[Event], text: str) -> None:
        """Text between and after calls: blanks are dropped where nothing else follows."""
        if self._called:
            text = self._gap + text
            self._gap = ""
            if not text.strip():
                self._gap = text
                return
            self._called = False
        _append_text(events, text)


class LeadingCalls:
    """Llama 3's `{"name": …, "parameters": {…}}` and Mistral's `[{"name": …, "arguments": {…}}]`:
    calls that are all of the text, after a mark that usually is a special token and not shown.
    What is between and after calls is dropped."""

    def __init__(self, functions: Collection[str], *, mark: str, in_array: bool) -> None:
        self._functions = functions
        self._mark = mark
        self._in_array = in_array
        self._seen = ""  # before the first call, to be text if there is none
        self._decided = False
        self._is_text = False
        self._object: _Object | None = None
        self._calls = 0

    def feed(self, text: str) -> list[Event]:
        """See ToolParser."""
        events: list[Event] = []
        if not self._decided:
            self._seen += text
            text = self._decide()
            if not self._decided:
                return events
        while text:
            if self._is_text:
                _append_text(events, text)
                break
            if self._object is None:
                place = text.find("{")
                if place < 0:
                    break  # separators
                text = text[place:]
                self._object = _Object(self._functions)
            found, used = self._object.feed(text)
            events += found
            text = text[used:]
            if self._object.over:
                if self._object.started:
                    self._calls += 1
                elif self._calls == 0:
                    self._is_text = True
                    _append_text(events, self._seen + self._object.raw)
                self._object = None
        return events

    def finish(self) -> list[Event]:
        """See ToolParser."""
        events: list[Event] = []
        if not self._decided:
            _append_text(events, self._seen)
        elif self._object is not None and not self._object.started and self._calls == 0:
            _append_text(events, self._seen + self._object.raw)
        self._seen, self._object = "", None
        return events

    def _decide(self) -> str:
        """Whether the text begins as calls do. Returns what follows `_seen`, once that is known."""
        body = self._seen.lstrip()
        if body.startswith(self._mark):
            body = body[len(self._mark) :].lstrip()
        elif self._mark.startswith(body):
            return ""
        if self._in_array and body.startswith("["):
            body = body[1:].lstrip()
            if not body:
                return ""
        elif self._in_array and body:
            body = " "  # no call
        if not body:
            return ""
        self._decided = True
        if not body.startswith("{"):
            self._is_text = True
            text, self._seen = self._seen, ""
            return text
        self._seen = self._seen[: len(self._seen) - len(body)]
        return body


def _append_text(events: list[Event], text: str) -> None:
    if text and events and isinstance(events[-1], Text):
        events[-1] = Text(events[-1].text + text)
    elif text:
        events.append(Text(text))


def _overlap(text: str, mark: str) -> int:
    """Length of the longest beginning of `mark` at the end of the text."""
    lengths = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(mark[:length])), 0)


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
