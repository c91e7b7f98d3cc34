"""Models that reason before they answer: `<think>…</think>`, then the content.

Qwen 3, DeepSeek-R1 and their kin; a model's chat template says whether it is one. The template may
open the reasoning itself, at the end of the prompt, or close it there at once (`enable_thinking`
false); else the model opens it. However the text is cut into pieces, the parts add up to the same.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from tokenizers import Tokenizer

OPEN, CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """How one model reasons. The marks are tokens where the vocabulary has them as such."""

    open_token: int | None
    close_token: int | None
    switchable: bool  # the template knows `enable_thinking`


def reasoning_of(template: str | None, tokenizer: Tokenizer) -> Reasoning | None:
    """What the chat template says; None: the model does not reason, or its marks are special
    tokens, which are never text."""
    if template is None or CLOSE not in template:
        return None
    open_token, close_token = tokenizer.token_to_id(OPEN), tokenizer.token_to_id(CLOSE)
    added = tokenizer.get_added_tokens_decoder()
    if close_token in added and added[close_token].special:
        return None
    return Reasoning(
        open_token=open_token,
        close_token=close_token,
        switchable="enable_thinking" in template,
    )


class _Stage(Enum):
    START = auto()  # nothing yet but blanks and perhaps a part of OPEN
    REASONING = auto()
    AFTER = auto()  # blanks between CLOSE and the content
    CONTENT = auto()


class Parts(NamedTuple):
    """What a piece of the text adds to both."""

    reasoning: str
    content: str


class ReasoningSplitter:
    """One choice's text on its way to reasoning and content, without the blanks around the marks.

    `opened`: the prompt has opened the reasoning.
    """

    def __init__(self, *, opened: bool) -> None:
        self._opened = opened
        self._stage = _Stage.START
        self._held = ""
        self._reasoned = False  # some reasoning has been passed on

    def feed(self, text: str) -> Parts:
        """What this piece completes."""
        reasoning = content = ""
        self._held += text
        if self._stage is _Stage.START:
            self._start()
        if self._stage is _Stage.REASONING:
            reasoning = self._reason()
        if self._stage is _Stage.AFTER and (rest := self._held.lstrip()):
            self._held, self._stage = rest, _Stage.CONTENT
        if self._stage is _Stage.CONTENT:
            content, self._held = self._held, ""
        return Parts(reasoning, content)

    def finish(self) -> Parts:
        """What is held back, at the end of the text."""
        held, self._held = self._held, ""
        if self._stage is _Stage.REASONING or (self._stage is _Stage.START and self._opened):
            return Parts(held, "")
        return Parts("", "" if self._stage is _Stage.AFTER else held)

    def _start(self) -> None:
        body = self._held.lstrip()
        if body.startswith(OPEN):
            self._held, self._stage = body.removeprefix(OPEN), _Stage.REASONING
        elif not OPEN.startswith(body):  # an empty body is held, too
            self._stage = _Stage.REASONING if self._opened else _Stage.CONTENT

    def _reason(self) -> str:
        """More of the reasoning; what may be its end, or blanks before it, is held."""
        if not self._reasoned:
            self._held = self._held.lstrip()
        before, mark, after = self._held.partition(CLOSE)
        if mark:
            self._held, self._stage = after, _Stage.AFTER
            return before.rstrip()
        cut = len(before) - _overlap(before)
        cut = len(before[:cut].rstrip())
        self._held = before[cut:]
        self._reasoned = self._reasoned or cut > 0
        return before[:cut]


def _overlap(text: str) -> int:
    """Length of the longest beginning of CLOSE at the end of the text."""
    longest = min(len(CLOSE) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(CLOSE[:n])), 0)
